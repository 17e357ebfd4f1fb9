"""The default observations of a task."""

from collections.abc import Sequence

from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.observations.base_state import BaseAngularVelocity, ProjectedGravity
from ksim.mdp.observations.joints import JointPosition, JointVelocity
from ksim.mdp.observations.task import CommandValue, LastAction
from ksim.physics.model import PhysicsModel


def default_observations(model: PhysicsModel, commands: Sequence[str]) -> dict[str, AbstractObservation]:
    """Proprioception, the last action and all commands."""
    terms: dict[str, AbstractObservation] = {}
    if model.names.has_base:
        terms["projected_gravity"] = ProjectedGravity()
        terms["base_angular_velocity"] = BaseAngularVelocity()
    terms["joint_position"] = JointPosition()
    terms["joint_velocity"] = JointVelocity()
    terms["last_action"] = LastAction()
    return terms | {name: CommandValue(command=name) for name in commands}
