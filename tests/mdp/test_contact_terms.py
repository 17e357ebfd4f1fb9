"""Terms that read which parts are touched, by hand and on both engines."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards, terminations
from ksim.mdp.contacts import add_contact_sensors, contact_forces, hardest_contacts
from ksim.physics import compile_model
from ksim.physics.select import make_engine
from tests.support.contexts import DT, make_context
from tests.support.engines import BOTH, MJX
from tests.support.robots import ACTUATORS, biped_spec

UNDESIRED = rewards.UndesiredContact(bodies=("left_leg",), geoms=("right_foot",), threshold=5.0)
STUMBLE = rewards.Stumble(geoms=("left_foot", "right_foot"), ratio=2.0, threshold=5.0)


@functools.cache
def biped_with_contact_sensors():
    edits = [UNDESIRED.edit_spec, STUMBLE.edit_spec, ACTUATORS.edit_spec]
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=DT, edits=edits)


def geom_contact(force=(0, 0, 0), normal=(0, 0, 1), tangent=(1, 0, 0)):
    """Readings of a geom's sensor: force along the normal, the tangent and their cross product."""
    return [*force, *normal, *tangent]


def context_of(body, **geoms):
    sensors = {"ksim_left_leg_contact": body}
    return make_context(
        model=biped_with_contact_sensors(),
        sensors=sensors | {f"ksim_{geom}_geom_contact": reading for geom, reading in geoms.items()},
    )


@pytest.mark.parametrize(("body", "geom", "expected"), [(4, 4, 0), (6, 4, 1), (4, 6, 1), (6, 6, 2)])
def test_undesired_contact_counts_the_parts_that_are_pressed_harder_than_the_threshold(body, geom, expected):
    context = context_of(body, right_foot=geom_contact(force=(geom, 99, 99)))
    assert UNDESIRED(context) == expected
    ends = terminations.BodyContact(bodies=("left_leg",), geoms=("right_foot",), threshold=5.0)(context)
    assert ends == (expected > 0)


@pytest.mark.parametrize(
    ("force", "normal", "tangent", "expected"),
    [
        # From below: 10 up and 4 along the ground is a push-off, 10 up and 21 aside is none.
        ((10, 4, 0), (0, 0, 1), (1, 0, 0), 0),
        ((10, 0, 21), (0, 0, 1), (1, 0, 0), 1),
        # From a wall: 10 from the side and 4 along it upwards.
        ((10, 4, 0), (1, 0, 0), (0, 0, 1), 1),
        ((10, 6, 0), (1, 0, 0), (0, 0, 1), 0),
        # Too little to count.
        ((4, 0, 0), (1, 0, 0), (0, 0, 1), 0),
    ],
)
def test_stumble_counts_feet_that_are_pushed_mostly_from_the_side(force, normal, tangent, expected):
    pushed = geom_contact(force, normal, tangent)
    assert STUMBLE(context_of(0, left_foot=pushed, right_foot=geom_contact(force=(50, 0, 0)))) == expected


def test_hardest_contacts_when_the_frame_is_turned_are_in_the_world():
    # 10 along y, 2 along z, and 3 along y x z = x.
    pushed = geom_contact((10, 2, 3), (0, 1, 0), (0, 0, 1))
    force_g3 = hardest_contacts(context_of(0, left_foot=pushed), ("left_foot",))
    np.testing.assert_allclose(force_g3, [[3, 10, 2]])


def test_contact_sensors_when_several_terms_ask_are_added_once():
    # 3 of the biped, one of the body, two of geoms.
    assert biped_with_contact_sensors().mj_model.nsensor == 3 + 1 + 2


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"bodies": ("left_lag",)}, r"no body 'left_lag'.*'left_leg'"),
        ({"geoms": ("left_fot",)}, r"no geom 'left_fot'.*'left_foot'"),
        ({"bodies": ("trunk",)}, r"Body 'trunk' cannot touch anything: its contype and conaffinity are 0"),
        ({"geoms": ("trunk",)}, r"Geom 'trunk' cannot touch anything"),
    ],
)
def test_contact_sensors_when_a_part_is_unknown_or_touches_nothing_are_an_error(parts, message):
    with pytest.raises(ConfigError, match=message):
        rewards.UndesiredContact(**parts).edit_spec(biped_spec())


def test_contact_sensors_when_a_part_touches_by_an_explicit_pair_are_added():
    spec = biped_spec()
    spec.add_pair(geomname1="floor", geomname2="trunk")
    add_contact_sensors(spec, bodies=("trunk",), geoms=("trunk",))
    assert spec.sensor("ksim_trunk_contact") is not None


# A ball and a crate with two walls, that fall onto the ground and into each other.
YARD = """
<mujoco>
  <option timestep="0.004"><flag eulerdamp="disable"/></option>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="ball" pos="0 0 .098"><freejoint/><geom name="ball" type="sphere" size=".1" mass="1"/></body>
    <body name="crate" pos=".198 0 .148">
      <freejoint/>
      <geom name="crate" type="capsule" size=".1 .05" mass="1"/>
      <geom name="lid" type="sphere" pos="0 0 .1" size=".05" mass=".1"/>
    </body>
    <body name="far" pos="2 0 1"><freejoint/><geom name="far" type="sphere" size=".1" mass="1"/></body>
  </worldbody>
</mujoco>
"""
BODIES, GEOMS = ("ball", "crate", "far"), ("ball", "crate", "lid", "far")


@functools.cache
def forces_in_the_yard(engine):
    """Contact forces on parts, and the hardest contacts, at the start and after a few steps."""
    edit = functools.partial(add_contact_sensors, bodies=BODIES, geoms=GEOMS)
    model = compile_model(mujoco.MjSpec.from_string(YARD), dt=0.004, ctrl_dt=0.004, edits=[edit])
    stepper = make_engine(engine, model, (), num_devices=1)

    def run(qpos, qvel):
        def forces(state):
            context = dataclasses.replace(make_context(), model=model, physics=state)
            return contact_forces(context, BODIES, GEOMS), hardest_contacts(context, GEOMS)

        start = stepper.forward(dataclasses.replace(model.start(), qpos=qpos, qvel=qvel), jnp.zeros(0), {})
        step = lambda state, _: ((state := stepper.substeps(state, jnp.zeros(0), {})), forces(state))
        return forces(start), jax.lax.scan(step, start, None, length=3)[1]

    qvel = jnp.zeros(model.mj_model.nv).at[jnp.array([0, 1, 6])].set(jnp.array([0.5, 0.2, -0.5]))
    return jax.jit(run)(jnp.asarray(model.mj_model.qpos0, jnp.float32), qvel)


@pytest.mark.long
def test_contact_forces_when_parts_touch_are_the_same_on_both_engines():
    first, second = (forces_in_the_yard(engine) for engine in BOTH)
    # The hardest contact's sign, that of which of its geoms comes first, is left open.
    flat = lambda forces: [np.abs(x) for x in jax.tree.leaves(forces)]
    for x, y in zip(flat(first), flat(second), strict=True):
        # Friction is what is left over of large forces: compared with these.
        np.testing.assert_allclose(x, y, rtol=1e-2, atol=1e-2 * np.max(x))


@pytest.mark.parametrize("engine", ["mujoco", MJX])
def test_contact_forces_when_parts_touch_are_there_and_not_where_they_do_not(engine):
    (force_p, contact_g3), _ = forces_in_the_yard(engine)
    ball, crate, far, ball_geom, crate_geom, lid, far_geom = force_p
    assert min(ball, crate, ball_geom, crate_geom) > 1.0
    assert (far, lid, far_geom) == (0, 0, 0)
    # The ball is touched by the floor and the crate, of which one is the harder.
    assert ball > ball_geom > 1.0
    np.testing.assert_array_equal(contact_g3[2:], 0.0)
