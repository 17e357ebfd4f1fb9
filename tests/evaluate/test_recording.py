import dataclasses

import jax
import mujoco
import numpy as np
import pytest

from ksim.evaluate.evaluator import Recorder, episode_key, foot_sensors
from ksim.mdp import commands, curriculum, observations, rewards, terminations
from ksim.policy.load import policy_context
from ksim.rollout.episodes import start_episodes
from tests.support.tasks import BipedConfig, BipedTask


class Task(BipedTask):
    """A biped with more touch sensors than feet, one of them without a name, under a command of a curriculum."""

    def get_robot(self):
        spec = super().get_robot()
        site = spec.sensor("left_touch").objname
        for names in ({"name": "knee_touch"}, {"name": "ksim_touch"}, {}):
            spec.add_sensor(type=mujoco.mjtSensor.mjSENS_TOUCH, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site, **names)
        return spec

    def get_commands(self, physics_model):
        velocity = commands.VelocityCommand(forward=(0.5, 1.0), standing_fraction=0.0)
        return {"velocity": commands.ScaledByLevel(command=velocity, level="speed")}

    def get_curricula(self, physics_model):
        return {"speed": curriculum.LinearCurriculum(end_iteration=10)}


class Unnamed(BipedTask):
    """A biped whose first actuator has no name."""

    def get_robot(self):
        spec = super().get_robot()
        spec.actuators[0].name = ""
        return spec


def feet(task_type):
    env = task_type(BipedConfig(num_devices=1)).environment
    return foot_sensors(env.mdp, env.engine.model)


def test_feet_are_those_of_the_first_term_that_names_touch_sensors():
    class Wrapped(Task):
        def get_rewards(self, physics_model):
            contacts = rewards.FeetAirTime(sensors=("right_touch", "left_touch"), command="velocity")
            return [rewards.Alive(), rewards.Clipped(reward=contacts, low=-1.0, high=1.0)]

    class Observed(Task):
        def get_observations(self, physics_model):
            return [observations.FootContact(sensors=("left_touch",))]

    assert feet(Wrapped) == ["right_touch", "left_touch"]
    assert feet(Observed) == ["left_touch"]


def test_feet_are_all_named_sensors_of_the_robot_where_no_term_names_any():
    assert feet(Task) == ["left_touch", "right_touch", "knee_touch"]


@pytest.mark.long
def test_command_that_a_curriculum_scales_and_named_sensors_are_recorded():
    task = Task(BipedConfig(num_devices=1, eval_num_envs=1))
    recorder = Recorder(task.eval_environment, seed=0, device=policy_context(task).device)
    recording = recorder(task.initial_learner().network, lambda: False)
    assert recording.commanded_velocity.shape == recording.velocity.shape
    assert (recording.commanded_velocity[:, 0] > 0).all()
    assert sorted(recording.touch) == ["knee_touch", "left_touch", "right_touch"]


@pytest.mark.long
def test_episodes_of_several_envs_are_each_as_long_as_they_lasted_and_the_first_is_that_of_one_env():
    class Fast(Task):
        def get_terminations(self, physics_model):
            is_fast = lambda context: context.commands["velocity"][0] > 0.7
            return [terminations.TimeLimit(seconds=0.2), terminations.Custom(is_fast)]

    task = Fast(BipedConfig(num_devices=1))
    env, device, model = task.eval_environment, policy_context(task).device, task.initial_learner().network
    (alone,) = Recorder(env, seed=0, device=device).episodes(model, lambda: False)
    several = Recorder(env, seed=0, device=device, num_envs=8).episodes(model, lambda: False)
    lengths = [len(episode.reward) for episode in several]
    assert lengths == [1 if episode.commanded_velocity[0, 0] > 0.7 else 10 for episode in several]
    assert set(lengths) == {1, 10}
    assert [len(episode.touch["left_touch"]) for episode in several] == lengths
    np.testing.assert_allclose(several[0].qpos, alone.qpos, atol=1e-5)


def test_actions_of_an_episode_are_those_that_the_policy_took_by_the_names_of_what_they_drive():
    task = Unnamed(BipedConfig(num_devices=1, eval_num_envs=1))
    model = task.initial_learner().network
    recording = Recorder(task.eval_environment, seed=0, device=policy_context(task).device)(model, lambda: False)
    episodes = start_episodes(task.eval_environment, model, episode_key(0), 1)
    output, _ = model(jax.tree.map(lambda x: x[0], episodes.env_state.obs), model.initial_carry())
    np.testing.assert_allclose(recording.action[0], output.distribution.mode(), rtol=1e-4, atol=1e-5)
    assert recording.action.shape == (len(recording.reward), len(recording.actions))
    first, *others = task.get_robot().actuators
    joint = f"{first.target}"
    assert list(recording.actions) == [joint, *(actuator.name for actuator in others)]
    np.testing.assert_array_equal(recording.actions[joint], recording.action[:, 0])
    numbered = dataclasses.replace(recording, model=None)
    assert list(numbered.actions) == [str(i) for i in range(recording.action.shape[1])]
