"""Commands, one file per theme."""

from ksim.mdp.commands.base import AbstractCommand as AbstractCommand
from ksim.mdp.commands.velocity import VelocityCommand as VelocityCommand
