"""Reaching and balancing, for robots that stand fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import jax
import mujoco

from ksim.config import field
from ksim.errors import ConfigError
from ksim.mdp import commands, rewards, terminations
from ksim.mdp.term import Context
from ksim.physics import AbstractActuators, PhysicsModel
from ksim.robot import FixedRobot, scene
from ksim.task import DistributedPPOConfig, DistributedPPOTask


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class FixedConfig(DistributedPPOConfig):
    """Options of a robot that stands fast."""

    num_envs: int = field(512, least=1, help="environments, over all devices")
    max_iterations: int | None = field(200, least=1, help="stop after this many iterations; null: no limit")
    dt: float = field(0.005, above=0, help="seconds per physics step")
    actor_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the policy")
    critic_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the value function")
    learning_rate: float = field(1e-3, above=0, help="step size of Adam; the initial one if it is adaptive")
    desired_kl: float | None = field(
        0.01, above=0, help="target KL divergence of an adaptive learning rate; null: constant rate"
    )
    entropy_coef: float = field(0.002, help="weight of the entropy bonus")
    init_std: float = field(0.7, above=0, help="initial standard deviation of the policy")
    episode_s: float = field(10.0, above=0, help="time limit of an episode, in seconds")


ConfigT = TypeVar("ConfigT", bound=FixedConfig)


class FixedTask(DistributedPPOTask[ConfigT], Generic[ConfigT]):
    """A robot that stands fast. A subclass of a subclass sets `robot` and defines `get_mjcf`."""

    robot: ClassVar[FixedRobot]
    """The numbers of the robot."""

    def get_mjcf(self) -> str | Path:
        """The robot's file. It stays as it is: `get_robot` changes a copy in memory."""
        raise ConfigError(f"{type(self).__name__} must define get_mjcf, the path of the robot's file.")

    def get_robot(self) -> mujoco.MjSpec:
        numbers, spec = self.robot, scene.load(self.get_mjcf())
        scene.leave_out(spec, numbers.left_out)
        scene.limit_controls(spec)
        scene.add_ground(spec, height=numbers.floor)
        scene.touch_ground_only(spec)  # parts of the robot pass through each other: faster
        scene.add_tip(spec, *numbers.tip)
        if numbers.torque:
            scene.add_motors(spec, numbers.torque)
        if numbers.pose:
            scene.set_pose(spec, numbers.pose)
        return spec

    def get_actuators(self) -> AbstractActuators:
        return self.robot.actuators()

    def get_terminations(self, physics_model: PhysicsModel) -> list[terminations.AbstractTermination]:
        return [terminations.TimeLimit(seconds=self.config.episode_s)]


class ReachTask(FixedTask[ConfigT], Generic[ConfigT]):
    """An arm that learns to reach with its tip for commanded points."""

    def get_robot(self) -> mujoco.MjSpec:
        spec = super().get_robot()
        scene.use_implicitfast(spec)  # stable with the servos' damping, and fast
        return spec

    def get_commands(self, physics_model: PhysicsModel) -> dict[str, commands.AbstractCommand]:
        x, y, z = self.robot.reach
        return {"target": commands.CartesianCommand(x=x, y=y, z=z, site="tip")}

    def get_rewards(self, physics_model: PhysicsModel) -> dict[str, rewards.AbstractReward]:
        near = {"command": "target", "site": "tip", "scale": 1.0}
        return {
            "near": rewards.TrackPosition(std=self.robot.coarse, **near),
            "there": rewards.TrackPosition(std=round(self.robot.coarse / 4, 3), **near),
            "action_rate": rewards.ActionRate(scale=-0.01),
            "velocity": rewards.JointVelocityEffort(scale=-0.005),
            "limits": rewards.JointLimits(scale=-0.5),
        }


class BalanceTask(FixedTask[ConfigT], Generic[ConfigT]):
    """A robot that learns to keep its tip up, with fewer motors than joints."""

    def tip_height(self, context: Context) -> jax.Array:
        """The height of the tip: 0 hanging, 1 upright."""
        low, high = self.robot.tip_heights
        tip = context.model.names.index("site", "tip")
        return (context.derived("site_xpos")[tip, 2] - low) / (high - low)

    def get_rewards(self, physics_model: PhysicsModel) -> dict[str, rewards.AbstractReward]:
        return {
            "upright": rewards.Custom(function=self.tip_height, needs=("site_xpos",), scale=2.0),
            "centred": rewards.JointDeviation(joints=self.robot.driven, scale=-0.1),
            "velocity": rewards.JointVelocityEffort(scale=-0.005),
            "action_rate": rewards.ActionRate(scale=-0.01),
        }

    def get_terminations(self, physics_model: PhysicsModel) -> list[terminations.AbstractTermination]:
        ends = super().get_terminations(physics_model)
        if not self.robot.starts_up:  # it may swing up
            return ends
        fallen = lambda context: self.tip_height(context) < 0.7
        return [*ends, terminations.Custom(fallen, needs=("site_xpos",))]
