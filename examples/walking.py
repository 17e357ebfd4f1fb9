"""A humanoid that learns to walk at a commanded velocity, on one device.

python -m examples.walking num_envs=1024
python -m examples.walking run_mode=view checkpoint=pretrained
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import jax

import ksim
from ksim.config import field
from ksim.mdp import commands, curriculum, events, observations as obs, randomizers, resets, rewards, terminations
from ksim.mdp.noise import UniformNoise

from .pretrained import PRETRAINED
from .robots import HUMANOID

FEET = ("left_foot", "right_foot")
TOUCH = ("left_foot_touch", "right_foot_touch")
LEGS = tuple(tuple(f"{side}_{joint}" for joint in ("hip_pitch", "knee", "ankle_pitch")) for side in ("left", "right"))
GAIT_PERIOD_S = 0.8

STIFFNESS = {  # N m/rad
    "waist_*": 80.0,
    "*_shoulder_yaw": 22.5,
    "*_shoulder_*": 30.0,
    "*_elbow": 30.0,
    "*_hip_yaw": 100.0,
    "*_hip_roll": 150.0,
    "*_hip_pitch": 200.0,
    "*_knee": 200.0,
    "*_ankle_pitch": 150.0,
    "*_ankle_roll": 80.0,
}
ACTION_SCALE = {  # rad per unit of action
    "*_hip_pitch": 0.5,
    "*_knee": 0.5,
    "*_ankle_pitch": 0.5,
    "*_yaw": 0.15,
    "*": 0.25,
}
DAMPING = {name: stiffness / 25 for name, stiffness in STIFFNESS.items()}  # N m s/rad


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class HumanoidWalkingConfig(ksim.PPOConfig):
    """Options of the walking humanoid."""

    num_passes: int = field(5, help="passes over each rollout")
    symmetry: str = field("augment", help="left and right learn from each other: off, augment or loss")
    max_iterations: int | None = field(1500, help="stop after this many iterations; null: no limit")
    actor_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the policy")
    critic_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the value function")
    gamma: float = field(0.98, help="discount per control step")
    entropy_coef: float = field(0.002, help="weight of the entropy bonus")
    init_std: float = field(0.5, help="initial standard deviation of the policy")
    dt: float = field(0.005, help="seconds per physics step")
    episode_s: float = field(20.0, above=0, help="time limit of an episode, in seconds")
    standing_fraction: float = field(0.1, least=0, most=1, help="fraction of commands to stand still")
    push_speed: list[float] = field(
        [0.0, 0.8], help="range of the velocity, in m/s, added by a push every 3 to 6 s, once it walks"
    )
    eval_episode_s: float = field(
        10.0, above=0, help="time limit of an episode in evaluations, in seconds; all commands there are to move"
    )
    eval_push_speed: float = field(0.0, least=0, help="velocity, in m/s, added by a push every 3 to 6 s in evaluations")

    def validate(self) -> None:
        super().validate()
        if len(self.push_speed) != 2:
            raise ksim.ConfigError(f"push_speed ({self.push_speed}) must be two numbers, the smaller first.")


ConfigT = TypeVar("ConfigT", bound=HumanoidWalkingConfig)


class HumanoidWalkingTask(ksim.PPOTask[ConfigT], Generic[ConfigT]):
    """A humanoid that learns to walk at a commanded velocity."""

    pretrained = PRETRAINED / "humanoid"

    def get_robot(self) -> Path:
        return HUMANOID

    def get_actuators(self) -> ksim.PositionActuators:
        return ksim.PositionActuators(kp=STIFFNESS, kd=DAMPING, action_scale=ACTION_SCALE)

    def get_commands(self, physics_model: ksim.PhysicsModel) -> Mapping[str, ksim.AbstractCommand]:
        return {"velocity": commands.VelocityCommand(standing_fraction=self.config.standing_fraction)}

    def get_observations(
        self, physics_model: ksim.PhysicsModel
    ) -> Mapping[str, Mapping[str, ksim.AbstractObservation]]:
        clean = {
            "command": obs.CommandValue(command="velocity"),
            "phase": obs.PhaseClock(period_s=GAIT_PERIOD_S),
            "last_action": obs.LastAction(),
        }
        actor = {
            "gravity": obs.ProjectedGravity(noise=UniformNoise(0.03)),
            "gyro": obs.SensorReading(sensor="imu_gyro", noise=UniformNoise(0.2)),
            "joint_position": obs.JointPosition(noise=UniformNoise(0.01)),
            "joint_velocity": obs.JointVelocity(noise=UniformNoise(0.5)),
        }
        # The critic runs only in simulation, so it may see what no sensor of the robot measures.
        critic = {
            "gravity": obs.ProjectedGravity(),
            "angular_velocity": obs.BaseAngularVelocity(),
            "linear_velocity": obs.BaseLinearVelocity(),
            "height": obs.BaseHeight(),
            "joint_position": obs.JointPosition(),
            "joint_velocity": obs.JointVelocity(),
            "actuator_force": obs.ActuatorForce(),
            "foot_contact": obs.FootContact(sensors=TOUCH),
        }
        return {"actor": actor | clean, "critic": critic | clean}

    def get_rewards(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractReward]:
        arms_and_waist = tuple(
            name for name in physics_model.names.joints if "shoulder" in name or "elbow" in name or "waist" in name
        )
        hips = tuple(name for name in physics_model.names.joints if "hip_yaw" in name or "hip_roll" in name)
        return [
            rewards.TrackLinearVelocity(command="velocity", std=0.35, scale=2.5),
            rewards.TrackYawRate(command="velocity", std=0.5, scale=1.5),
            rewards.Alive(scale=1.0),
            rewards.FeetPhase(sensors=TOUCH, command="velocity", period_s=GAIT_PERIOD_S, scale=1.0),
            rewards.SwingPose(
                legs=LEGS, bend=(0.35, 0.7, 0.35), command="velocity", period_s=GAIT_PERIOD_S, scale=-5.0
            ),
            rewards.FeetSlip(sensors=TOUCH, sites=FEET, scale=-0.2),
            rewards.BaseTilt(scale=-2.0),
            rewards.RollPitchRate(scale=-0.05),
            rewards.VerticalVelocity(scale=-0.5),
            rewards.BaseHeightError(target=0.75, scale=-10.0),
            rewards.JointDeviation(joints=(*arms_and_waist, *hips), scale=-0.15),
            rewards.JointLimits(scale=-1.0),
            rewards.ActionRate(scale=-0.01),
            rewards.TorqueEffort(scale=-5e-6),
            rewards.TerminationPenalty(scale=-100.0),
        ]

    def get_terminations(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractTermination]:
        return [
            terminations.TimeLimit(seconds=self.config.episode_s),
            terminations.BaseTooLow(height=0.5),
            terminations.BaseTilted(max_tilt=0.8),
        ]

    def get_resets(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractReset]:
        return [
            resets.RandomHeading(),
            resets.RandomJointPositions(magnitude=0.1),
            resets.RandomJointVelocities(magnitude=0.2),
            resets.RandomBaseVelocity(),
        ]

    def get_events(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractEvent]:
        slowest, fastest = self.config.push_speed
        return [events.PushVelocity(interval_s=(3.0, 6.0), speed=(slowest, fastest), level="pushes")]

    def get_curricula(self, physics_model: ksim.PhysicsModel) -> Mapping[str, ksim.AbstractCurriculum]:
        # Walking first, pushes later: pushed from the start, it takes half as many steps again to walk.
        error = "error/velocity/lin_vel_m_s"
        growing = curriculum.ErrorCurriculum(metric=error, raise_below=0.25, lower_above=0.35, step=0.01)
        return {"pushes": growing}

    def get_randomizers(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractRandomizer]:
        return [randomizers.RandomFriction()]

    def get_eval_environment(self, engine: str) -> ksim.Environment:
        config = dataclasses.replace(
            self.config,
            episode_s=self.config.eval_episode_s,
            standing_fraction=0.0,
            push_speed=[self.config.eval_push_speed] * 2,
        )
        return type(self)(config).get_environment(engine, num_devices=1)


if __name__ == "__main__":
    HumanoidWalkingTask.launch(HumanoidWalkingConfig())
