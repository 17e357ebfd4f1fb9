"""Starts of episodes: a keyframe's whole state, and the states after resets, compared with plain MuJoCo."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import resets
from ksim.physics import compile_model
from ksim.physics.select import make_engine
from tests.support.engines import ENGINES, MJX
from tests.support.starts import starting_environment

SERVO = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body>
      <joint name="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
    </body>
  </worldbody>
  <actuator><position name="servo" joint="hinge" timeconst=".2" kp="20" kv="1"/></actuator>
  <keyframe>
    <key name="home" qpos="1.5" act="1.5"/>
    <key name="moving" qpos="0.5" qvel="-1" act="0.2"/>
  </keyframe>
</mujoco>
"""
WELDED = """
<mujoco>
  <worldbody>
    <body name="hand" mocap="true" pos="1 0 1"/>
    <body name="box" pos="1 0 1">
      <freejoint/>
      <geom size=".1" mass="1"/>
      <body pos="0 0 .1">
        <joint name="hinge"/>
        <geom size=".02" mass=".01"/>
      </body>
    </body>
  </worldbody>
  <equality><weld body1="hand" body2="box" relpose="0 0 0 1 0 0 0"/></equality>
  <actuator><motor name="motor" joint="hinge" ctrlrange="-1 1"/></actuator>
  <keyframe>
    <key name="home" mpos="2 0 1" mquat=".6 0 0 .8"/>
    <key name="low" mpos="1 0 .5"/>
  </keyframe>
</mujoco>
"""


class Activated(resets.AbstractReset):
    """A reset of a user's own."""

    def __call__(self, context):
        return dataclasses.replace(context.physics, act=jnp.array([0.7]))


class HandTo(resets.AbstractReset):
    """Another, which puts a mocap body where chance wants it."""

    def __call__(self, context):
        extra = context.physics.extra
        position_3 = jnp.array([1.0, 0.0, 1.0]) + 0.3 * jax.random.uniform(context.key, (3,))
        return dataclasses.replace(context.physics, extra=extra | {"mocap_pos": position_3[None]})


@functools.cache
def model_of(mjcf):
    return compile_model(mujoco.MjSpec.from_string(mjcf), dt=0.004, ctrl_dt=0.02)


def make_environment(engine, mjcf, *terms):
    return starting_environment(engine, model_of(mjcf), terms)


def episode(engine, mjcf, *terms, steps=50):
    """The physics at the start and at the end of an episode under actions of 0."""
    env = make_environment(engine, mjcf, *terms)

    def run(key):
        start = env.reset(key)
        step = lambda state, _: (env.step(state, jnp.zeros(1)), None)
        return start.inner.physics, jax.lax.scan(step, start, length=steps)[0].inner.physics

    return jax.jit(run)(jax.random.key(0))


def plain_mujoco(mjcf, key=0, steps=50, ctrl=0.0, **changes):
    """The same by `mj_step`, from a keyframe with changes."""
    model = model_of(mjcf).mj_model
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, key)
    for name, value in changes.items():
        getattr(data, name)[:] = value
    data.ctrl[:] = ctrl
    mujoco.mj_step(model, data, nstep=steps * model_of(mjcf).decimation)
    return data


@pytest.mark.parametrize("engine", ENGINES)
def test_servo_with_an_activation_when_it_starts_from_its_keyframe_stays_there(engine):
    start, end = episode(engine, SERVO)
    np.testing.assert_allclose((start.qpos, start.act), 1.5, rtol=1e-6)
    np.testing.assert_allclose((end.qpos, end.act), 1.5, rtol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("term", "key", "changes"),
    [(resets.ToKeyframe(keyframes=("moving",)), 1, {}), (Activated(), 0, {"act": 0.7})],
    ids=["keyframe", "own"],
)
def test_activation_that_a_reset_sets_is_that_of_the_episode(engine, term, key, changes):
    start, end = episode(engine, SERVO, term, steps=10)
    # The target of an action of 0 is the first keyframe's position.
    expected = plain_mujoco(SERVO, key, steps=10, ctrl=1.5, **changes)
    assert start.act[0] == np.float32({0: 0.7, 1: 0.2}[key])
    np.testing.assert_allclose(end.qpos, expected.qpos, atol=1e-4)
    np.testing.assert_allclose(end.act, expected.act, atol=1e-4)


@pytest.mark.parametrize("engine", ["mujoco", MJX])
def test_body_that_is_welded_to_a_mocap_body_goes_where_the_keyframe_has_it(engine):
    start, end = episode(engine, WELDED)
    np.testing.assert_allclose(start.extra["mocap_pos"], [[2, 0, 1]])
    np.testing.assert_allclose(start.extra["mocap_quat"], [[0.6, 0, 0, 0.8]], rtol=1e-6)
    assert abs(end.qpos[0] - 2.0) < 0.01
    expected = plain_mujoco(WELDED)
    np.testing.assert_allclose(end.qpos, expected.qpos, atol=2e-3)


def test_mocap_body_that_a_reset_moves_is_elsewhere_in_every_env():
    env = make_environment("mujoco", WELDED, resets.ToKeyframe(keyframes=("low",)), HandTo())

    def run(key):
        start = env.reset(key)
        return jax.lax.scan(lambda state, _: (env.step(state, jnp.zeros(1)), None), start, length=100)[0]

    physics = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3)).inner.physics
    hand_e3 = physics.extra["mocap_pos"][:, 0]
    assert np.ptp(hand_e3, axis=0).min() > 0.01
    np.testing.assert_allclose(physics.qpos[:, :3], hand_e3, atol=0.01)


def test_robot_without_mocap_bodies_has_the_state_that_it_always_had():
    # Checkpoints name every array of a state.
    assert jax.tree.leaves(model_of(SERVO).start().extra) == []


YIELDING = SERVO.replace('axis="0 1 0"', 'axis="0 1 0" stiffness="20" springyield=".05" damping="1"').replace(
    "kp=", "kv='0' forcerange='-.1 .1' kp="
).replace(' kv="1"', "").replace('act="1.5"', 'act="1.5" plastic="0.3"')  # fmt: skip


def test_spring_that_yields_goes_on_from_where_it_was():
    start, end = episode("mujoco", YIELDING)
    expected = plain_mujoco(YIELDING, ctrl=1.5)
    np.testing.assert_allclose(start.extra["plastic"], [0.3], rtol=1e-6)
    assert abs(expected.plastic[0] - 0.3) > 0.1  # it does yield here
    np.testing.assert_allclose(end.extra["plastic"], expected.plastic, atol=1e-4)
    np.testing.assert_allclose(end.qpos, expected.qpos, atol=1e-4)


def test_spring_that_yields_is_refused_by_mjx_with_what_to_do():
    with pytest.raises(ConfigError, match=r"joint 'hinge' has springyield.*take it out.*engine=mujoco"):
        make_engine("mjx", model_of(YIELDING))


class Misshapen(resets.AbstractReset):
    """A reset with one activation too many."""

    def __call__(self, context):
        return dataclasses.replace(context.physics, act=jnp.zeros(2))


def test_reset_that_returns_a_state_of_another_shape_is_an_error_that_names_both():
    env = make_environment("mujoco", SERVO, Misshapen())
    with pytest.raises(ConfigError, match=r"Reset '0' .*physics\.act must have shape \(1,\), but has \(2,\)"):
        env.reset(jax.random.key(0))
