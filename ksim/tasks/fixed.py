"""Reaching, balancing and running in a plane, for robots without a free joint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.config import field
from ksim.errors import ConfigError
from ksim.mdp import commands, observations as obs, resets, rewards, terminations
from ksim.mdp.term import Context
from ksim.physics import AbstractActuators, PhysicsModel
from ksim.robot import ArmRobot, BalancingRobot, PlanarRobot, scene
from ksim.task import DistributedPPOConfig, DistributedPPOTask
from ksim.task.robot_hooks import default_observations
from ksim.types import Metrics


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class FixedConfig(DistributedPPOConfig):
    """Options of a robot without a free joint."""

    num_envs: int = field(512, least=1, help="environments, over all devices")
    max_iterations: int | None = field(200, least=1, help="stop after this many iterations; null: no limit")
    dt: float = field(0.005, above=0, help="seconds per physics step")
    actor_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the policy")
    critic_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the value function")
    desired_kl: float | None = field(
        0.01, above=0, help="target KL divergence of an adaptive learning rate; null: constant rate"
    )
    entropy_coef: float = field(0.002, help="weight of the entropy bonus")
    init_std: float = field(0.7, above=0, help="initial standard deviation of the policy")
    episode_s: float = field(10.0, above=0, help="time limit of an episode, in seconds")


ConfigT = TypeVar("ConfigT", bound=FixedConfig)


class FixedTask(DistributedPPOTask[ConfigT], Generic[ConfigT]):
    """A robot without a free joint. A subclass of a subclass sets `robot` and defines `get_mjcf`."""

    robot: ClassVar[Any]
    """The numbers of the robot: an instance of a subclass of `ksim.robot.FixedRobot`, which the task names."""

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

    def get_terminations(self, physics_model: PhysicsModel) -> dict[str, terminations.AbstractTermination]:
        return {"time_limit": terminations.TimeLimit(seconds=self.config.episode_s)}


class ReachTask(FixedTask[ConfigT], Generic[ConfigT]):
    """An arm that learns to reach with its tip for commanded points."""

    robot: ClassVar[ArmRobot]

    def get_robot(self) -> mujoco.MjSpec:
        spec = super().get_robot()
        scene.use_implicitfast(spec)  # stable with the servos' damping, and fast
        scene.add_position_sensor(spec, "tip")
        return spec

    def get_observations(self, physics_model: PhysicsModel) -> dict[str, obs.AbstractObservation]:
        # An arm knows where its tip is. A policy that must find it from the joints takes three times as long to learn.
        return {**default_observations(physics_model, ["target"]), "tip": obs.SensorReading("tip")}

    def get_commands(self, physics_model: PhysicsModel) -> dict[str, commands.AbstractCommand]:
        x, y, z = self.robot.reach
        return {"target": commands.CartesianCommand(x=x, y=y, z=z, site="tip")}

    def get_rewards(self, physics_model: PhysicsModel) -> dict[str, rewards.AbstractReward]:
        near = {"command": "target", "site": "tip", "scale": 1.0}
        return {
            "near": rewards.TrackPosition(std=self.robot.coarse, **near),
            "nearer": rewards.TrackPosition(std=round(self.robot.coarse / 2, 3), **near),
            "there": rewards.TrackPosition(std=round(self.robot.coarse / 4, 3), **near),
            "action_rate": rewards.ActionRate(scale=-0.01),
            "velocity": rewards.JointVelocityEffort(scale=-0.001),
            "limits": rewards.JointLimits(scale=-0.5),
        }


class BalanceTask(FixedTask[ConfigT], Generic[ConfigT]):
    """A robot that learns to keep its tip up, with fewer motors than joints."""

    robot: ClassVar[BalancingRobot]

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

    def get_terminations(self, physics_model: PhysicsModel) -> dict[str, terminations.AbstractTermination]:
        ends = super().get_terminations(physics_model)
        if not self.robot.starts_up:  # it may swing up
            return ends
        fallen = lambda context: self.tip_height(context) < 0.7
        return ends | {"fallen": terminations.Custom(fallen, needs=("site_xpos",))}


class SpeedCommand(commands.AbstractDrawnCommand):
    """Speed along a slide, in m/s, drawn uniformly from `forward` every `resample_s` seconds (a range)."""

    slide: str
    forward: commands.Range
    resample_s: commands.Range = (3.0, 6.0)

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, "1"]:
        low, high = self.forward
        return jax.random.uniform(key, (1,), minval=low, maxval=high)

    def ranges(self) -> dict[str, commands.Range]:
        return {"forward, m/s": self.forward}

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        return {"speed_m_s": jnp.abs(joint_speed(context, self.slide) - command[0])}


def joint_speed(context: Context, joint: str) -> Float[Array, ""]:
    """The velocity of a hinge in rad/s, or of a slide in m/s."""
    return context.physics.qvel[context.model.names.joint_qvel((joint,))[0]]


class PlaneTask(FixedTask[ConfigT], Generic[ConfigT]):
    """A robot that moves in a vertical plane, on two slides and a hinge, and learns to run at a commanded speed."""

    robot: ClassVar[PlanarRobot]

    def offset(self, context: Context, joint: str) -> Float[Array, ""]:
        """The position of a joint from where episodes start, in m or rad."""
        (place,) = context.model.names.joint_qpos((joint,))
        return context.physics.qpos[place] - context.model.default_qpos[place]

    def limbs(self, physics_model: PhysicsModel) -> tuple[str, ...]:
        """The joints but those of the plane."""
        return tuple(name for name in physics_model.names.joints if name not in self.robot.plane)

    def get_commands(self, physics_model: PhysicsModel) -> dict[str, commands.AbstractCommand]:
        return {
            "speed": SpeedCommand(slide=self.robot.plane[0], forward=(0.3 * self.robot.forward, self.robot.forward))
        }

    def get_observations(self, physics_model: PhysicsModel) -> list[obs.AbstractObservation]:
        _, up, turn = self.robot.plane
        return [
            obs.JointPosition(joints=(up, turn, *self.limbs(physics_model))),
            obs.JointVelocity(),
            obs.LastAction(),
            obs.CommandValue(command="speed"),
        ]

    def get_resets(self, physics_model: PhysicsModel) -> list[resets.AbstractReset]:
        return [resets.RandomJointPositions(joints=self.limbs(physics_model)), resets.RandomJointVelocities()]

    def get_rewards(self, physics_model: PhysicsModel) -> dict[str, rewards.AbstractReward]:
        along, _, turn = self.robot.plane
        width = 0.25 * self.robot.forward
        off = lambda context: (joint_speed(context, along) - context.command("speed")[0]) / width
        return {
            "track": rewards.Custom(function=lambda context: jnp.exp(-jnp.square(off(context))), scale=2.0),
            # Far from the command the first one does not tell which way is better.
            "approach": rewards.Custom(function=lambda context: -jnp.minimum(jnp.abs(off(context)), 8.0), scale=0.1),
            "upright": rewards.Custom(function=lambda context: -jnp.square(self.offset(context, turn)), scale=0.5),
            "alive": rewards.Alive(scale=1.0),
            "limits": rewards.JointLimits(joints=self.limbs(physics_model), scale=-0.5),
            "action_rate": rewards.ActionRate(scale=-0.01),
            "fall": rewards.TerminationPenalty(scale=-20.0),
        }

    def get_terminations(self, physics_model: PhysicsModel) -> dict[str, terminations.AbstractTermination]:
        _, up, turn = self.robot.plane
        low = lambda context: self.offset(context, up) < -0.4 * self.robot.height
        tilted = lambda context: jnp.abs(self.offset(context, turn)) > 1.0
        ends = {"low": terminations.Custom(low), "tilted": terminations.Custom(tilted)}
        return super().get_terminations(physics_model) | ends
