"""Robots whose actuators pull tendons, push sites and stick to what they touch, from their file to steps of an env."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import ksim
from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.rollout.mdp_environment import MdpEnvironment
from tests.support.scale import scale
from tests.support.tasks import WITHOUT_REPORTS, train_iterations

ROBOT = """
<mujoco>
  <option timestep="0.005"><flag contact="disable"/></option>
  <worldbody>
    <body name="torso">
      <freejoint/>
      <geom size=".1" mass="1"/>
      <site name="jet"/>
      <body name="leg" pos=".1 0 0">
        <joint name="hip" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 .2 0 0" size=".02" mass=".2"/>
        <body name="foot" pos=".2 0 0">
          <joint name="knee" axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 .2 0 0" size=".02" mass=".2"/>
        </body>
      </body>
    </body>
  </worldbody>
  <tendon><fixed name="cord"><joint joint="hip" coef="1"/><joint joint="knee" coef="-1"/></fixed></tendon>
  <actuator>
    <motor name="pull" tendon="cord" ctrlrange="-1 1" gear="2"/>
    <position name="hold" tendon="cord" kp="5" ctrlrange="-.5 .5"/>
    <motor name="fly" site="jet" gear="0 0 1" ctrlrange="0 30"/>
    <motor name="bend" jointinparent="knee" ctrlrange="-2 2"/>
    {more}
  </actuator>
</mujoco>
"""
ADHESION = '<adhesion name="stick" body="foot" ctrlrange="0 5"/>'
MJX = pytest.param("mjx", "", marks=pytest.mark.long)


def task(engine, more="", terms=()):
    class Task(ksim.PPOTask[ksim.PPOConfig]):
        def get_robot(self):
            return mujoco.MjSpec.from_string(ROBOT.format(more=more))

        def get_rewards(self, physics_model):
            return [rewards.Alive(), *terms]

        def get_resets(self, physics_model):
            return []

    small = {"num_envs": 4, "rollout_length": 4, "actor_sizes": [8], "critic_sizes": [8], "tensorboard": False}
    return Task(ksim.PPOConfig(engine=engine, dt=0.005, ctrl_dt=0.01, **small, **WITHOUT_REPORTS))


@pytest.mark.parametrize(("engine", "more"), [("mujoco", ""), ("mujoco", ADHESION), MJX])
def test_robot_with_actuators_on_tendons_and_sites_moves_as_in_plain_mujoco(engine, more):
    env = task(engine, more).environment
    assert isinstance(env, MdpEnvironment)
    action = np.linspace(-0.8, 0.9, env.action_size)

    @jax.jit
    def run(key):
        actions = jnp.broadcast_to(jnp.asarray(action, jnp.float32), (5, len(action)))
        return jax.lax.scan(lambda state, action: (env.step(state, action), None), env.reset(key), actions)[0]

    state = run(jax.random.key(0))
    model = env.engine.model.mj_model
    data = mujoco.MjData(model)
    low, high = model.actuator_ctrlrange.T
    data.ctrl = low + (action + 1) / 2 * (high - low)
    mujoco.mj_step(model, data, 10)
    np.testing.assert_allclose(state.inner.physics.qpos, data.qpos, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("engine", "more"), [("mujoco", ADHESION), *scale([], [MJX])])
def test_robot_with_actuators_of_every_transmission_trains(engine, more):
    learner = train_iterations(task(engine, more), 1)[0].learner
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(learner.params))


def test_robot_that_sticks_is_refused_by_mjx_with_the_actuators_name():
    with pytest.raises(ConfigError, match=r"actuator 'stick' drives a body \(<adhesion>"):
        task("mjx", ADHESION).check()


def test_term_that_asks_for_the_joint_of_each_actuator_is_an_error_that_names_the_actuator_and_the_fix():
    message = (
        r"'mechanical_power' \(MechanicalPower.*'pull' acts on tendon 'cord'\. Remove the term that needs the joint"
    )
    with pytest.raises(ConfigError, match=message):
        task("mujoco", terms=[rewards.MechanicalPower()]).check()
