"""A humanoid that tracks reference motions: a walk, a turn, a squat and a get-up from one knee, or any files.

python -m examples.tracking num_envs=1024
python -m examples.tracking motions=[my_dance.npz,my_walk.csv]
python -m examples.tracking run_mode=eval checkpoint=RUN
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import mujoco

import ksim
from ksim.config import field
from ksim.mdp import commands, curriculum, observations as obs, randomizers, resets, rewards, terminations
from ksim.mdp.actions import AroundMotion
from ksim.mdp.noise import UniformNoise
from ksim.motion.files import load_library
from ksim.motion.formats import ANGLES, QUATERNIONS
from ksim.motion.library import MotionLibrary

from .motions import MOTIONS
from .robots import HUMANOID
from .walking import DAMPING, FEET, STIFFNESS, TOUCH

ACTION_SCALE = {  # rad per unit of action
    "*_hip_pitch": 0.5,
    "*_knee": 0.5,
    "*_ankle_pitch": 0.4,
    "*_shoulder_pitch": 0.4,
    "*": 0.25,
}
ENDS = ("left_forearm", "right_forearm", "left_foot", "right_foot")
KNEE_RADIUS = 0.053
"""Radius of the spheres on which the robot kneels, in m: the knee's height in the first frame of the get-up."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class HumanoidTrackingConfig(ksim.DistributedPPOConfig):
    """Options of the humanoid that tracks motions."""

    num_envs: int = field(1024, help="parallel environments, over all devices")
    motions: list[str] = field(
        [], help="motion files, .npz, .csv or .pkl; none: the walk, turn, squat and get-up of the example", fixed=True
    )
    motion_fps: float | None = field(
        None, above=0, help="frames per second of these files; null: as they say", fixed=True
    )
    motion_quaternions: str | None = field(
        None, help="order of their quaternions; null: as their layout has it", choices=QUATERNIONS, fixed=True
    )
    motion_angles: str | None = field(None, help="unit of their hinge joints; null: rad", choices=ANGLES, fixed=True)
    motion_joints: list[str] = field(
        [], help="their joints in their order, where they name none; none: the robot's", fixed=True
    )
    adaptive: bool = field(True, help="start more episodes where the policy fails")
    at_beginning: bool = field(False, help="start at the first frame of a clip, without noise, as evaluations do")
    max_iterations: int | None = field(900, help="stop after this many iterations; null: no limit")
    actor_sizes: list[int] = field([256, 128], help="sizes of the hidden layers of the policy")
    critic_sizes: list[int] = field([256, 128], help="sizes of the hidden layers of the value function")
    desired_kl: float | None = field(
        0.015, help="target KL divergence of an adaptive learning rate; null: constant rate"
    )
    gamma: float = field(0.98, help="discount per control step")
    entropy_coef: float = field(0.001, help="weight of the entropy bonus")
    init_std: float = field(0.4, help="initial standard deviation of the policy")
    dt: float = field(0.005, help="seconds per physics step")


class HumanoidTrackingTask(ksim.DistributedPPOTask[HumanoidTrackingConfig]):
    """A humanoid that tracks reference motions."""

    def get_robot(self) -> mujoco.MjSpec:
        spec = mujoco.MjSpec.from_file(str(HUMANOID))
        for side in ("left", "right"):
            spec.body(f"{side}_shin").add_geom(
                spec.find_default("contact"), name=f"{side}_knee", size=[KNEE_RADIUS, 0, 0]
            )
        return spec

    def get_actuators(self) -> ksim.PositionActuators:
        return ksim.PositionActuators(kp=STIFFNESS, kd=DAMPING, action_scale=ACTION_SCALE)

    @functools.cached_property
    def _libraries(self) -> dict[float, MotionLibrary]:
        return {}

    def motions(self, physics_model: ksim.PhysicsModel) -> MotionLibrary:
        """The clips, which the command and the curriculum share."""
        paths = self.config.motions or MOTIONS
        if physics_model.ctrl_dt not in self._libraries:
            self._libraries[physics_model.ctrl_dt] = load_library(
                paths,
                physics_model,
                fps=self.config.motion_fps,
                quaternions=self.config.motion_quaternions,
                angles=self.config.motion_angles,
                joints=self.config.motion_joints or None,
            )
        return self._libraries[physics_model.ctrl_dt]

    @property
    def _at_beginning(self) -> bool:
        return self.config.at_beginning or self.evaluating

    def get_action_filters(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractActionFilter]:
        return [AroundMotion(command="motion", actuators=self.get_actuators())]

    def get_commands(self, physics_model: ksim.PhysicsModel) -> Mapping[str, ksim.AbstractCommand]:
        return {
            "motion": commands.MotionCommand(
                self.motions(physics_model),
                starts="starts" if self.config.adaptive else None,
                at_beginning=self._at_beginning,
            )
        }

    def get_curricula(self, physics_model: ksim.PhysicsModel) -> Mapping[str, ksim.AbstractCurriculum]:
        if not self.config.adaptive:
            return {}
        return {"starts": curriculum.AdaptiveStarts(motions=self.motions(physics_model), command="motion")}

    def get_observations(
        self, physics_model: ksim.PhysicsModel
    ) -> Mapping[str, Mapping[str, ksim.AbstractObservation]]:
        motion = {
            "phase": obs.MotionPhase(command="motion"),
            "coming_joints": obs.MotionJoints(command="motion", steps=(0, 4)),
            "coming_joint_velocities": obs.MotionJointVelocities(command="motion"),
            "coming_position": obs.MotionBasePosition(command="motion", steps=(0, 4)),
            "coming_orientation": obs.MotionBaseOrientation(command="motion"),
            "last_action": obs.LastAction(),
        }
        actor = {
            "gravity": obs.ProjectedGravity(noise=UniformNoise(0.02)),
            "gyro": obs.SensorReading(sensor="imu_gyro", noise=UniformNoise(0.1)),
            "linear_velocity": obs.BaseLinearVelocity(noise=UniformNoise(0.05)),
            "joint_position": obs.JointPosition(noise=UniformNoise(0.01)),
            "joint_velocity": obs.JointVelocity(noise=UniformNoise(0.3)),
        }
        critic = {
            "gravity": obs.ProjectedGravity(),
            "angular_velocity": obs.BaseAngularVelocity(),
            "linear_velocity": obs.BaseLinearVelocity(),
            "height": obs.BaseHeight(),
            "joint_position": obs.JointPosition(),
            "joint_velocity": obs.JointVelocity(),
            "foot_contact": obs.FootContact(sensors=TOUCH),
        }
        return {"actor": actor | motion, "critic": critic | motion}

    def get_rewards(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractReward]:
        return [
            rewards.TrackAnchorPosition(command="motion", std=0.1, scale=1.0),
            rewards.TrackAnchorOrientation(command="motion", std=0.2, scale=0.5),
            rewards.TrackBodyPositions(command="motion", std=0.1, scale=1.0),
            rewards.TrackBodyOrientations(command="motion", std=0.3, scale=1.0),
            rewards.TrackBodyVelocities(command="motion", std=0.7, scale=0.5),
            rewards.TrackBodyAngularVelocities(command="motion", std=2.2, scale=0.5),
            rewards.TrackMotionJoints(command="motion", std=0.15, scale=1.0),
            rewards.FeetSlip(sensors=TOUCH, sites=FEET, scale=-0.1),
            rewards.ActionRate(scale=-0.01),
            rewards.JointLimits(scale=-1.0),
            rewards.TorqueEffort(scale=-5e-6),
        ]

    def get_terminations(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractTermination]:
        return [
            terminations.MotionEnded(command="motion"),
            terminations.BaseOffMotion(command="motion", distance=0.3, max_angle=0.8),
            terminations.BodyOffMotion(command="motion", bodies=ENDS, distance=0.3),
        ]

    def get_resets(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractReset]:
        noise = [
            resets.RandomJointPositions(magnitude=0.05),
            resets.RandomBaseMotion(max_lin_vel=(0.1, 0.1, 0.05), max_ang_vel=(0.2, 0.2, 0.2)),
        ]
        return [resets.ToMotion(command="motion"), *([] if self._at_beginning else noise)]

    def get_events(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractEvent]:
        return []

    def get_randomizers(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractRandomizer]:
        return [randomizers.RandomFriction()]


if __name__ == "__main__":
    HumanoidTrackingTask.launch(HumanoidTrackingConfig())
