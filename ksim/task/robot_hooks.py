"""Hooks for the robot and its MDP, with working defaults."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import mujoco

from ksim.errors import ConfigError
from ksim.mdp import resets as reset_terms, terminations as termination_terms
from ksim.mdp.actions import AbstractActionFilter
from ksim.mdp.commands import AbstractCommand
from ksim.mdp.curriculum import AbstractCurriculum
from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.events import AbstractEvent
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.observations.kinematics import BaseAngularVelocity, ProjectedGravity
from ksim.mdp.observations.sensors import JointPosition, JointVelocity
from ksim.mdp.observations.task import CommandValue, LastAction
from ksim.mdp.randomizers import AbstractRandomizer
from ksim.mdp.resets import AbstractReset
from ksim.mdp.rewards import AbstractReward
from ksim.mdp.term import Terms, named_terms
from ksim.mdp.terminations import AbstractTermination
from ksim.physics import AbstractActuators, ModelActuators, PhysicsModel, Terrain


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


Observations = Terms[AbstractObservation] | Mapping[str, Terms[AbstractObservation]]


class RobotHooks:
    """A robot and the terms of its MDP. All but the robot and its rewards have defaults."""

    def get_robot(self) -> str | Path | mujoco.MjSpec:
        """The robot and its world: a spec, or the path of an MJCF file, from the current directory if relative."""
        raise ConfigError(f"{type(self).__name__} must define get_robot (an MJCF file) or get_environment.")

    def get_actuators(self) -> AbstractActuators:
        """The actuators; by default the model's own, unchanged."""
        return ModelActuators()

    def get_terrain(self) -> Terrain | None:
        """Terrain that replaces the robot's floor; None, the default, keeps the floor."""
        return None

    def get_rewards(self, physics_model: PhysicsModel) -> Terms[AbstractReward]:
        """Reward terms, as a list or a mapping from names."""
        raise ConfigError(f"{type(self).__name__} must define get_rewards: there is nothing to learn without one.")

    def get_observations(self, physics_model: PhysicsModel) -> Observations:
        """Observation terms for policy and critic, or a mapping from the groups `actor` and `critic` to terms.

        By default gravity and angular velocity in the base's frame (where there is a free base), joints, the last
        action and every command.
        """
        return default_observations(physics_model, list(named_terms(self.get_commands(physics_model), AbstractCommand)))

    def get_commands(self, physics_model: PhysicsModel) -> Terms[AbstractCommand]:
        """Commands, by the names with which other terms refer to them; none by default."""
        return []

    def get_terminations(self, physics_model: PhysicsModel) -> Terms[AbstractTermination]:
        """Conditions that end an episode; a time limit of 20 s by default."""
        return [termination_terms.TimeLimit()]

    def get_resets(self, physics_model: PhysicsModel) -> Terms[AbstractReset]:
        """Changes to the first keyframe (or reference pose) at a reset; small joint offsets by default."""
        return [reset_terms.RandomJointPositions(), reset_terms.RandomJointVelocities()]

    def get_events(self, physics_model: PhysicsModel) -> Terms[AbstractEvent]:
        """Events during an episode, such as pushes; none by default."""
        return []

    def get_randomizers(self, physics_model: PhysicsModel) -> Terms[AbstractRandomizer]:
        """Randomization of the model at each reset; none by default."""
        return []

    def get_action_filters(self, physics_model: PhysicsModel) -> Terms[AbstractActionFilter]:
        """Filters between actions and actuators (latency, drops); none by default."""
        return []

    def get_curricula(self, physics_model: PhysicsModel) -> Mapping[str, AbstractCurriculum | AbstractEnvCurriculum]:
        """Curricula, by the names with which terms read their levels; none by default.

        An `AbstractCurriculum` has one level for all environments, an `AbstractEnvCurriculum` one for each.
        """
        return {}
