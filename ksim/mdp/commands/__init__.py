"""Commands, one file per theme."""

from ksim.mdp.commands.base import AbstractCommand as AbstractCommand, AbstractDrawnCommand as AbstractDrawnCommand
from ksim.mdp.commands.gait import GaitCommand as GaitCommand
from ksim.mdp.commands.motion import MotionCommand as MotionCommand
from ksim.mdp.commands.posture import (
    HeadingCommand as HeadingCommand,
    HeightCommand as HeightCommand,
    RollPitchCommand as RollPitchCommand,
)
from ksim.mdp.commands.targets import CartesianCommand as CartesianCommand, JointPoseCommand as JointPoseCommand
from ksim.mdp.commands.velocity import VelocityCommand as VelocityCommand
from ksim.mdp.commands.wrappers import ScaledByLevel as ScaledByLevel
