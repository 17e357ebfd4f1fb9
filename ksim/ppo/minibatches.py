"""Stratified minibatches of envs, independent of the number of devices."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from ksim.parallel.collectives import device_index


def stratified_minibatches(
    key: PRNGKeyArray, num_local_envs: int, *, num_batches: int, num_passes: int, axis_name: str | None
) -> Int[Array, "m b"]:
    """Local env indices of each minibatch of every pass.

    The envs are divided into strata of `num_batches` consecutive envs. In each stratum a permutation, keyed by the pass
    and the stratum's place in the global batch, sends one env to each minibatch. Every env is in one minibatch of each
    pass, every device has an equal share of each minibatch, and the minibatches are the same on any number of
    devices that divides the batch size.

    Args:
        key: One key for all passes, the same on every device.
        num_local_envs: Envs of this device, a multiple of `num_batches`.
        num_batches: Minibatches per pass.
        num_passes: Passes over the rollout.
        axis_name: The mapped axis of devices.

    Returns:
        Indices into the local envs, one row per minibatch, in the order of updates.
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
