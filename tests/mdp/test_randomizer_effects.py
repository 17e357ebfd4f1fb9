"""Randomizers that could change nothing of a simulation, which are errors that say what they found."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import randomizers
from ksim.physics import compile_model
from ksim.physics.contacts import colliding_geoms
from ksim.physics.mujoco import MujocoEngine
from tests.support.contexts import make_context

# A sledge on a slope of 30 degrees, on two runners, beside a block that is fixed.
SLEDGE = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="50 50 .1" euler="0 30 0" {floor}/>
    <body name="block" pos="0 5 5"><geom name="block" size=".1" contype="0" conaffinity="0"/></body>
    <body name="sledge" pos=".05 0 .0867" euler="0 30 0"><freejoint/>
      <geom name="hull" type="box" size=".2 .1 .05" mass="5" contype="0" conaffinity="0"/>
      <geom name="left" type="capsule" size=".05" fromto="-.3 .2 -.05 .3 .2 -.05" {foot}/>
      <geom name="right" type="capsule" size=".05" fromto="-.3 -.2 -.05 .3 -.2 -.05" {foot}/>
      <body name="hook"><joint name="hook" axis="0 1 0"/><geom name="hook" size=".01" {hook}/></body>
      <site name="bare"/>
    </body>
  </worldbody>
  <contact>{pairs}</contact>
  <actuator><motor joint="hook"/></actuator>
</mujoco>
"""
OFF = 'contype="0" conaffinity="0"'
PAIRS = '<pair geom1="left" geom2="floor"/><pair geom1="right" geom2="floor"/>'


@functools.cache
def sledge(floor="", foot="", hook=OFF, pairs="", flags=""):
    xml = SLEDGE.format(floor=floor, foot=foot, hook=hook, pairs=pairs)
    spec = mujoco.MjSpec.from_string(xml.replace("<worldbody>", f"<option>{flags}</option><worldbody>", 1))
    return compile_model(spec, dt=0.004, ctrl_dt=0.2)


def context(model, seed=0):
    return dataclasses.replace(make_context(key=jax.random.key(seed)), model=model, physics=model.start())


FEET = ("left", "right")


@pytest.mark.parametrize(
    ("model", "geoms"),
    [
        (sledge(), None), (sledge(foot=OFF, pairs=PAIRS), None), (sledge(foot=OFF, pairs=PAIRS), FEET),
        (sledge(foot='priority="1"'), FEET), (sledge(floor='friction="0"'), FEET),
    ],
    ids=["contact bits", "pairs", "pairs of the feet", "priority", "larger friction"],
)  # fmt: skip
def test_random_friction_stops_or_frees_a_sledge_on_a_slope(model, geoms):
    # It slides where the friction is below tan 30 = 0.58, and else stays.
    engine = MujocoEngine(model)

    def speed(friction):
        term = randomizers.RandomFriction(friction=(friction, friction), geoms=geoms)
        overrides = term(context(model))
        return float(jnp.linalg.norm(engine.substeps(model.start(), jnp.zeros(1), overrides).qvel[:3]))

    assert speed(0.1) > 0.3
    assert speed(1.5) < 0.1


@pytest.mark.parametrize(
    ("term", "model", "words"),
    [
        (randomizers.RandomFriction(geoms=("floor",)), sledge(foot='priority="1"'), r"of 'floor' changes no contact"),
        (randomizers.RandomFriction(geoms=("hull",)), sledge(), r"of 'hull' changes no contact.*collides with nothing"),
        (randomizers.RandomFriction(friction=(0.1, 0.9), geoms=FEET), sledge(), r"at most 0\.9, decide"),
        (randomizers.RandomFriction(), sledge(foot=OFF), r"of any geom changes no contact"),
        (randomizers.RandomFriction(), sledge(floor='condim="1"', foot='condim="1"'), r"changes no contact"),
        (randomizers.RandomArmature(), sledge(), r"RandomArmature multiplies the armature, which is 0 at all joints"),
        (randomizers.RandomDamping(joints=("hook",)), sledge(), r"multiplies the damping, which is 0 at 'hook'"),
        (randomizers.RandomActuatorGains(), sledge(), r"no actuator is a position servo \(found: force\)"),
        (randomizers.RandomJointStiffness(), sledge(), r"needs a spring in any joint"),
        (randomizers.RandomImuAlignment(site="bare"), sledge(), r"site 'bare' changes nothing: no sensor is there"),
        (randomizers.RandomBodyMass(body="block", added=(0.0, 1.0)), sledge(), r"'block' cannot move"),
        (randomizers.RandomMassFactor(bodies=("sledge", "block")), sledge(), r"'block' cannot move"),
        (randomizers.RandomGravity(), sledge(flags='<flag gravity="disable"/>'), r"RandomGravity changes nothing"),
    ],
)
def test_randomizer_that_can_change_nothing_is_an_error_that_names_what_it_found(term, model, words):
    with pytest.raises(ConfigError, match=words):
        term(context(model))


def test_geoms_that_can_touch_are_those_that_mujoco_lets_touch():
    # The hook is the sledge's child, whose geoms it does not touch; the block has no contact bits.
    model = sledge(hook="").mj_model
    name = lambda i: model.geom(int(i)).name
    found = {frozenset(map(name, pair)) for pair in colliding_geoms(model)}
    assert found == {frozenset({"floor", geom}) for geom in ("left", "right", "hook")}
    data = mujoco.MjData(model)
    touching = set()
    for _ in range(200):
        mujoco.mj_step(model, data)
        touching |= {frozenset(map(name, geoms)) for geoms in np.array(data.contact.geom).reshape(-1, 2)}
    assert touching <= found


def test_imu_alignment_without_a_sensor_is_fine_where_a_term_reads_orientations():
    model = sledge()
    physics = dataclasses.replace(model.start(), derived={"xquat": jnp.zeros((model.mj_model.nbody, 4))})
    drawn = randomizers.RandomImuAlignment(site="bare")(dataclasses.replace(context(model), physics=physics))
    assert list(drawn) == ["site_quat"]
