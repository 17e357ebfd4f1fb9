"""Randomizers of a body that moves by itself, whose inertia native MuJoCo takes from the compiled model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import randomizers
from ksim.mdp.randomizers import current_field
from ksim.physics import compile_model
from ksim.physics.select import make_engine
from tests.support.contexts import make_context
from tests.support.engines import BOTH
from tests.support.robots import ACTUATORS

# Slides alone, a hinge through the centre of mass, and a puck that nothing holds.
CART = """
<mujoco>
  <worldbody>
    <body name="cart" pos="0 0 1">
      <joint name="x" type="slide" axis="1 0 0" armature=".5" damping=".3" stiffness="2" frictionloss=".1"/>
      <joint name="z" type="slide" axis="0 0 1" armature=".2" damping=".1" stiffness="2" frictionloss=".1"/>
      <geom name="cart" type="box" size=".1 .1 .1" mass="1"/>
      <site name="imu"/>
    </body>
    <body name="wheel" pos="0 1 1">
      <joint name="axle" axis="0 1 0" armature=".02" damping=".1" stiffness="2" frictionloss=".01"/>
      <geom type="box" size=".1 .2 .3" mass="1"/>
    </body>
    <body name="puck" pos="0 2 1"><freejoint/><geom type="box" size=".1 .2 .3" mass="1"/></body>
  </worldbody>
  <actuator>
    <motor joint="x" name="x" forcerange="-20 20"/>
    <motor joint="z" name="z" forcerange="-20 20"/>
    <motor joint="axle" name="axle" forcerange="-2 2"/>
  </actuator>
  <sensor><accelerometer name="imu" site="imu"/></sensor>
</mujoco>
"""
JOINTS = ("x", "z", "axle")
CTRL = jnp.array([0.2, 0.4, -0.3])
CASES = {
    "compiled": None,
    "armature": randomizers.RandomArmature(factor=(3.0, 5.0)),
    "damping": randomizers.RandomDamping(factor=(3.0, 5.0)),
    "friction": randomizers.RandomJointFriction(friction=(0.3, 0.5)),
    "stiffness": randomizers.RandomJointStiffness(factor=(3.0, 5.0)),
    "zero": randomizers.RandomJointZero(max_offset=0.3),
    "gains": randomizers.RandomActuatorGains(kp_factor=(0.3, 0.5)),
    "strength": randomizers.RandomMotorStrength(factor=(0.1, 0.2)),
    "gravity": randomizers.RandomGravity(magnitude=3.0),
    "mass": randomizers.RandomBodyMass(body="cart", added=(0.5, 1.0)),
    "mass factor": randomizers.RandomMassFactor(bodies=("wheel",), factor=(3.0, 5.0)),
    "inertia": randomizers.RandomInertia(body="wheel", factor=(3.0, 5.0)),
}


def compiled_cart(armature_j=None):
    spec = mujoco.MjSpec.from_string(CART)
    for joint, armature in zip(JOINTS, () if armature_j is None else armature_j, strict=False):
        spec.joint(joint).armature = armature
    return compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[ACTUATORS.edit_spec])


@functools.cache
def cart():
    model = compiled_cart()
    assert model.mj_model.body_simple[1:].all()
    return model


def context():
    return dataclasses.replace(make_context(key=jax.random.key(1)), model=cart(), physics=cart().start())


@functools.cache
def whole_overrides():
    """For each case all fields that any case changes, so that one program serves all."""
    drawn = {case: term(context()) if term else {} for case, term in CASES.items()}
    fields = sorted({name for overrides in drawn.values() for name in overrides})
    compiled = {name: current_field(context(), name) for name in fields}
    return jax.tree.map(lambda *x: jnp.stack(x), *[compiled | overrides for overrides in drawn.values()])


@functools.cache
def motion(engine_name):
    """Velocities after one control step, by case."""
    engine = make_engine(engine_name, cart())

    def step(overrides):
        return engine.substeps(engine.forward(cart().start(), CTRL, overrides), CTRL, overrides).qvel

    qvel = jax.jit(jax.vmap(step), compiler_options={"xla_backend_optimization_level": 0})(whole_overrides())
    return dict(zip(CASES, np.asarray(qvel), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_both_engines_move_a_simple_body_alike_under_each_randomizer(case):
    native, mjx = (motion(engine)[case] for engine in BOTH)
    np.testing.assert_allclose(native, mjx, rtol=1e-4, atol=1e-5)
    assert case == "compiled" or np.abs(native - motion("mujoco")["compiled"]).max() > 1e-3


def test_armature_of_a_simple_body_is_that_of_a_model_compiled_with_it():
    armature_v = whole_overrides()["dof_armature"][list(CASES).index("armature")]
    model = compiled_cart(armature_v[:3].tolist()).mj_model
    data = mujoco.MjData(model)
    data.ctrl = CTRL
    mujoco.mj_step(model, data, nstep=cart().decimation)
    np.testing.assert_allclose(motion("mujoco")["armature"], data.qvel, rtol=1e-3, atol=1e-5)


def test_batch_that_moved_a_heavy_joint_moves_the_next_as_it_is():
    engine = make_engine("mujoco", cart())
    start = engine.forward(cart().start(), CTRL, {})
    step = jax.jit(lambda armature_v: engine.substeps(start, CTRL, {"dof_armature": armature_v}).qvel)
    armature_v = jnp.asarray(cart().mj_model.dof_armature, jnp.float32)
    before = step(armature_v)
    assert np.abs(step(10 * armature_v) - before).max() > 1e-3
    np.testing.assert_array_equal(step(armature_v), before)


def test_centre_of_mass_of_a_simple_body_is_refused():
    with pytest.raises(ConfigError, match=r"Body 'wheel' moves nothing else"):
        randomizers.RandomCenterOfMass(body="wheel")(context())
