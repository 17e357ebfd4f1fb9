"""Advantages of a rollout."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ksim.parallel.collectives import moments_across_devices


def generalized_advantages(
    reward_et: Float[Array, "e t"],
    value_et: Float[Array, "e t"],
    next_value_et: Float[Array, "e t"],
    terminated_et: Bool[Array, "e t"],
    done_et: Bool[Array, "e t"],
    *,
    gamma: float,
    gae_lambda: float,
) -> Float[Array, "e t"]:
    """Generalized advantage estimation, Schulman et al. 2016 (arXiv:1506.02438), eq. 16.

    Termination removes the bootstrap; truncation keeps it. Both cut the sum.

    Args:
        value_et: Value of the state acted in.
        next_value_et: Value of the state reached, taken before any reset.
        terminated_et: The episode terminated (the robot fell); a subset of done_et.
        done_et: The episode ended for any reason, the time limit included.
        gamma: Discount per step.
        gae_lambda: Decay of the sum of temporal-difference errors.
    """
    chex.assert_rank(reward_et, 2)
    chex.assert_equal_shape([reward_et, value_et, next_value_et, terminated_et, done_et])
    chex.assert_type([terminated_et, done_et], bool)
    bootstrap_et = jnp.where(terminated_et, 0.0, next_value_et)
    delta_et = reward_et + gamma * bootstrap_et - value_et
    decay_et = jnp.where(done_et, 0.0, gamma * gae_lambda)

    def step(later_e: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_e, decay_e = inputs
        advantage_e = delta_e + decay_e * later_e
        return advantage_e, advantage_e

    start_e = jnp.zeros_like(delta_et[:, 0])
    _, advantage_te = jax.lax.scan(step, start_e, (delta_et.T, decay_et.T), reverse=True)
    return advantage_te.T


def normalize_advantages(
    advantage_et: Float[Array, "e t"], axis_name: str | None
) -> tuple[Float[Array, "e t"], Float[Array, ""]]:
    """Advantages with mean 0 and variance 1 over the batch of all devices, and their variance before.

    If they were normalised per device, the averaged gradient would depend on the number of devices.
    """
    chex.assert_rank(advantage_et, 2)
    mean, variance = moments_across_devices(advantage_et, axis_name)
    return (advantage_et - mean) * jax.lax.rsqrt(variance + 1e-8), variance
