"""The levels of curricula of single envs: drawn, and what they become when an episode ends."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.term import Context
from ksim.mdp.term_errors import naming
from ksim.physics.model import PhysicsModel
from ksim.rollout.term_calls import TermCalls, checked_scalar
from ksim.types import Levels

LEVELS = "curriculum/"
"""What the names of those metrics of an environment begin with that are levels, of which the extremes are logged."""
_ROUNDING = 1e-4
"""A level that is above 1 by less is 1: sums of fractions such as 1/3 are not exact."""

EnvCurricula = Mapping[str, AbstractEnvCurriculum]


def drawn_levels(curricula: EnvCurricula, key: PRNGKeyArray, model: PhysicsModel) -> Levels:
    """A level of each curriculum, as it draws it."""
    drawn = {}
    for i, (name, curriculum) in enumerate(curricula.items()):
        with naming(f"curriculum/{name}", curriculum):
            level = curriculum.draw(jax.random.fold_in(key, i), model)
        drawn[name] = jnp.clip(checked_scalar("Curriculum", name, level, jnp.float32), 0.0, 1.0)
    return drawn


def following_levels(
    curricula: EnvCurricula,
    calls: TermCalls,
    context: Context,
    *,
    before: Levels,
    beyond: Levels,
    is_physical: Bool[Array, ""],
) -> Levels:
    """The level of each curriculum in the next episode, if this one ends with this step.

    Args:
        curricula: The curricula.
        calls: The calls of this step's terms.
        context: What the step led to, with this episode's levels.
        before: What this function returned for the step before, or this episode's levels. It stays where a state is
            not physical, or a change not finite.
        beyond: Levels for an env that rises above 1.
        is_physical: Whether the state is one that a robot can be in.
    """
    following = {}
    for name in curricula:
        change = checked_scalar("Curriculum", name, calls(f"curriculum/{name}", context), jnp.float32)
        level = context.levels[name] + change
        moved = jnp.where(level > 1 + _ROUNDING, beyond[name], jnp.clip(level, 0.0, 1.0))
        following[name] = jnp.where(is_physical & jnp.isfinite(change), moved, before[name])
    return following
