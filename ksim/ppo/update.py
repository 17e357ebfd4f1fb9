"""Passes over a rollout: gradients, their synchronisation over devices, and the optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PyTree

from ksim.parallel.collectives import all_across_devices, max_across_devices, mean_across_devices
from ksim.parallel.replicas import copy_from_replica
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.ppo.losses import Minibatch, ppo_loss
from ksim.types import Metrics

SyncGradients = Callable[[PyTree], PyTree]


class _Learner(NamedTuple):
    """What an optimizer step changes.

    Attributes:
        params: The network's arrays.
        opt_state: The optimizer's state.
        num_bad: Steps skipped in a row.
    """

    params: PyTree
    opt_state: PyTree
    num_bad: Int[Array, ""]


def update(
    params: PyTree,
    opt_state: PyTree,
    num_bad: Int[Array, ""],
    rollout: Minibatch,
    env_index_mb: Int[Array, "m b"],
    *,
    static: PyTree,
    optimizer: optax.GradientTransformation,
    sync_gradients: SyncGradients,
    hyper: PPOHyperparameters,
    axis_name: str | None,
    is_usable: Bool[Array, ""] | bool = True,
) -> tuple[PyTree, PyTree, Int[Array, ""], Metrics]:
    """Takes the optimizer through all minibatches, `grad_sync_period` of them at a time.

    With `grad_sync_mode="accumulate"` a device sums the gradients of a period; their mean, averaged over devices, makes
    one optimizer step. With `"local"` it takes a step of its own with every minibatch but the last of a period, whose
    gradients are averaged over devices, as parameters and moments are after that step. Minibatches that remain where
    the period does not divide their number make one more, shorter period. Devices talk to each other at the end of a
    period only, and replicas always leave it identical.

    A step whose gradient is not finite is skipped: a device's own by that device, one with synchronised gradients by
    all of them if it is not finite on any one.

    Args:
        params: The network's arrays, the same on every device.
        opt_state: The optimizer's state, likewise.
        num_bad: Steps skipped in a row before this call.
        rollout: What the loss needs, for all of this device's envs.
        env_index_mb: Local envs of each minibatch.
        static: The network's other leaves.
        optimizer: Gradient transformation, with its step size inside.
        sync_gradients: Averages gradients over devices.
        hyper: Numbers of the algorithm.
        axis_name: The mapped axis of devices.
        is_usable: Whether there is anything to learn from the rollout; if not, all steps are skipped.

    Returns:
        Parameters, optimizer state, steps skipped in a row (by the device with most of them), and this device's metrics
        averaged over minibatches. `policy/bad_updates` counts the minibatches with which any device skipped a step.
    """
    chex.assert_rank(env_index_mb, 2)
    chex.assert_type(env_index_mb, int)
    # A leaf with fewer envs would be read at its last one: XLA clamps indices.
    chex.assert_equal_shape_prefix(jax.tree.leaves(rollout), 1)
    is_local = hyper.grad_sync_mode == "local"

    def gradients(params: PyTree, env_index_b: Array) -> tuple[PyTree, Metrics]:
        batch = jax.tree.map(lambda x: x[env_index_b], rollout)
        loss = lambda params: ppo_loss(eqx.combine(params, static), batch, hyper)
        return jax.grad(loss, has_aux=True)(params)

    def step(learner: _Learner, grads: PyTree, is_finite: Bool[Array, ""]) -> _Learner:
        updates, opt_state = optimizer.update(grads, learner.opt_state, learner.params)
        stepped = _Learner(optax.apply_updates(learner.params, updates), opt_state, jnp.zeros_like(learner.num_bad))
        return _select(is_finite, stepped, learner._replace(num_bad=learner.num_bad + 1))

    def accumulate(carry: tuple[_Learner, PyTree], inputs: tuple[Array, Array]) -> tuple[Any, tuple[Metrics, Array]]:
        (learner, total), (_, env_index_b) = carry, inputs
        grads, metrics = gradients(learner.params, env_index_b)
        return (learner, jax.tree.map(jnp.add, total, grads)), (metrics, jnp.bool_(False))

    def step_alone(carry: tuple[_Learner, PyTree], inputs: tuple[Array, Array]) -> tuple[Any, tuple[Metrics, Array]]:
        (learner, grads), (place, env_index_b) = carry, inputs
        # The step with the minibatch before, so that the gradients of the last one are left to be synchronised.
        is_due, is_finite = place > 0, _is_finite(grads) & is_usable
        learner = _select(is_due, step(learner, grads, is_finite), learner)
        grads, metrics = gradients(learner.params, env_index_b)
        return (learner, grads), (metrics, is_due & ~is_finite)

    def period(learner: _Learner, env_index_pb: Array) -> tuple[_Learner, tuple[Metrics, Array]]:
        length = env_index_pb.shape[0]
        start = (learner, jax.tree.map(jnp.zeros_like, learner.params))
        steps_alone = is_local and length > 1
        minibatch = step_alone if steps_alone else accumulate
        (learner, grads), (metrics_p, is_skipped_p) = jax.lax.scan(minibatch, start, (jnp.arange(length), env_index_pb))
        if steps_alone:
            bad = max_across_devices((learner.num_bad, is_skipped_p.astype(jnp.int32)), axis_name)
            learner, is_skipped_p = learner._replace(num_bad=bad[0]), bad[1]
        else:
            grads = jax.tree.map(lambda g: g / length, grads)
        grads = sync_gradients(grads)
        is_finite = all_across_devices(_is_finite(grads) & is_usable, axis_name)
        learner = step(learner, grads, is_finite)
        if is_local:
            params, opt_state = _join((learner.params, learner.opt_state), axis_name)
            learner = learner._replace(params=params, opt_state=opt_state)
        return learner, (metrics_p, jnp.sum(is_skipped_p) + ~is_finite)

    learner, (metrics_m, num_skipped) = _scan_periods(
        period, _Learner(params, opt_state, num_bad), env_index_mb, hyper.grad_sync_period
    )
    metrics: dict[str, Any] = jax.tree.map(jnp.mean, metrics_m)
    metrics["policy/bad_updates"] = num_skipped.astype(jnp.float32)
    metrics["policy/kl_last_pass"] = jnp.mean(metrics_m["policy/kl"][-hyper.num_batches :])
    return learner.params, learner.opt_state, learner.num_bad, metrics


def adapt_learning_rate(learning_rate: Array, kl: Array, hyper: PPOHyperparameters) -> Array:
    """The learning rate for the next iteration, from the KL divergence at the end of this one.

    Divided by 1.5 where the KL is above twice the desired one, multiplied where it is below half of it, as in
    Schulman et al. 2017 (arXiv:1707.06347), section 4, with a gentler factor. A KL that is not finite changes nothing.
    The rate stays between `min_learning_rate` and `max_learning_rate`.
    """
    chex.assert_rank([learning_rate, kl], 0)
    if hyper.desired_kl is None:
        return learning_rate
    factor = jnp.where(kl > 2 * hyper.desired_kl, 1 / 1.5, jnp.where(kl < hyper.desired_kl / 2, 1.5, 1.0))
    return jnp.clip(learning_rate * factor, hyper.min_learning_rate, hyper.max_learning_rate)


def _scan_periods(
    period: Callable[[_Learner, Array], tuple[_Learner, tuple[Metrics, Array]]],
    learner: _Learner,
    env_index_mb: Int[Array, "m b"],
    length: int,
) -> tuple[_Learner, tuple[Metrics, Int[Array, ""]]]:
    """Runs `period` on `length` minibatches at a time and then on those that remain.

    Returns:
        The learner after them, the metrics of every minibatch in their order, and the sum of the skipped ones.
    """
    num_minibatches = env_index_mb.shape[0]
    length = min(length, num_minibatches)
    num_in_full = num_minibatches // length * length
    index_npb = env_index_mb[:num_in_full].reshape(-1, length, env_index_mb.shape[1])
    learner, (metrics_np, num_skipped_n) = jax.lax.scan(period, learner, index_npb)
    metrics_m = jax.tree.map(jnp.ravel, metrics_np)
    num_skipped = jnp.sum(num_skipped_n)
    if num_in_full < num_minibatches:
        learner, (metrics_p, num_more) = period(learner, env_index_mb[num_in_full:])
        metrics_m = jax.tree.map(lambda m, p: jnp.concatenate([m, p]), metrics_m, metrics_p)
        num_skipped += num_more
    return learner, (metrics_m, num_skipped)


def _is_finite(grads: PyTree) -> Bool[Array, ""]:
    return jnp.isfinite(optax.tree.norm(grads))


def _select(condition: Bool[Array, ""], if_true: _Learner, if_false: _Learner) -> _Learner:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), if_true, if_false)


def _join(tree: PyTree, axis_name: str | None) -> PyTree:
    """Averages floating-point leaves over devices.

    The others become those of the first device: a device that skipped a step of its own has counted one less.
    """
    floats, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(mean_across_devices(floats, axis_name), copy_from_replica(rest, jnp.int32(0), axis_name))
