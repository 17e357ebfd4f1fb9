"""Levels of curricula during training: the common ones and the per-env ones.

A common level is part of the learner, and the training step copies it into the env states. It changes after each
iteration, by the metrics of all envs; with bins, also by the steps and failures that are counted in each bin.
A per-env level is part of its env's state. Each step computes the level that would follow if the episode ended with it.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from ksim.keys import DRAWN_LEVELS
from ksim.mdp.curriculum import AbstractBinCurriculum, AbstractCurriculum, CurriculumContext
from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.term import Context
from ksim.mdp.term_errors import named_errors
from ksim.parallel.collectives import sum_across_devices
from ksim.physics.model import PhysicsModel
from ksim.rollout.terms import TermCalls, checked_scalar
from ksim.rollout.unroll import finite_steps
from ksim.types import Levels, Metrics, Trajectory

LEVELS = "curriculum/"
"""Prefix of level metrics. Their minimum and maximum are logged."""
BINS = "curriculum_bin/"
"""Prefix of the metrics that hold the bins of steps. They are counted, not averaged."""
_ROUNDING = 1e-4
"""A level above 1 by less than this counts as 1: sums of fractions such as 1/3 are not exact."""

Curricula = Mapping[str, AbstractCurriculum]
EnvCurricula = Mapping[str, AbstractEnvCurriculum]


def initial_levels(curricula: Curricula) -> Levels:
    """The common levels before the first iteration."""
    return {name: curriculum.initial() for name, curriculum in curricula.items()}


def full_levels(curricula: Curricula) -> Levels:
    """The top common levels: the full task."""
    return {name: jnp.ones_like(level) for name, level in initial_levels(curricula).items()}


def step_bins(curricula: Curricula, context: Context) -> Metrics:
    """The bin of a step for each curriculum with bins."""
    bins = {}
    for name, curriculum in curricula.items():
        if isinstance(curriculum, AbstractBinCurriculum):
            with named_errors(f"curriculum/{name}", curriculum):
                bins[f"{BINS}{name}"] = checked_scalar("Curriculum", name, curriculum.bin_of(context), jnp.float32)
    return bins


def bin_counts(trajectory: Trajectory, levels: Levels, axis_name: str | None) -> Metrics:
    """Steps and failures in the bins of each curriculum with bins: arrays of shape (bins,), over all devices."""
    is_finite_et = finite_steps(trajectory)
    counts = {}
    for name, bin_et in trajectory.metrics.items():
        if name.startswith(BINS):
            count = jnp.zeros_like(levels[name.removeprefix(BINS)])
            index_et = bin_et.astype(jnp.int32)
            counts[f"{name}/steps"] = count.at[index_et].add(is_finite_et)
            counts[f"{name}/failures"] = count.at[index_et].add(is_finite_et & trajectory.terminated)
    return sum_across_devices(counts, axis_name) if counts else {}


def moved_levels(curricula: Curricula, levels: Levels, context: CurriculumContext) -> Levels:
    """The common levels after an iteration, whose metrics include the counts of `bin_counts`."""
    moved = {}
    for name, level in levels.items():
        counts = (context.metrics.get(f"{BINS}{name}/{what}") for what in ("steps", "failures"))
        own = dataclasses.replace(context, **dict(zip(("num_steps", "num_failures"), counts, strict=True)))
        with named_errors(f"curriculum/{name}", curricula[name]):
            moved[name] = jnp.clip(curricula[name](level, own), 0.0, 1.0)
    return moved


def level_metrics(levels: Levels) -> Metrics:
    """Common levels by the names under which they are logged; for those with bins, the mean, minimum and maximum."""
    metrics = {f"{LEVELS}{name}": jnp.mean(level) for name, level in levels.items()}
    for name, level in levels.items():
        if level.ndim:
            metrics |= {f"{LEVELS}{name}/min": jnp.min(level), f"{LEVELS}{name}/max": jnp.max(level)}
    return metrics


def level_keys(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """The keys to draw the per-env levels of an episode, and those for envs that rise above 1 in it."""
    level_key, beyond_key = jax.random.split(jax.random.fold_in(key, DRAWN_LEVELS))
    return level_key, beyond_key


def drawn_levels(curricula: EnvCurricula, key: PRNGKeyArray, model: PhysicsModel) -> Levels:
    """A per-env level of each curriculum, drawn by the curriculum."""
    drawn = {}
    for i, (name, curriculum) in enumerate(curricula.items()):
        with named_errors(f"curriculum/{name}", curriculum):
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
    """The per-env levels in the next episode, if this one ends with this step.

    Args:
        context: The context after the step, with this episode's levels.
        before: The result for the previous step, or this episode's levels. It stays if the state is not physical or a
            change is non-finite.
        beyond: Levels for an env that rises above 1.
    """
    following = {}
    for name in curricula:
        change = checked_scalar("Curriculum", name, calls(f"curriculum/{name}", context), jnp.float32)
        level = context.levels[name] + change
        moved = jnp.where(level > 1 + _ROUNDING, beyond[name], jnp.clip(level, 0.0, 1.0))
        following[name] = jnp.where(is_physical & jnp.isfinite(change), moved, before[name])
    return following
