"""A robot's hooks composed into the environment of its MDP."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mujoco

from ksim.errors import ConfigError, quoted
from ksim.mdp.actions import AbstractActionFilter
from ksim.mdp.commands import AbstractCommand
from ksim.mdp.curriculum import AbstractCurriculum
from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.events import AbstractEvent
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.randomizers import AbstractRandomizer
from ksim.mdp.resets import AbstractReset
from ksim.mdp.rewards import AbstractReward
from ksim.mdp.term import named_terms
from ksim.mdp.terminations import AbstractTermination
from ksim.physics import PhysicsModel, compile_model, load_spec
from ksim.physics.contact_sizes import ContactSizes
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from ksim.rollout.trials import tried_sizes
from ksim.task.config import RLConfig
from ksim.task.robot_hooks import RobotHooks


def compose_environment(hooks: RobotHooks, config: RLConfig, engine: str, num_devices: int) -> MdpEnvironment:
    """The robot under its MDP; see `RLTask.get_environment`.

    Raises:
        ConfigError: A hook returns an object of the wrong type, or the robot has no actuators.
    """
    mdp = compose_mdp(hooks, compile_robot(hooks, config))
    model = compile_robot(hooks, config, [mdp.edit_spec])
    if mdp.actuators.action_size(model) < 1:
        raise ConfigError(
            f"The robot of {type(hooks).__name__} has no actuators, so that there is nothing to learn. Add some to "
            "its MJCF file."
        )
    sizes = given_or_measured(config, lambda: tried_sizes(mdp, model)) if engine == "warp" else None
    return MdpEnvironment(mdp, mdp.make_engine(engine, model, num_devices=num_devices, sizes=sizes))


def given_or_measured(config: RLConfig, measure: Callable[[], ContactSizes]) -> ContactSizes:
    """The contacts and constraints that MuJoCo Warp allocates: those given, and for the others the largest measured."""
    given = ContactSizes(config.warp_contacts or 0, config.warp_constraints or 0)
    if all(given):
        return given
    measured = measure().with_margin()
    return ContactSizes(given.contacts or measured.contacts, given.constraints or measured.constraints)


def compose_mdp(hooks: RobotHooks, physics_model: PhysicsModel) -> Mdp:
    """All terms of a task, named and checked."""
    observations = hooks.get_observations(physics_model)
    if isinstance(observations, Sequence) or any(isinstance(v, AbstractObservation) for v in observations.values()):
        observations = {"actor": observations}
    rewards = named_terms(hooks.get_rewards(physics_model), AbstractReward)
    if not rewards:
        raise ConfigError(f"{type(hooks).__name__}.get_rewards must return at least one reward.")
    curricula = named_terms(hooks.get_curricula(physics_model), AbstractCurriculum, AbstractEnvCurriculum)
    return Mdp(
        observations={group: named_terms(terms, AbstractObservation) for group, terms in observations.items()},  # type: ignore[arg-type]
        rewards=rewards,
        commands=named_terms(hooks.get_commands(physics_model), AbstractCommand),
        terminations=named_terms(hooks.get_terminations(physics_model), AbstractTermination),
        resets=named_terms(hooks.get_resets(physics_model), AbstractReset),
        events=named_terms(hooks.get_events(physics_model), AbstractEvent),
        randomizers=named_terms(hooks.get_randomizers(physics_model), AbstractRandomizer),
        actuators=hooks.get_actuators(),
        action_filters=named_terms(hooks.get_action_filters(physics_model), AbstractActionFilter),
        curricula={name: x for name, x in curricula.items() if isinstance(x, AbstractCurriculum)},
        env_curricula={name: x for name, x in curricula.items() if isinstance(x, AbstractEnvCurriculum)},
    )


def compile_robot(
    hooks: RobotHooks, config: RLConfig, edits: Sequence[Any] = (), *, on_terrain: bool = True
) -> PhysicsModel:
    """The robot's compiled model after the edits of its spec, on its terrain or (`on_terrain=False`) its own floor."""
    from ksim.physics.mujoco import silence_warnings  # noqa: PLC0415 - an engine, needed only for a robot

    silence_warnings()  # before the file is read, which warns as well
    robot = hooks.get_robot()
    if not isinstance(robot, str | Path | mujoco.MjSpec):
        raise ConfigError(f"get_robot must return the path of an MJCF file, or an MjSpec, not {quoted(robot)}.")
    return compile_model(
        load_spec(robot),
        dt=float(config.dt),
        ctrl_dt=float(config.ctrl_dt),
        edits=edits,
        terrain=hooks.get_terrain() if on_terrain else None,
        source=None if isinstance(robot, mujoco.MjSpec) else robot,
    )
