"""The levels of curricula: those of all envs, and those of single envs, drawn and after their episodes."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from ksim.mdp.curriculum import AbstractBinCurriculum, AbstractCurriculum, CurriculumContext
from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.term import Context
from ksim.mdp.term_errors import naming
from ksim.physics.model import PhysicsModel
from ksim.rollout.term_calls import TermCalls, checked_scalar
from ksim.types import Levels, Metrics

LEVELS = "curriculum/"
"""Prefix of level metrics. Their minimum and maximum are logged."""
BINS = "curriculum_bin/"
"""Prefix of the metrics that hold the bins of steps. They are counted, not averaged."""
_ROUNDING = 1e-4
"""A level that is above 1 by less is 1: sums of fractions such as 1/3 are not exact."""

Curricula = Mapping[str, AbstractCurriculum]
EnvCurricula = Mapping[str, AbstractEnvCurriculum]


def initial_levels(curricula: Curricula) -> Levels:
    """The levels of the curricula of all envs before the first iteration."""
    return {name: curriculum.initial() for name, curriculum in curricula.items()}


def full_levels(curricula: Curricula) -> Levels:
    """The ends of the curricula of all envs."""
    return {name: jnp.ones_like(level) for name, level in initial_levels(curricula).items()}


def moved_levels(curricula: Curricula, levels: Levels, context: CurriculumContext) -> Levels:
    """The levels of the curricula of all envs after an iteration, whose metrics have the counts of bins."""
    moved = {}
    for name, level in levels.items():
        counts = (context.metrics.get(f"{BINS}{name}/{what}") for what in ("steps", "failures"))
        own = dataclasses.replace(context, **dict(zip(("num_steps", "num_failures"), counts, strict=True)))
        with naming(f"curriculum/{name}", curricula[name]):
            moved[name] = jnp.clip(curricula[name](level, own), 0.0, 1.0)
    return moved


def step_bins(curricula: Curricula, context: Context) -> Metrics:
    """The bin of a step for each curriculum that counts by bins."""
    bins = {}
    for name, curriculum in curricula.items():
        if isinstance(curriculum, AbstractBinCurriculum):
            with naming(f"curriculum/{name}", curriculum):
                bins[f"{BINS}{name}"] = checked_scalar("Curriculum", name, curriculum.bin_of(context), jnp.float32)
    return bins


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
