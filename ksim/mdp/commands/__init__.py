"""Commands, one file per theme."""

from ksim.mdp.commands.base import AbstractCommand as AbstractCommand, AbstractDrawnCommand as AbstractDrawnCommand
from ksim.mdp.commands.posture import HeadingCommand as HeadingCommand, HeightCommand as HeightCommand
from ksim.mdp.commands.velocity import VelocityCommand as VelocityCommand
