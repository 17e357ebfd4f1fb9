"""Walking at a commanded velocity, for robots on legs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import jax
import mujoco

from ksim.config import field
from ksim.errors import ConfigError
from ksim.mdp import commands, events, observations as obs, randomizers, resets, rewards, terminations
from ksim.mdp.noise import UniformNoise
from ksim.physics import AbstractActuators, PhysicsModel
from ksim.robot import LeggedRobot, scene
from ksim.task import DistributedPPOConfig, DistributedPPOTask


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class LeggedConfig(DistributedPPOConfig):
    """Options of a robot on legs. A small `init_std` learns in the fewest steps, as a CPU needs."""

    dt: float = field(0.005, above=0, help="seconds per physics step")
    actor_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the policy")
    critic_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the value function")
    num_passes: int = field(5, least=1, help="passes over each rollout")
    entropy_coef: float = field(0.002, help="weight of the entropy bonus")
    init_std: float = field(0.5, above=0, help="initial standard deviation of the policy")
    episode_s: float = field(10.0, above=0, help="time limit of an episode, in seconds")
    forward: float | None = field(
        None, above=0, help="highest forward command, in m/s; null: that of the robot's numbers"
    )
    push: float | None = field(
        None, least=0, help="largest jump of the velocity by a push, in m/s; null: by the highest forward command"
    )


ConfigT = TypeVar("ConfigT", bound=LeggedConfig)


class LeggedTask(DistributedPPOTask[ConfigT], Generic[ConfigT]):
    """A robot on legs that learns to walk at a commanded velocity, in the rhythm of a gait.

    A subclass sets `robot` and defines `get_mjcf`. `python -m ksim.tools.new` writes one for a robot's file. The x axis
    of the base must point forward, and its z axis upward.
    """

    robot: ClassVar[LeggedRobot]
    """The numbers of the robot."""

    def get_mjcf(self) -> str | Path:
        """The robot's file. It stays as it is: `get_robot` changes a copy in memory."""
        raise ConfigError(f"{type(self).__name__} must define get_mjcf, the path of the robot's file.")

    def get_robot(self) -> mujoco.MjSpec:
        numbers, spec = self.robot, scene.load(self.get_mjcf())
        if numbers.freed is not None:
            scene.free_base(spec, numbers.freed)
        scene.leave_out(spec, numbers.left_out)
        scene.limit_controls(spec)
        if numbers.lift:
            scene.raise_base(spec, numbers.lift)
        scene.add_gravity(spec)
        scene.add_ground(spec)
        scene.touch_ground_only(spec)  # parts of the robot pass through each other: faster
        scene.use_implicitfast(spec)  # stable with the servos' damping, and fast
        if numbers.plain_contacts:
            scene.use_plain_contacts(spec)
        scene.add_feet(spec, numbers.feet)
        if numbers.imu_body is not None:
            scene.add_imu(spec, numbers.imu_body, numbers.imu)
        if numbers.torque:
            scene.add_motors(spec, numbers.torque)
        scene.set_pose(spec, numbers.pose, numbers.height)
        return spec

    def get_actuators(self) -> AbstractActuators:
        return self.robot.actuators()

    @property
    def forward(self) -> float:
        """The highest forward command, in m/s."""
        return self.robot.forward if self.config.forward is None else self.config.forward

    def get_commands(self, physics_model: PhysicsModel) -> dict[str, commands.AbstractCommand]:
        # m/s and rad/s. Two legs learn to walk forward first, and backward by turning around.
        backward = 0.0 if self.robot.is_biped else -round(0.5 * self.forward, 1)
        sideways, turn = round(0.4 * self.forward, 1), 0.5 if self.robot.is_biped else 0.8
        forward, leftward, yaw_rate = (backward, self.forward), (-sideways, sideways), (-turn, turn)
        return {"velocity": commands.VelocityCommand(forward=forward, leftward=leftward, yaw_rate=yaw_rate)}

    def get_observations(self, physics_model: PhysicsModel) -> Mapping[str, Mapping[str, obs.AbstractObservation]]:
        actor = {
            "gravity": obs.ProjectedGravity(noise=UniformNoise(0.03)),
            "gyro": obs.ImuGyro(site=self.robot.imu, noise=UniformNoise(0.2)),
            "joint_position": obs.JointPosition(noise=UniformNoise(0.01)),
            "joint_velocity": obs.JointVelocity(noise=UniformNoise(0.5)),
            "command": obs.CommandValue(command="velocity"),
            "phase": obs.PhaseClock(period_s=self.robot.period_s),
            "last_action": obs.LastAction(),
        }
        # The critic runs only in simulation, so it may see what no sensor of the robot measures.
        touch = tuple(foot.touch for foot in self.robot.feet)
        seen = {"lin_vel": obs.BaseLinearVelocity(), "height": obs.BaseHeight()}
        return {"actor": actor, "critic": actor | seen | {"contact": obs.FootContact(sensors=touch)}}

    def get_rewards(self, physics_model: PhysicsModel) -> list[rewards.AbstractReward]:
        numbers, is_biped, height = self.robot, self.robot.is_biped, self.robot.standing_height
        sites, touch = tuple(foot.name for foot in numbers.feet), tuple(foot.touch for foot in numbers.feet)
        gait = {"command": "velocity", "period_s": numbers.period_s, "offsets": numbers.phases}
        swing = {"height": numbers.swing_m, "rest_height": numbers.rest_height}
        legs, bend = tuple(tuple(x) for x in numbers.bends), tuple(tuple(x.values()) for x in numbers.bends)
        # Without it two legs shuffle: it lifts the feet from the first steps on.
        lifted = [rewards.SwingPose(legs=legs, bend=bend, **gait, scale=-5.0)] if legs else []
        still = tuple(joint for joint in physics_model.names.joints if not any(joint in leg for leg in legs))
        pose = rewards.JointDeviation(joints=still, scale=-0.15) if legs else rewards.JointDeviation(scale=-0.05)
        return [
            rewards.TrackLinearVelocity(command="velocity", std=0.3, scale=2.0),
            rewards.TrackYawRate(command="velocity", std=0.4, scale=1.5 if is_biped else 1.0),
            # Steps in the rhythm of the gait; without these two it may slide or shuffle.
            rewards.FeetPhase(sensors=touch, **gait, scale=1.0),
            rewards.FootSwingHeight(sites=sites, **swing, **gait, scale=-float(round(0.15 / numbers.swing_m**2))),
            *lifted,
            rewards.FeetSlip(sensors=touch, sites=sites, scale=-0.1),
            rewards.BaseTilt(scale=-2.0 if is_biped else -1.0),
            rewards.RollPitchRate(scale=-0.05),
            rewards.VerticalVelocity(scale=-0.5),
            rewards.BaseHeightError(target=height, scale=-float(round((4.0 if is_biped else 0.4) / height**2))),
            pose,
            rewards.JointLimits(scale=-1.0),
            rewards.ActionRate(scale=-0.01),
            # A torque of weight times base height costs about 0.2.
            rewards.TorqueEffort(scale=-numbers.effort),
            rewards.Alive(scale=1.0),
            rewards.TerminationPenalty(scale=-100.0 if is_biped else -50.0),
        ]

    def get_terminations(self, physics_model: PhysicsModel) -> list[terminations.AbstractTermination]:
        # A base at half its standing height lies or kneels.
        low = terminations.BaseTooLow(height=round(0.5 * self.robot.standing_height, 2))
        return [terminations.TimeLimit(seconds=self.config.episode_s), low, terminations.BaseTilted()]

    def get_resets(self, physics_model: PhysicsModel) -> list[resets.AbstractReset]:
        return [resets.RandomHeading(), resets.RandomJointPositions(), resets.RandomBaseVelocity()]

    def get_events(self, physics_model: PhysicsModel) -> list[events.AbstractEvent]:
        # Two legs become robust by harder pushes than they should stand, which evaluations leave out.
        if self.robot.is_biped and self.evaluating:
            return []
        hardest = round((0.9 if self.robot.is_biped else 0.5) * self.forward, 1)
        return [events.PushVelocity(speed=(0.0, hardest if self.config.push is None else self.config.push))]

    def get_randomizers(self, physics_model: PhysicsModel) -> list[randomizers.AbstractRandomizer]:
        return [randomizers.RandomFriction(friction=(0.6, 1.2))]
