"""Native MuJoCo in place of MJX."""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from mujoco import mjx

from ksim.envs.native import NativePhysics
from ksim.envs.task import Made, WrappedConfig, WrappedTask
from ksim.envs.wrapped import WrappedEnvironment
from ksim.errors import ConfigError
from tests.envs.test_wrapped import State

pytestmark = pytest.mark.filterwarnings("ignore:Only 1 device detected")

PENDULUM = """
<mujoco>
  <worldbody>
    <body pos="0 0 1">
      <joint name="hinge" axis="0 1 0" damping=".1"/>
      <geom type="capsule" size=".05" fromto="0 0 0 .5 0 0"/>
    </body>
    <body pos="1 0 1"><freejoint/> <geom type="box" size=".1 .2 .3"/></body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
</mujoco>
"""


@pytest.fixture(scope="module")
def models():
    mj_model = mujoco.MjModel.from_xml_string(PENDULUM)
    return mj_model, mjx.put_model(mj_model, impl="jax")


def stepped(model, mj_model):
    """Position and velocity after three steps by whatever `mjx.step` is, from a quaternion that is not of norm 1."""

    def run():
        data = mjx.make_data(mj_model, impl="jax").replace(ctrl=jnp.ones(1))
        data = data.replace(qpos=data.qpos.at[4:].multiply(2.0), qvel=data.qvel + 1.0)
        data, _ = jax.lax.scan(lambda data, _: (mjx.step(model, data), None), data, length=3)
        return data.qpos, data.qvel

    return jax.jit(run)()


def check_same(native, model, mj_model):
    expected = stepped(model, mj_model)
    with native.instead_of_mjx():
        found = stepped(model, mj_model)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)
    return found


@pytest.mark.long
def test_model_that_an_environment_changes_is_stepped_with_its_changes(models):
    mj_model, model = models
    native = NativePhysics(mj_model, model, 1)
    own = check_same(native, model, mj_model)
    heavier = {"body_mass": model.body_mass * 3, "body_inertia": model.body_inertia * jnp.array([3.0, 1.0, 2.0])}
    changed = check_same(native, model.tree_replace({**heavier, "opt.gravity": jnp.array([0.0, 0.0, -5.0])}), mj_model)
    assert abs(own[1][0] - changed[1][0]) > 0.01  # of the pendulum
    assert abs(own[1][3] - changed[1][3]) > 0.01  # of the box, which falls


def test_change_of_a_model_that_native_mujoco_cannot_make_is_refused(models):
    mj_model, model = models
    native = NativePhysics(mj_model, model, 1)
    changed = model.tree_replace({"mesh_vert": jnp.zeros_like(model.mesh_vert)})
    with native.instead_of_mjx(), pytest.raises(ConfigError, match="the environment changes mesh_vert of its model"):
        stepped(changed, mj_model)


@pytest.mark.long
def test_options_of_the_solver_that_mjx_was_given_hold(models):
    mj_model, model = models
    weightless = model.tree_replace({"opt.timestep": jnp.float32(0.004), "opt.gravity": jnp.zeros(3)})
    found = check_same(NativePhysics(mj_model, weightless, 1), weightless, mj_model)
    assert abs(found[0][3] - 1.0 - 3 * 0.004) < 1e-5  # neither falls nor steps of 2 ms


BALL = """
<mujoco>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .1"><joint name="up" type="slide" axis="0 0 1"/><geom size=".1"/></body>
  </worldbody>
  <actuator><motor joint="up"/></actuator>
</mujoco>
"""


class Ball:
    """A ball on the ground. `read` makes of its data what it also observes; `later` observes that a step later."""

    action_size = 1

    def __init__(self, read, *, later=False):
        self.mj_model = mujoco.MjModel.from_xml_string(BALL)
        self.mjx_model, self.read, self.later = mjx.put_model(self.mj_model, impl="jax"), read, later

    @property
    def unwrapped(self):
        return self

    def reset(self, rng):
        data = mjx.forward(self.mjx_model, mjx.make_data(self.mj_model, impl="jax"))
        info = {"read": 0.0 * data.qpos[0]}
        return State(data, self.observation(data, info), jnp.zeros(()), jnp.zeros(()), {}, info)

    def observation(self, data, info):
        return jnp.append(data.qpos, info["read"] if self.later else self.read(data))

    def step(self, state, action):
        data = mjx.step(self.mjx_model, state.data.replace(ctrl=action))
        obs = self.observation(data, state.info)
        return dataclasses.replace(state, data=data, obs=obs, info={"read": self.read(data)})


class BallTask(WrappedTask[WrappedConfig]):
    def make(self, config):
        env = Ball(lambda data: jnp.float32(data._impl.contact.geom[0, 0]))
        return Made(env, 0.002, 0.002, mj_model=env.mj_model, mjx_model=env.mjx_model)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("read", "missed"),
    [
        (lambda data: data._impl.contact.dist[0], ["contact.dist"]),
        (lambda data: (data._impl.contact.dist[0] < 0).astype(float), ["contact.dist"]),
        (lambda data: jnp.float32(data._impl.contact.geom[0, 0]), ["contact.geom"]),
        (lambda data: data.qacc[0] + data.site_xpos.sum() + data.qfrc_actuator[0], []),
    ],
    ids=["number", "condition", "whole number", "nothing"],
)
def test_what_an_environment_reads_that_native_mujoco_does_not_give_is_found_by_name(read, missed, later):
    ball = Ball(read, later=later)
    native = NativePhysics(ball.mj_model, ball.mjx_model, 1)
    env = WrappedEnvironment(env=ball, actor_obs=None, critic_obs=None, episode_length=10, native=native)
    assert env.fields_missed() == missed


def test_environment_that_reads_it_is_refused_natively():
    task = BallTask("ball", WrappedConfig(engine="mujoco", num_envs=8, num_devices=1))
    with pytest.raises(ConfigError, match=r"ball reads contact\.geom of mjx\.Data, .* set engine=mjx"):
        task.check()
