"""Minibatches: a rollout's division into them, and the loop over those of all passes, with synchronised gradients.

A period is `GradientSync.period` minibatches. With the mode `accumulate`, a device averages their gradients. With
`local`, it takes a local optimizer step with every minibatch but the last. The gradients of the last one are averaged
over devices for a common step; then parameters and moments are averaged as well, unless the period had only one
minibatch. Devices communicate only at the end of a period, after which replicas are always identical.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ksim.learn.guards import UpdateState, all_finite, optimizer_step
from ksim.learn.learner import SyncGradients
from ksim.parallel.collectives import all_across_devices, device_index, max_across_devices, mean_across_devices
from ksim.parallel.replicas import copy_from_replica
from ksim.types import GradSyncMode, Metrics, tree_where


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinibatchHyperparameters:
    """Hyperparameters of every algorithm on minibatches: the options of the same names, with `num_batches` set."""

    gamma: float
    gae_lambda: float
    num_batches: int
    num_passes: int
    normalize_observations: bool
    grad_sync_period: int
    grad_sync_mode: GradSyncMode

    @property
    def syncs_per_iteration(self) -> int:
        """Gradient synchronisations per iteration, including one for an incomplete last period."""
        return -(-self.num_batches * self.num_passes // self.grad_sync_period)

    @property
    def minibatches_before_step(self) -> int:
        """Number of minibatches before the first optimizer step of an iteration."""
        return self.grad_sync_period if self.grad_sync_mode == "accumulate" else 1


def stratified_minibatches(
    key: PRNGKeyArray, num_local_envs: int, *, num_batches: int, num_passes: int, axis_name: str | None
) -> Int[Array, "m b"]:
    """Local env indices of each minibatch of every pass, one row per minibatch, in the order of updates.

    The envs are divided into strata of `num_batches` consecutive envs. In each stratum a permutation, keyed by the pass
    and the stratum's place in the global batch, sends one env to each minibatch. Every env is in one minibatch of each
    pass, every device has an equal share of each minibatch, and the minibatches are the same on any number of
    devices that divides the batch size.

    Args:
        key: One key for all passes, the same on every device.
        num_local_envs: Envs of this device, a multiple of `num_batches`.
        num_batches: Minibatches per pass.
    """
    chex.assert_is_divisible(num_local_envs, num_batches)
    num_strata = num_local_envs // num_batches
    first_stratum = device_index(axis_name) * num_strata

    def one_pass(pass_index: Array) -> Int[Array, "m b"]:
        pass_key = jax.random.fold_in(key, pass_index)

        def one_stratum(local_index: Array) -> Int[Array, " m"]:
            stratum_key = jax.random.fold_in(pass_key, first_stratum + local_index)
            return local_index * num_batches + jax.random.permutation(stratum_key, num_batches)

        return jax.vmap(one_stratum)(jnp.arange(num_strata)).T

    return jax.vmap(one_pass)(jnp.arange(num_passes)).reshape(num_passes * num_batches, num_strata)


def take_rows(rows: Any, index_b: Int[Array, " b"]) -> Any:
    """Some rows of every leaf."""
    return jax.tree.map(lambda x: x[index_b], rows)


Gradients = Callable[[PyTree, Int[Array, " b"]], tuple[PyTree, Metrics]]
"""`(params, envs of a minibatch) -> (gradients, metrics)`."""
Step = Callable[[UpdateState, PyTree, str | None], tuple[UpdateState, Bool[Array, ""]]]
"""`(before, gradients, axis_name) -> (after, is_skipped)`. Skipped by all devices of the axis if any must skip it."""


class Outcome(NamedTuple):
    """Metrics of every minibatch, and the number of optimizer steps that any device skipped."""

    metrics: Metrics
    num_skipped: Int[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientSync:
    """The synchronisation of gradients.

    Attributes:
        period: Minibatches per synchronisation.
        mode: `accumulate` or `local`, see `GradSyncMode`.
    """

    average: SyncGradients
    axis_name: str | None
    period: int = 1
    mode: GradSyncMode = "accumulate"

    @staticmethod
    def of(average: SyncGradients, axis_name: str | None, hyper: MinibatchHyperparameters) -> "GradientSync":
        """The synchronisation that hyperparameters ask for."""
        return GradientSync(
            average=average, axis_name=axis_name, period=hyper.grad_sync_period, mode=hyper.grad_sync_mode
        )

    def gradients_of_period(
        self, gradients: Gradients, step: Step, before: UpdateState, env_index_pb: Int[Array, "p b"]
    ) -> tuple[UpdateState, PyTree, Outcome]:
        """This device's gradients of one period, to be averaged over devices.

        Args:
            gradients: Computes the gradients of a minibatch.
            env_index_pb: Envs of the period's minibatches.

        Returns:
            Parameters and optimizer state, changed only by local steps; the gradients; and the metrics of every
            minibatch with the number of minibatches for which any device skipped a local step.
        """
        if self._has_local_steps(env_index_pb):
            return self._local_steps(gradients, step, before, env_index_pb)
        return before, *_accumulated(gradients, before.params, env_index_pb)

    def rejoin(self, stepped: UpdateState, env_index_pb: Int[Array, "p b"]) -> UpdateState:
        """Makes replicas identical again after local steps: floating-point leaves become their means over devices.

        Other leaves are copied from the first device: step counts differ if a device skipped a local step. After a
        period of a single minibatch, which has no local step, nothing changes.
        """
        if not self._has_local_steps(env_index_pb):
            return stepped
        floats, rest = eqx.partition((stepped.params, stepped.opt_state), eqx.is_inexact_array)
        first = copy_from_replica(rest, jnp.int32(0), self.axis_name)
        params, opt_state = eqx.combine(mean_across_devices(floats, self.axis_name), first)
        return stepped._replace(params=params, opt_state=opt_state)

    def _has_local_steps(self, env_index_pb: Int[Array, "p b"]) -> bool:
        return self.mode == "local" and env_index_pb.shape[0] > 1

    def _local_steps(
        self, gradients: Gradients, step: Step, before: UpdateState, env_index_pb: Int[Array, "p b"]
    ) -> tuple[UpdateState, PyTree, Outcome]:
        def minibatch(
            carry: tuple[UpdateState, PyTree], inputs: tuple[Array, Array]
        ) -> tuple[tuple[UpdateState, PyTree], tuple[Metrics, Array]]:
            (at, grads), (place, env_index_b) = carry, inputs
            # Step with the previous minibatch, so that the last one's gradients remain to be synchronised.
            is_due = place > 0
            stepped, is_skipped = step(at, grads, None)
            at = tree_where(is_due, stepped, at)
            grads, metrics = gradients(at.params, env_index_b)
            return (at, grads), (metrics, is_due & is_skipped)

        start = (before, jax.tree.map(jnp.zeros_like, before.params))
        inputs = (jnp.arange(env_index_pb.shape[0]), env_index_pb)
        (at, grads), (metrics_p, is_skipped_p) = jax.lax.scan(minibatch, start, inputs)
        num_bad, is_skipped_p = max_across_devices((at.num_bad, is_skipped_p.astype(jnp.int32)), self.axis_name)
        return at._replace(num_bad=num_bad), grads, Outcome(metrics_p, jnp.sum(is_skipped_p))


def _accumulated(gradients: Gradients, params: PyTree, env_index_pb: Int[Array, "p b"]) -> tuple[PyTree, Outcome]:
    """The mean of the gradients of minibatches, and their metrics."""

    def minibatch(total: PyTree, env_index_b: Array) -> tuple[PyTree, Metrics]:
        grads, metrics = gradients(params, env_index_b)
        return jax.tree.map(jnp.add, total, grads), metrics

    total, metrics_p = jax.lax.scan(minibatch, jax.tree.map(jnp.zeros_like, params), env_index_pb)
    return jax.tree.map(lambda g: g / env_index_pb.shape[0], total), Outcome(metrics_p, jnp.int32(0))


def update(
    start: UpdateState,
    rollout: PyTree,
    env_index_mb: Int[Array, "m b"],
    *,
    loss: Callable[[PyTree, Any], tuple[Float[Array, ""], Metrics]],
    optimizer: optax.GradientTransformation,
    sync: GradientSync,
    is_usable: Bool[Array, ""] | bool = True,
    gather: Callable[[Any, Int[Array, " b"]], Any] = take_rows,
) -> tuple[UpdateState, Outcome]:
    """Optimizes over the minibatches of all passes, Schulman et al. 2017 (arXiv:1707.06347), algorithm 1.

    A step whose gradient is non-finite on any device is skipped on all devices. Each minibatch has its own step,
    unless `sync` accumulates several.

    Args:
        start: The network's arrays and the optimizer's state, the same on every device.
        rollout: Inputs of the loss, for all of this device's envs.
        env_index_mb: Local envs of each minibatch, in the order of passes.
        optimizer: Gradient transformation that includes the step size.
        is_usable: Whether the rollout may be learned from; if not, all steps are skipped.
        gather: Makes the input of the loss from a rollout and a row of `env_index_mb`.

    Returns:
        The new state (its `num_bad` is the largest over devices), this device's metrics per minibatch, and the number
        of optimizer steps that any device skipped.
    """
    chex.assert_rank(env_index_mb, 2)
    chex.assert_type(env_index_mb, int)
    # Without this check, a leaf with fewer envs would repeat its last row: XLA clamps indices.
    chex.assert_equal_shape_prefix(jax.tree.leaves(rollout), 1)

    def gradients(params: PyTree, env_index_b: Array) -> tuple[PyTree, Metrics]:
        return jax.grad(loss, has_aux=True)(params, gather(rollout, env_index_b))

    def step(before: UpdateState, grads: PyTree, axis_name: str | None) -> tuple[UpdateState, Bool[Array, ""]]:
        is_finite = all_across_devices(all_finite(grads) & is_usable, axis_name)
        return optimizer_step(optimizer, before, grads, is_finite), ~is_finite

    def one_period(before: UpdateState, env_index_pb: Array) -> tuple[UpdateState, Outcome]:
        at, grads, local = sync.gradients_of_period(gradients, step, before, env_index_pb)
        stepped, is_skipped = step(at, sync.average(grads), sync.axis_name)
        return sync.rejoin(stepped, env_index_pb), local._replace(num_skipped=local.num_skipped + is_skipped)

    return _scan_periods(one_period, start, env_index_mb, sync.period)


def _scan_periods(
    one_period: Callable[[UpdateState, Array], tuple[UpdateState, Outcome]],
    start: UpdateState,
    env_index_mb: Int[Array, "m b"],
    length: int,
) -> tuple[UpdateState, Outcome]:
    """Runs `one_period` on `length` minibatches at a time and then on the remaining ones.

    Returns:
        The state after them, the metrics of every minibatch in order, and the total number of skipped steps.
    """
    num_minibatches = env_index_mb.shape[0]
    length = min(length, num_minibatches)
    num_in_full = num_minibatches // length * length
    index_npb = env_index_mb[:num_in_full].reshape(-1, length, env_index_mb.shape[1])
    at, (metrics_np, num_skipped_n) = jax.lax.scan(one_period, start, index_npb)
    metrics_m = jax.tree.map(jnp.ravel, metrics_np)
    num_skipped = jnp.sum(num_skipped_n)
    if num_in_full < num_minibatches:
        at, (metrics_p, num_more) = one_period(at, env_index_mb[num_in_full:])
        metrics_m = jax.tree.map(lambda m, p: jnp.concatenate([m, p]), metrics_m, metrics_p)
        num_skipped += num_more
    return at, Outcome(metrics_m, num_skipped)
