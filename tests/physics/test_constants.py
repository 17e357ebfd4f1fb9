"""Model fields that differ between simulations, and what native MuJoCo derives from them."""

import copy
import dataclasses
import operator

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from mujoco.batch import MODEL_FIELDS

from ksim.errors import ConfigError
from ksim.physics import constants
from ksim.physics.constants import BatchConstants, check_overrides, check_simple_bodies
from ksim.physics.contact_sizes import ContactSizes
from ksim.physics.mjx_support import mjx
from ksim.physics.model import PhysicsModel
from ksim.physics.mujoco import MujocoEngine
from ksim.physics.warp import WarpEngine
from tests.support.engines import WARP
from tests.support.scale import scale

# The trunk's geoms share its frames; the box moves nothing else.
ROBOT = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="trunk" pos="0 0 .5"><freejoint/>
      <geom name="trunk" type="box" size=".1 .1 .1"/>
      <geom name="left" type="sphere" size=".02" pos=".3 .1 0"/>
      <geom name="right" type="sphere" size=".02" pos=".3 -.1 0"/>
      <site name="imu"/>
      <body name="leg" pos="0 0 -.1">
        <joint name="hip" axis="0 1 0"/>
        <geom name="leg" type="capsule" size=".03" fromto="0 0 0 0 0 -.2"/>
      </body>
    </body>
    <body name="box" pos="2 0 .5"><freejoint/><geom name="box" type="box" size=".1 .2 .3"/></body>
  </worldbody>
  <actuator><motor joint="hip"/></actuator>
  <sensor><accelerometer site="imu"/><subtreecom body="trunk"/></sensor>
</mujoco>
"""
MODEL = mujoco.MjModel.from_xml_string(ROBOT)
QVEL, CTRL = np.linspace(-1.0, 1.0, MODEL.nv), [2.0]
CHANGES = {
    "body_ipos": lambda x: np.array(x) + np.array([[0, 0, 0], [0.05, 0, 0.02], [0, 0.03, 0], [0, 0, 0]]),
    "body_iquat": lambda x: np.where([[0], [1], [1], [0]], [0.8, 0.6, 0, 0], x),
    "body_mass": lambda x: x * 2,
    "body_inertia": lambda x: x * [3, 2, 1],
    "dof_armature": lambda x: x + 0.5,
    "geom_pos": lambda x: x - np.array([0.0, 1.0, 1.0, 1.0, 1.0, 0.0])[:, None] * [0, 0, 0.45],
    "geom_size": lambda x: x * 3,
    "geom_margin": lambda x: x + 0.5,
    "site_pos": lambda x: x + 0.1,
    "site_quat": lambda x: x * 0 + [0.8, 0, 0.6, 0],
}


def as_float32(name):
    return np.asarray(operator.attrgetter(name)(MODEL), np.float32)


def in_plain_mujoco(overrides):
    """Sensors and velocities after 10 steps of a model with these numbers, all its constants up to date."""
    model = copy.copy(MODEL)
    for name, x in overrides.items():
        operator.attrgetter(name)(model)[:] = x
    constants.derive_constants(model)
    data = mujoco.MjData(model)
    data.qvel, data.ctrl = QVEL, CTRL
    mujoco.mj_step(model, data, nstep=10)
    return np.concatenate([data.sensordata, data.qvel])


@pytest.fixture(scope="module", params=["mujoco", *scale([], [WARP])])
def engine(request):
    model = PhysicsModel(MODEL, 10 * MODEL.opt.timestep)
    if request.param == "mujoco":
        return MujocoEngine(model)
    return WarpEngine(model, sizes=ContactSizes(contacts=32, constraints=128))


def stepped(engine, overrides):
    derived = {"sensordata": jnp.zeros(MODEL.nsensordata)}
    start = dataclasses.replace(engine.model.start(), qvel=jnp.asarray(QVEL, jnp.float32), derived=derived)
    end = jax.vmap(lambda overrides: engine.substeps(start, jnp.array(CTRL), overrides))(overrides)
    return np.concatenate([end.derived["sensordata"], end.qvel], axis=1)


@pytest.mark.parametrize("name", CHANGES)
def test_override_moves_the_robot_as_if_the_model_had_its_numbers_and_its_constants(engine, name):
    own, changed = as_float32(name), np.asarray(CHANGES[name](as_float32(name)), np.float32)
    expected = [in_plain_mujoco({name: x}) for x in (own, changed, own)]
    found = stepped(engine, {name: jnp.stack([own, changed, own])})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(expected[1] - expected[0]).max() > 1e-3
    # The next call of the same batch finds the fields the other way round.
    back = stepped(engine, {name: jnp.stack([changed, own, changed])})
    np.testing.assert_allclose(back, [expected[i] for i in (1, 0, 1)], rtol=1e-4, atol=1e-4)


def test_dry_friction_of_a_joint_compiled_without_any_changes_nothing_as_in_mjx(engine):
    none = as_float32("dof_frictionloss")
    found = stepped(engine, {"dof_frictionloss": jnp.stack([none, none + 5])})
    np.testing.assert_array_equal(found[1], found[0])


def test_constants_that_both_engines_read_keep_the_values_of_the_compiled_model():
    batch = mujoco.batch.Batch(MODEL, 2, 1)
    derived = BatchConstants(batch, ["body_mass"])
    batch.expand("body_mass")[1] *= 2
    assert derived.update()
    assert not derived.update()
    np.testing.assert_allclose(batch.expand("body_subtreemass")[1], 2 * MODEL.body_subtreemass)
    for name in ("body_invweight0", "dof_invweight0"):
        np.testing.assert_array_equal(batch.expand(name), np.stack([getattr(MODEL, name)] * 2))


def test_fields_of_mjx_models_are_overridable_or_refused_and_those_that_mj_set_const_reads_are_known():
    traced = {x.name for x in dataclasses.fields(mjx.Model) if "jax" in str(x.type).lower()} & MODEL_FIELDS
    known = constants.OVERRIDABLE | constants.LOOKS | constants._DERIVED.keys()
    # MJX leaves out what is not linear, and takes the margins of limits otherwise.
    unread = {"jnt_margin", "jnt_stiffnesspoly", "dof_dampingpoly", "tendon_stiffnesspoly", "tendon_dampingpoly"}
    assert traced - known == unread | {"actuator_cranklength"}
    read = {*mujoco.MjModel._setconst_inputs} & constants.OVERRIDABLE
    assert read - {*constants._DERIVED_INPUTS} == {"cam_pos", "cam_quat", "eq_data", "actuator_gear"}  # kept constants


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("geom_rbound", r"MuJoCo derives it. Change geom_size"),
        ("body_sameframe", r"MuJoCo derives it. Change body_ipos"),
        ("geom_contype", r"not every engine reads it anew"),
        ("dof_dampingpoly", r"not every engine reads it anew"),
        ("geom_rgba", r"it changes pictures"),
        ("body_gravcomp", r"no body of the compiled model has any"),
        ("opt.density", r"the compiled model has no fluid"),
        ("body_maas", r"no field 'body_maas'.*'body_mass'"),
    ],
)
def test_override_that_not_every_engine_follows_is_refused_by_name(name, words):
    with pytest.raises(ConfigError, match=words):
        check_overrides(MODEL, [name])


def test_frame_of_a_simple_body_is_refused_and_that_of_another_is_not():
    moved = as_float32("body_ipos")[None] + np.array([0.0, 0.1, 0.0, 0.0])[:, None]
    check_simple_bodies(MODEL, {"body_ipos": moved})
    with pytest.raises(ConfigError, match=r"body_ipos of body 'box' cannot be overridden: the body moves nothing else"):
        check_simple_bodies(MODEL, {"body_ipos": moved + 0.1})
