"""Guards against non-finite numbers: bad optimizer steps and statistics are skipped on all devices."""

import dataclasses
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PyTree

from ksim.nn.normalizer import RunningMoments
from ksim.parallel.collectives import all_across_devices
from ksim.rollout.unroll import NON_FINITE
from ksim.types import LearnerState, Metrics, tree_where

MomentsT = TypeVar("MomentsT", bound=RunningMoments)

MAX_NOT_FINITE = 0.5
"""Largest share of non-finite steps in a rollout that is still used for learning."""

BAD_UPDATES = "policy/bad_updates"
"""Metric of skipped optimizer steps; every learner reports it."""


class UpdateState(NamedTuple):
    """Arrays that an optimizer step changes.

    Attributes:
        num_bad: Steps skipped in a row.
    """

    params: PyTree
    opt_state: PyTree
    num_bad: Int[Array, ""]

    @staticmethod
    def of(learner: LearnerState) -> "UpdateState":
        """The arrays of a learner's state."""
        return UpdateState(learner.params, learner.opt_state, learner.num_bad_updates)

    def into(self, learner: LearnerState) -> LearnerState:
        """The learner's state with these arrays."""
        return dataclasses.replace(learner, params=self.params, opt_state=self.opt_state, num_bad_updates=self.num_bad)


def has_enough_finite(rollout_figures: Metrics) -> Bool[Array, ""]:
    """Whether enough of a rollout's steps are finite to learn from it, by its metrics."""
    return jnp.asarray(rollout_figures.get(NON_FINITE, 0.0)) <= MAX_NOT_FINITE


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers of a tree and its norm are finite."""
    return jnp.isfinite(optax.tree.norm(tree))


def optimizer_step(
    optimizer: optax.GradientTransformation, before: UpdateState, grads: PyTree, is_finite: Bool[Array, ""]
) -> UpdateState:
    """One optimizer step; skipped and counted if the gradients are non-finite."""
    updates, opt_state = optimizer.update(grads, before.opt_state, before.params)
    stepped = UpdateState(optax.apply_updates(before.params, updates), opt_state, jnp.zeros_like(before.num_bad))
    return tree_where(is_finite, stepped, before._replace(num_bad=before.num_bad + 1))


def updated_normalizer(
    normalizer: MomentsT, batch_et: dict[str, Array], is_usable: Bool[Array, ""], axis_name: str | None
) -> MomentsT:
    """Statistics updated by a rollout; unchanged if it is unusable or holds a non-finite number."""
    updated = normalizer.update(batch_et, axis_name)
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(updated)]))
    is_finite = all_across_devices(is_finite & is_usable, axis_name)
    return tree_where(is_finite, updated, normalizer)
