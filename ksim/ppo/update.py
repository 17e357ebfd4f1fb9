"""Passes over a rollout: gradients, their synchronisation over devices, and the optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PyTree

from ksim.parallel.collectives import all_across_devices, mean_across_devices
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.ppo.losses import Minibatch, ppo_loss
from ksim.types import Metrics

SyncGradients = Callable[[PyTree], PyTree]


class _Loop(NamedTuple):
    """Carried from minibatch to minibatch.

    Attributes:
        params: The network's arrays.
        opt_state: The optimizer's state.
        grads: Sum of the gradients since the last synchronisation.
        num_bad: Updates skipped in a row.
    """

    params: PyTree
    opt_state: PyTree
    grads: PyTree
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
) -> tuple[PyTree, PyTree, Int[Array, ""], Metrics]:
    """Takes the optimizer through all minibatches.

    With `grad_sync_mode="accumulate"` the gradients of `grad_sync_period` minibatches are averaged, then over
    devices, for one optimizer step; what remains at the end is flushed as one more. With `"local"` every device takes
    its own steps, and with every `grad_sync_period`-th the gradients, then parameters and moments, are averaged over
    devices, as they are at the end: replicas always leave here identical.

    An optimizer step whose gradient is not finite on any one device is skipped on all of them.

    Args:
        params: The network's arrays, the same on every device.
        opt_state: The optimizer's state, likewise.
        num_bad: Updates skipped in a row before this call.
        rollout: What the loss needs, for all of this device's envs.
        env_index_mb: Local envs of each minibatch.
        static: The network's other leaves.
        optimizer: Gradient transformation, with its step size inside.
        sync_gradients: Averages gradients over devices.
        hyper: Numbers of the algorithm.
        axis_name: The mapped axis of devices.

    Returns:
        Parameters, optimizer state, updates skipped in a row, and this device's metrics averaged over minibatches.
    """
    num_minibatches = env_index_mb.shape[0]
    period = hyper.grad_sync_period
    is_local = hyper.grad_sync_mode == "local"

    def gradients(params: PyTree, env_index_b: Array) -> tuple[PyTree, Metrics]:
        batch = jax.tree.map(lambda x: x[env_index_b], rollout)
        loss = lambda params: ppo_loss(eqx.combine(params, static), batch, hyper)
        return jax.grad(loss, has_aux=True)(params)

    def apply(loop: _Loop, grads: PyTree, is_finite: Bool[Array, ""]) -> _Loop:
        updates, opt_state = optimizer.update(grads, loop.opt_state, loop.params)
        stepped = (optax.apply_updates(loop.params, updates), opt_state)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(is_finite, new, old), stepped, (loop.params, loop.opt_state)
        )
        num_bad = jnp.where(is_finite, 0, loop.num_bad + 1)
        return _Loop(params, opt_state, jax.tree.map(jnp.zeros_like, loop.grads), num_bad)

    def synchronise(loop: _Loop, num_accumulated: Array | int) -> _Loop:
        grads = sync_gradients(jax.tree.map(lambda g: g / num_accumulated, loop.grads))
        is_finite = all_across_devices(jnp.isfinite(optax.tree.norm(grads)), axis_name)
        loop = apply(loop, grads, is_finite)
        if is_local:
            params, opt_state = _average_floats((loop.params, loop.opt_state), axis_name)
            loop = loop._replace(params=params, opt_state=opt_state)
        return loop

    def step_alone(loop: _Loop) -> _Loop:
        if not is_local:
            return loop
        is_finite = all_across_devices(jnp.isfinite(optax.tree.norm(loop.grads)), axis_name)
        return apply(loop, loop.grads, is_finite)

    def minibatch(loop: _Loop, inputs: tuple[Array, Array]) -> tuple[_Loop, Metrics]:
        number, env_index_b = inputs
        num_bad_before = loop.num_bad
        grads, metrics = gradients(loop.params, env_index_b)
        loop = loop._replace(grads=jax.tree.map(jnp.add, loop.grads, grads))
        if period == 1:
            loop = synchronise(loop, 1)
        else:
            # The last one flushes: num_accumulated is the remainder where the period does not divide.
            in_period = number % period + 1
            is_due = (in_period == period) | (number == num_minibatches - 1)
            num_accumulated = 1 if is_local else in_period
            loop = jax.lax.cond(is_due, lambda x: synchronise(x, num_accumulated), step_alone, loop)
        return loop, metrics | {"policy/bad_updates": (loop.num_bad > num_bad_before).astype(jnp.float32)}

    start = _Loop(params, opt_state, jax.tree.map(jnp.zeros_like, params), num_bad)
    loop, metrics_m = jax.lax.scan(minibatch, start, (jnp.arange(num_minibatches), env_index_mb))
    num_bad_updates = jnp.sum(metrics_m.pop("policy/bad_updates"))
    last_pass_kl = jnp.mean(metrics_m["policy/kl"][-hyper.num_batches :])
    metrics: dict[str, Any] = jax.tree.map(jnp.mean, metrics_m)
    metrics |= {"policy/bad_updates": num_bad_updates, "policy/kl_last_pass": last_pass_kl}
    return loop.params, loop.opt_state, loop.num_bad, metrics


def adapt_learning_rate(learning_rate: Array, kl: Array, hyper: PPOHyperparameters) -> Array:
    """The learning rate for the next iteration, from the KL divergence at the end of this one.

    Divided by 1.5 where the KL is above twice the desired one, multiplied where it is below half of it, as in
    Schulman et al. 2017 (arXiv:1707.06347), section 4, with a gentler factor. A KL that is not finite changes nothing.
    The rate stays between `min_learning_rate` and `max_learning_rate`, or what it started from where that is outside.
    """
    if hyper.desired_kl is None:
        return learning_rate
    factor = jnp.where(kl > 2 * hyper.desired_kl, 1 / 1.5, jnp.where(kl < hyper.desired_kl / 2, 1.5, 1.0))
    lowest = min(hyper.min_learning_rate, hyper.learning_rate)
    highest = max(hyper.max_learning_rate, hyper.learning_rate)
    return jnp.clip(learning_rate * factor, lowest, highest)


def _average_floats(tree: PyTree, axis_name: str | None) -> PyTree:
    """Averages floating-point leaves over devices; counters are the same everywhere and stay integers."""
    floats, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(mean_across_devices(floats, axis_name), rest)
