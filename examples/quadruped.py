"""A quadruped that learns to trot at a commanded velocity on rough ground, on every device of the machine.

python -m examples.quadruped num_envs=1024
python -m examples.quadruped ground=flat
python -m examples.quadruped run_mode=view checkpoint=pretrained
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax

import ksim
from ksim.config import field
from ksim.mdp import commands, events, observations as obs, randomizers, resets, rewards, terminations
from ksim.mdp.env_curriculum import TerrainCurriculum
from ksim.mdp.noise import UniformNoise
from ksim.physics import RoughTile, SlopeTile, StairsTile

from .pretrained import PRETRAINED
from .robots import QUADRUPED

LEGS = ("front_left", "front_right", "rear_left", "rear_right")
FEET = tuple(f"{leg}_foot" for leg in LEGS)
FEET_TOUCH = tuple(f"{leg}_foot_touch" for leg in LEGS)
KNEES_TOUCH = tuple(f"{leg}_knee_touch" for leg in LEGS)

GROUNDS = ("rough", "flat")
ROUGH = ksim.Terrain(
    tiles=(
        RoughTile(height=(0.01, 0.05)),
        SlopeTile(slope=(0.05, 0.3)),
        StairsTile(step_height=(0.01, 0.06)),
        StairsTile(step_height=(0.01, 0.06), down=True),
    ),
    tile_m=6.0,
)

GAIT_PERIOD_S = 0.5
TROT = (0.0, 0.5, 0.5, 0.0)
"""Phases of the legs, as fractions of a period: in a trot diagonal legs step together."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class QuadrupedConfig(ksim.DistributedPPOConfig):
    """Options of the trotting quadruped."""

    num_envs: int = field(1024, help="parallel environments, over all devices")
    dt: float = field(0.005, help="seconds per physics step")
    actor_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the policy")
    critic_sizes: list[int] = field([128, 128], help="sizes of the hidden layers of the value function")
    num_passes: int = field(5, help="passes over each rollout")
    entropy_coef: float = field(0.002, help="weight of the entropy bonus")
    init_std: float = field(0.7, help="initial standard deviation of the policy")
    episode_s: float = field(20.0, help="time limit of an episode, in seconds")
    crossing_ends: bool = field(
        True, help="end episodes of training once the robot has crossed its tile; it starts anew, one level higher"
    )
    ground: str = field(
        "rough", choices=GROUNDS, help="rough (bumps, slopes and stairs that get harder as the robot learns) or flat"
    )


class QuadrupedTask(ksim.DistributedPPOTask[QuadrupedConfig]):
    """A quadruped that learns to trot at a commanded velocity.

    No reward or termination uses the height of the robot. Joint positions and ground contacts describe its posture on
    any ground.
    """

    pretrained = PRETRAINED / "quadruped"

    def get_robot(self) -> Path:
        return QUADRUPED

    def get_terrain(self) -> ksim.Terrain | None:
        return ROUGH if self._is_rough else None

    @property
    def _is_rough(self) -> bool:
        return self.config.ground == "rough"

    def get_actuators(self) -> ksim.PositionActuators:
        return ksim.PositionActuators(kp=40.0, kd=1.0, action_scale=0.35)

    def get_commands(self, physics_model: ksim.PhysicsModel) -> Mapping[str, ksim.AbstractCommand]:
        return {
            "velocity": commands.VelocityCommand(forward=(-0.5, 1.0), leftward=(-0.4, 0.4), yaw_rate=(-1.0, 1.0)),
        }

    def get_observations(
        self, physics_model: ksim.PhysicsModel
    ) -> Mapping[str, Mapping[str, ksim.AbstractObservation]]:
        clean = {
            "command": obs.CommandValue(command="velocity"),
            "phase": obs.PhaseClock(period_s=GAIT_PERIOD_S),
            "last_action": obs.LastAction(),
        }
        if self._is_rough:
            clean["ground"] = obs.HeightScan(size=(0.8, 0.4), offset=0.3, noise=UniformNoise(0.01))
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
            "joint_position": obs.JointPosition(),
            "joint_velocity": obs.JointVelocity(),
            "actuator_force": obs.ActuatorForce(),
            "foot_force": obs.FootForce(sensors=FEET_TOUCH),
        }
        return {"actor": actor | clean, "critic": critic | clean}

    def get_rewards(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractReward]:
        return [
            rewards.TrackLinearVelocity(command="velocity", std=0.3, scale=2.0),
            rewards.TrackYawRate(command="velocity", std=0.35, scale=1.0),
            rewards.FeetPhase(sensors=FEET_TOUCH, command="velocity", period_s=GAIT_PERIOD_S, offsets=TROT, scale=1.0),
            rewards.FeetAirTime(sensors=FEET_TOUCH, command="velocity", threshold_s=0.1, max_s=0.3, scale=0.5),
            rewards.FeetSlip(sensors=FEET_TOUCH, sites=FEET, scale=-0.1),
            rewards.BaseTilt(scale=-1.0),
            rewards.RollPitchRate(scale=-0.02),
            rewards.VerticalVelocity(scale=-0.5),
            rewards.JointDeviation(scale=-0.1),
            rewards.StandStill(command="velocity", scale=-0.1),
            rewards.ImpactForce(sensors=KNEES_TOUCH, threshold=1.0, scale=-0.01),
            rewards.JointLimits(scale=-1.0),
            rewards.ActionRate(scale=-0.005),
            rewards.TorqueEffort(scale=-1e-4),
            rewards.TerminationPenalty(scale=-50.0),
        ]

    def get_terminations(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractTermination]:
        ends: list[ksim.AbstractTermination] = [
            terminations.TimeLimit(seconds=self.config.episode_s),
            terminations.SensorAbove(sensor="trunk_touch"),
            terminations.BaseTilted(max_tilt=1.0),
        ]
        if not self._is_rough:
            return ends
        ends.append(terminations.OffTerrain())
        if self.config.crossing_ends and not self.evaluating:
            ends.append(terminations.FarFromStart(distance=ROUGH.tile_m / 2))
        return ends

    def get_curricula(self, physics_model: ksim.PhysicsModel) -> Mapping[str, ksim.AbstractEnvCurriculum]:
        if not self._is_rough:
            return {}
        return {"terrain": TerrainCurriculum(command="velocity", episode_s=self.config.episode_s)}

    def get_resets(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractReset]:
        starts: list[ksim.AbstractReset] = [
            resets.RandomHeading(),
            resets.RandomJointPositions(magnitude=0.1),
            resets.RandomJointVelocities(magnitude=0.2),
            resets.RandomBaseVelocity(),
        ]
        return [*starts, resets.OnTerrain(level="terrain", easier=False)] if self._is_rough else starts

    def get_events(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractEvent]:
        return [events.PushVelocity()]

    def get_randomizers(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractRandomizer]:
        return [randomizers.RandomFriction()]


if __name__ == "__main__":
    QuadrupedTask.launch(QuadrupedConfig())
