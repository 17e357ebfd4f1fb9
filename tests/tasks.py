"""Tasks for tests: the point mass of the examples, and a small biped."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import ksim
from examples.point_mass import PointMassConfig, PointMassTask
from ksim.config import field
from ksim.mdp import commands, events, randomizers, rewards, terminations
from ksim.ppo.train_step import DEVICE_TIMES
from tests.robots import ACTUATORS, biped_spec

MESSAGE = "ignore:Only 1 device detected"
WITHOUT_REPORTS = {"eval_at_end": False, "video": False, "plots": False}


def point_mass_task(**options: Any) -> PointMassTask:
    small = {"num_envs": 16, "rollout_length": 8, "actor_sizes": [8], "critic_sizes": [8], "tensorboard": False}
    return PointMassTask(PointMassConfig(**(small | WITHOUT_REPORTS | options)))


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class BipedConfig(ksim.DistributedPPOConfig):
    num_envs: int = 8
    rollout_length: int = 6
    actor_sizes: list[int] = field([8], help="")
    critic_sizes: list[int] = field([8], help="")
    tensorboard: bool = False
    eval_num_envs: int = 3
    eval_at_end: bool = False
    video: bool = False
    plots: bool = False


class BipedTask(ksim.DistributedPPOTask[BipedConfig]):
    """A robot and its rewards; all else is left to the defaults."""

    def get_robot(self):
        return biped_spec()

    def get_actuators(self):
        return ACTUATORS

    def get_rewards(self, physics_model):
        return [rewards.Alive(), rewards.TrackLinearVelocity(command="velocity")]

    def get_commands(self, physics_model):
        return {"velocity": commands.VelocityCommand()}

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=0.2), terminations.BaseTooLow(height=0.2)]

    def get_events(self, physics_model):
        return [events.PushVelocity(interval_s=(0.05, 0.1))]

    def get_randomizers(self, physics_model):
        return [randomizers.RandomFriction(), randomizers.RandomBodyMass(body="trunk")]


def train_iterations(task: Any, num_iterations: int) -> tuple[Any, list[dict[str, float]]]:
    """The state after so many iterations, on the task's devices, and the metrics of each."""
    task.check()
    state = task.layout.place(task.initial_state())
    step = task.layout.compile(task.make_train_step(task.layout.axis_name), state)
    history = []
    for _ in range(num_iterations):
        state, metrics = step(state)
        history.append({name: float(x) for name, x in task.layout.first(metrics).items() if name != DEVICE_TIMES})
    return state, history


def assert_same_parameters(first: Any, second: Any, **tolerance: float) -> None:
    """Compares the parameters and the normalizers of two learners on the host."""
    pick = lambda learner: (learner.params, learner.normalizer)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), **tolerance), pick(first), pick(second)
    )
