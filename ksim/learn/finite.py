"""What keeps numbers that are not finite out of the learner: steps and statistics are skipped, alike on all devices."""

import dataclasses
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PyTree

from ksim.nn.normalizer import RunningMoments
from ksim.parallel.collectives import all_across_devices
from ksim.rollout.unroll import NOT_FINITE
from ksim.types import LearnerState, Metrics

MomentsT = TypeVar("MomentsT", bound=RunningMoments)

MAX_NOT_FINITE = 0.5
"""Where a larger share of the steps is not finite, there is nothing to learn from a rollout."""

BAD_UPDATES = "policy/bad_updates"
"""The metric of optimizer steps that were skipped; every learner reports it."""


class Optimized(NamedTuple):
    """What an optimizer step changes.

    Attributes:
        params: The network's arrays.
        opt_state: The optimizer's state.
        num_bad: Steps skipped in a row.
    """

    params: PyTree
    opt_state: PyTree
    num_bad: Int[Array, ""]

    @staticmethod
    def of(learner: LearnerState) -> "Optimized":
        """That part of a learner."""
        return Optimized(learner.params, learner.opt_state, learner.num_bad_updates)

    def put_into(self, learner: LearnerState) -> LearnerState:
        """The learner with these in place of its own."""
        return dataclasses.replace(learner, params=self.params, opt_state=self.opt_state, num_bad_updates=self.num_bad)


def has_enough_finite(rollout_figures: Metrics) -> Bool[Array, ""]:
    """Whether enough of a rollout's steps are finite, by its figures, to learn from it."""
    return jnp.asarray(rollout_figures.get(NOT_FINITE, 0.0)) <= MAX_NOT_FINITE


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers of a tree are finite, and its norm is."""
    return jnp.isfinite(optax.tree.norm(tree))


def optimizer_step(
    optimizer: optax.GradientTransformation, before: Optimized, grads: PyTree, is_finite: Bool[Array, ""]
) -> Optimized:
    """One step of an optimizer; where the gradients are not finite, it is skipped and counted."""
    updates, opt_state = optimizer.update(grads, before.opt_state, before.params)
    stepped = Optimized(optax.apply_updates(before.params, updates), opt_state, jnp.zeros_like(before.num_bad))
    return select(is_finite, stepped, before._replace(num_bad=before.num_bad + 1))


def select(condition: Bool[Array, ""], if_true: Optimized, if_false: Optimized) -> Optimized:
    """One of two, by a condition."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), if_true, if_false)


def updated_normalizer(
    normalizer: MomentsT, batch_et: dict[str, Array], is_usable: Bool[Array, ""], axis_name: str | None
) -> MomentsT:
    """Statistics with a rollout's numbers merged in, unless it is not usable or holds one that is not finite."""
    updated = normalizer.update(batch_et, axis_name)
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(updated)]))
    is_finite = all_across_devices(is_finite & is_usable, axis_name)
    return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), updated, normalizer)
