"""A task for tests of motion tracking: a body that floats without gravity, with an arm, and two clips of it."""

from dataclasses import dataclass
from functools import cached_property

import jax
import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

import ksim
from ksim.mdp import commands, curriculum, observations, resets, rewards, terminations
from ksim.mdp.actions import AroundMotion
from ksim.motion.files import make_library
from ksim.motion.library import MotionLibrary
from ksim.motion.motion import Motion
from ksim.physics import PositionActuators, compile_model
from tests.support.tasks import BipedConfig

ACTUATORS = PositionActuators(kp=2.0, kd=0.2, action_scale=0.5)
FLOATER = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="trunk" pos="0 0 1">
      <freejoint name="root"/>
      <geom type="box" size=".1 .15 .1" mass="5" contype="0" conaffinity="0"/>
      <body name="arm" pos="0 .2 0">
        <joint name="shoulder" axis="0 1 0" range="-150 150" damping=".2" armature=".01"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass=".3" contype="0" conaffinity="0"/>
        <body name="hand" pos="0 0 -.3"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="shoulder" joint="shoulder" ctrlrange="-2 2"/></actuator>
</mujoco>
"""


def swing(name: str, seconds: float, speed: float) -> Motion:
    """The arm swings, in rad/s, while the body drifts and turns."""
    time = np.arange(round(seconds * 50) + 1) / 50
    position = np.stack([0.2 * time, np.sin(3 * time) / 5, 1 + np.sin(2 * time) / 5], axis=1)
    turn = Rotation.from_rotvec(np.outer(time, [1.0, -0.7, 1.3]))
    return Motion(name, 50.0, ("shoulder",), position, turn.as_quat(scalar_first=True), np.sin(speed * time)[:, None])


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class FloaterConfig(BipedConfig):
    num_envs: int = 32
    rollout_length: int = 12
    dt: float = 0.01
    engine: str = "mujoco"
    init_std: float = 0.5


class FloaterTask(ksim.DistributedPPOTask[FloaterConfig]):
    """Track two clips with every term of motion tracking."""

    def get_robot(self):
        return mujoco.MjSpec.from_string(FLOATER)

    @cached_property
    def motions(self) -> MotionLibrary:
        model = compile_model(mujoco.MjSpec.from_string(FLOATER), dt=0.01, ctrl_dt=0.02)
        return make_library([swing("slow", 0.6, 2.0), swing("fast", 0.4, 12.0)], model, bin_s=0.1)

    def get_actuators(self):
        return ACTUATORS

    def get_action_filters(self, physics_model):
        return [AroundMotion(command="motion", actuators=ACTUATORS)]

    def get_commands(self, physics_model):
        return {"motion": commands.MotionCommand(self.motions, starts="starts", at_beginning=self.evaluating)}

    def get_curricula(self, physics_model):
        return {"starts": curriculum.AdaptiveStarts(motions=self.motions, command="motion", rate=0.2)}

    def get_observations(self, physics_model):
        return {
            "actor": [
                observations.MotionPhase(command="motion"),
                observations.MotionJoints(command="motion", steps=(0, 2)),
                observations.MotionJointVelocities(command="motion"),
                observations.MotionBasePosition(command="motion"),
                observations.MotionBaseOrientation(command="motion"),
                observations.JointPosition(),
                observations.JointVelocity(),
                observations.LastAction(),
            ]
        }

    def get_rewards(self, physics_model):
        return [
            rewards.TrackAnchorPosition(command="motion"),
            rewards.TrackAnchorOrientation(command="motion"),
            rewards.TrackBodyPositions(command="motion"),
            rewards.TrackBodyOrientations(command="motion"),
            rewards.TrackBodyVelocities(command="motion"),
            rewards.TrackBodyAngularVelocities(command="motion"),
            rewards.TrackMotionJoints(command="motion"),
            rewards.TrackMotionJointVelocities(command="motion"),
        ]

    def get_resets(self, physics_model):
        return [resets.ToMotion(command="motion")]

    def get_terminations(self, physics_model):
        return [
            terminations.MotionEnded(command="motion"),
            terminations.BaseOffMotion(command="motion"),
            terminations.BodyOffMotion(command="motion", bodies=("hand",), distance=0.15),
        ]


class TiltedFloaterTask(FloaterTask):
    """Starts far from the motion: an observation that is nearly constant would make the normalizer magnify rounding."""

    def get_resets(self, physics_model):
        return [*super().get_resets(physics_model), resets.RandomHeading(max_yaw=0.6), resets.RandomBaseTilt(0.6, 0.6)]
