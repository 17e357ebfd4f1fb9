"""Episode groups and target poses of commands."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ksim.mdp.commands import AbstractCommand

Commands = Mapping[str, AbstractCommand]


def groups_of(commands: Commands) -> tuple[str, ...]:
    """Kinds of episodes, of the first command that has any."""
    return next((term.groups() for term in commands.values() if term.groups()), ())


def group_of(commands: Commands, values: Mapping[str, Array]) -> Int[Array, ""]:
    """The kind of an episode, by the values of its commands."""
    found = (term.group(values[name]) for name, term in commands.items() if term.groups())
    return next(found, jnp.int32(0))


def pose_of(commands: Commands, values: Mapping[str, Array]) -> Float[Array, " q"] | None:
    """The pose that the first command asks for that asks for any."""
    poses = (term.shown_pose(values[name]) for name, term in commands.items())
    return next((pose for pose in poses if pose is not None), None)
