"""Tasks for tests: the point mass of the examples, and a small biped."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import chex
import jax
import jax.numpy as jnp
import mujoco

import ksim
from examples.point_mass import PointMass, PointMassConfig, PointMassTask
from ksim.config import field
from ksim.mdp import commands, curriculum, events, noise, observations, randomizers, resets, rewards, terminations
from ksim.train.timing import scalars
from tests.support.robots import ACTUATORS, biped_spec

WITHOUT_REPORTS = {"eval_at_end": False, "video": False, "plots": False}


def point_mass_task(**options: Any) -> PointMassTask:
    small = {"num_envs": 16, "rollout_length": 8, "actor_sizes": [8], "critic_sizes": [8], "tensorboard": False}
    return PointMassTask(PointMassConfig(**(small | WITHOUT_REPORTS | options)))


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class PathwiseConfig(PointMassConfig, ksim.REPPOConfig):
    """Options of the point mass under REPPO."""

    num_envs: int = 16
    rollout_length: int = 8
    actor_sizes: list[int] = field([8], help="")
    critic_sizes: list[int] = field([8], help="")
    tensorboard: bool = False


class PathwiseTask(ksim.REPPOTask[PathwiseConfig], ksim.DistributedPPOTask[PathwiseConfig]):
    """The point mass under REPPO."""

    def get_environment(self, engine: str, num_devices: int) -> ksim.Environment:
        return PointMass()


def pathwise(**options: Any) -> PathwiseTask:
    return PathwiseTask(PathwiseConfig(**(WITHOUT_REPORTS | options)))


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


class Undisturbed:
    """For a task that shares its robot and its world with another simulation: no events, nothing randomized."""

    def get_events(self, physics_model):
        return []

    def get_randomizers(self, physics_model):
        return []


def train_iterations(task: Any, num_iterations: int) -> tuple[Any, list[dict[str, float]]]:
    """The state after so many iterations, on the task's devices, and the metrics of each."""
    task.check()
    state = task.layout.place(task.initial_state())
    step = task.layout.compile(task.make_train_step(task.layout.axis_name), state)
    history = []
    for _ in range(num_iterations):
        state, metrics = step(state)
        history.append(scalars(task.layout.first(metrics)))
    return state, history


def assert_same_parameters(first: Any, second: Any, **tolerance: float) -> None:
    """Compares the parameters and the normalizers of two learners on the host."""
    pick = lambda learner: (learner.params, learner.normalizer)
    chex.assert_trees_all_close(pick(first), pick(second), **tolerance)


CART_POLE = """
<mujoco>
  <option timestep="0.01" integrator="implicitfast"/>
  <worldbody>
    <body name="cart">
      <joint name="rail" type="slide" axis="1 0 0" range="-1 1" damping=".5"/>
      <geom type="box" size=".1 .05 .05" mass="1" contype="0" conaffinity="0"/>
      <body name="pole">
        <joint name="pivot" axis="0 1 0" range="-90 90" damping=".01"/>
        <geom type="capsule" fromto="0 0 0 0 0 .5" size=".02" mass=".2" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="rail" joint="rail" ctrlrange="-8 8"/>
    <motor name="pivot" joint="pivot" ctrlrange="-.2 .2"/>
  </actuator>
</mujoco>
"""


class TrackCart(rewards.AbstractReward):
    """1 when the cart is where it was commanded to be."""

    scale: float = 1.0

    def __call__(self, context):
        return jnp.exp(-jnp.square(context.physics.qpos[0] - context.command("place")[0]) / 0.1)


class PoleFell(terminations.AbstractTermination):
    """The pole leans by more than 0.25 rad."""

    def __call__(self, context):
        return jnp.abs(context.physics.qpos[1]) > 0.25


class Leaning(resets.AbstractReset):
    """The pole leans as far as the level of its env says, by up to 0.02 rad."""

    def __call__(self, context):
        qpos = context.physics.qpos
        return dataclasses.replace(context.physics, qpos=qpos.at[1].set(0.02 * context.level("lean")))


class ByFalls(ksim.AbstractEnvCurriculum):
    """Up by a third unless the episode ends in a fall, which is one down."""

    start: float = 0.0

    def __call__(self, context):
        return jnp.where(context.terminated, -1 / 3, 1 / 3)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class CartPoleConfig(BipedConfig):
    num_envs: int = 32
    rollout_length: int = 12
    num_passes: int = 2
    dt: float = 0.01
    engine: str = "mujoco"
    memory_size: int = 8
    # The logarithm of 1 is 0, of which nothing is a small fraction.
    init_std: float = 0.5
    learning_rate: float = 1e-3
    desired_kl: float | None = 0.002


class CartPoleTask(ksim.DistributedPPOTask[CartPoleConfig]):
    """Whatever can be random or a statistic of many envs, on a robot without a free base or contacts."""

    def get_robot(self):
        return mujoco.MjSpec.from_string(CART_POLE)

    def get_observations(self, physics_model):
        position_noise = noise.Chain((noise.GaussianBias(0.01), noise.GaussianNoise(0.01), noise.DroppedSamples(0.1)))
        noisy = {
            "position": observations.JointPosition(noise=position_noise),
            "velocity": observations.JointVelocity(noise=noise.UniformNoise(0.1)),
            "action": observations.LastAction(),
            "place": observations.CommandValue(command="place"),
        }
        exact = {"position": observations.JointPosition(), "velocity": observations.JointVelocity()}
        return {"actor": noisy, "critic": noisy | exact | {"time_left": observations.TimeLeft(seconds=0.4)}}

    def get_rewards(self, physics_model):
        return [rewards.Alive(), TrackCart(), rewards.ActionRate()]

    def get_commands(self, physics_model):
        place = commands.JointPoseCommand(joints=("rail",), resample_s=(0.1, 0.3))
        return {"place": commands.ScaledByLevel(command=place, level="reach")}

    def get_curricula(self, physics_model):
        return {
            "reach": curriculum.LinearCurriculum(end_iteration=15),
            "balance": curriculum.EpisodeLengthCurriculum(raise_above_s=0.3, lower_below_s=0.25, step=0.05),
            "lean": ByFalls(),
        }

    def get_resets(self, physics_model):
        return [*super().get_resets(physics_model), Leaning()]

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=0.4), PoleFell()]

    def get_events(self, physics_model):
        return [events.PushForce(body="cart", interval_s=(0.1, 0.3), duration_s=0.06, force=(0.0, 8.0))]

    def get_randomizers(self, physics_model):
        return [randomizers.RandomMassFactor(bodies=("cart", "pole")), randomizers.RandomDamping()]
