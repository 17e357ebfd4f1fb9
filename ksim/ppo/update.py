"""Passes over a rollout: minibatches, their loss, its gradient, and the optimizer."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ksim.learn.finite import Optimized, all_finite, optimizer_step
from ksim.parallel.collectives import all_across_devices
from ksim.ppo.gradient_sync import GradientSync, Outcome, scan_periods
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.ppo.losses import Minibatch
from ksim.types import Metrics

Loss = Callable[[PyTree, Minibatch], tuple[Float[Array, ""], Metrics]]
"""`(params, minibatch) -> (loss, metrics)`."""


def update(
    start: Optimized,
    rollout: Minibatch,
    env_index_mb: Int[Array, "m b"],
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    sync: GradientSync,
    is_usable: Bool[Array, ""] | bool = True,
) -> tuple[Optimized, Outcome]:
    """Optimizes over the minibatches of all passes, Schulman et al. 2017 (arXiv:1707.06347), algorithm 1.

    A step whose gradient is non-finite on any device is skipped on all devices. Each minibatch has its own step,
    unless `sync` accumulates several.

    Args:
        start: The network's arrays and the optimizer's state, the same on every device.
        rollout: Inputs of the loss, for all of this device's envs.
        env_index_mb: Local envs of each minibatch, in the order of passes.
        optimizer: Gradient transformation that includes the step size.
        is_usable: Whether the rollout may be learned from; if not, all steps are skipped.

    Returns:
        The new state (its `num_bad` is the largest over devices), this device's metrics per minibatch, and the number
        of minibatches for which any device skipped a step.
    """
    chex.assert_rank(env_index_mb, 2)
    chex.assert_type(env_index_mb, int)
    # Without this check, a leaf with fewer envs would repeat its last row: XLA clamps indices.
    chex.assert_equal_shape_prefix(jax.tree.leaves(rollout), 1)

    def gradients(params: PyTree, env_index_b: Array) -> tuple[PyTree, Metrics]:
        minibatch = jax.tree.map(lambda x: x[env_index_b], rollout)
        return jax.grad(loss, has_aux=True)(params, minibatch)

    def step(before: Optimized, grads: PyTree, axis_name: str | None) -> tuple[Optimized, Bool[Array, ""]]:
        is_finite = all_across_devices(all_finite(grads) & is_usable, axis_name)
        return optimizer_step(optimizer, before, grads, is_finite), ~is_finite

    def one_period(before: Optimized, env_index_pb: Array) -> tuple[Optimized, Outcome]:
        at, grads, (metrics_p, num_skipped) = sync.gradients_of_period(gradients, step, before, env_index_pb)
        stepped, is_skipped = step(at, sync.average(grads), sync.axis_name)
        return sync.rejoin(stepped, env_index_pb), (metrics_p, num_skipped + is_skipped)

    return scan_periods(one_period, start, env_index_mb, sync.period)


def adapt_learning_rate(learning_rate: Array, kl: Array, hyper: PPOHyperparameters) -> Array:
    """The learning rate for the next iteration, from the KL divergence at the end of this one.

    Divided by 1.5 if the KL is above twice the desired KL, multiplied by 1.5 if it is below half of it, as in
    Schulman et al. 2017 (arXiv:1707.06347), section 4, with a gentler factor. A non-finite KL changes nothing.
    The rate stays between `min_learning_rate` and `max_learning_rate`.
    """
    chex.assert_rank([learning_rate, kl], 0)
    if hyper.desired_kl is None:
        return learning_rate
    factor = jnp.where(kl > 2 * hyper.desired_kl, 1 / 1.5, jnp.where(kl < hyper.desired_kl / 2, 1.5, 1.0))
    return jnp.clip(learning_rate * factor, hyper.min_learning_rate, hyper.max_learning_rate)
