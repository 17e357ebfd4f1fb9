"""The losses of a minibatch."""

from collections.abc import Callable

import chex
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, evaluate_sequences
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.types import Metrics, Observation

Normalize = Callable[[Observation], Observation]
"""Normalises observations by the current statistics."""


class Minibatch(eqx.Module):
    """Inputs of the loss from a rollout, with leading axes env, time (`carry`: env).

    Attributes:
        obs: Normalised observations.
        carry: The model's memory at the start of the rollout, one row per env.
        done: The episode ended or was cut with this step.
        action: Actions as the policy's distribution drew them.
        log_prob: Log-density of the actions under the policy that took them.
        value: The critic's outputs at the rollout, in the network's units.
        advantage: Normalised advantages.
        value_target: Target of the critic: value plus unnormalised advantage. If values are normalised, in the
            network's units by the statistics including this rollout; `value` uses the statistics before it.
        alongside: Additional inputs of a loss other than `ppo_loss`; None for `ppo_loss`.
    """

    obs: Observation
    carry: PyTree
    done: Bool[Array, "e t"]
    action: Float[Array, "e t a"]
    log_prob: Float[Array, "e t"]
    value: Float[Array, "e t"]
    advantage: Float[Array, "e t"]
    value_target: Float[Array, "e t"]
    alongside: PyTree = None


def clipped_policy_loss(
    log_ratio: Float[Array, "*batch"], advantage: Float[Array, "*batch"], clip: float
) -> Float[Array, ""]:
    """The clipped surrogate objective as a loss, Schulman et al. 2017 (arXiv:1707.06347), eq. 7."""
    chex.assert_equal_shape([log_ratio, advantage])
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))


def value_loss(
    value: Float[Array, "*batch"],
    old_value: Float[Array, "*batch"],
    target: Float[Array, "*batch"],
    clip: float | None,
) -> Float[Array, ""]:
    """Half the mean squared error of the values; with `clip`, of the worse of the value and the clipped value.

    Clipping keeps the value within `clip` of the value at the rollout, as in Schulman et al.'s implementation.
    """
    chex.assert_equal_shape([value, old_value, target])
    error = jnp.square(value - target)
    if clip is not None:
        clipped = old_value + jnp.clip(value - old_value, -clip, clip)
        error = jnp.maximum(error, jnp.square(clipped - target))
    return 0.5 * jnp.mean(error)


def approximate_kl(log_ratio: Float[Array, "*batch"]) -> Float[Array, ""]:
    """KL divergence from the acting policy to the current one, by Schulman's estimator k3 (2020); never negative."""
    return jnp.mean(jnp.exp(log_ratio) - 1 - log_ratio)


def ppo_loss(
    network: AbstractActorCritic, batch: Minibatch, hyper: PPOHyperparameters
) -> tuple[Float[Array, ""], Metrics]:
    """The loss of a minibatch, and its components as metrics."""
    chex.assert_rank(batch.done, 2)
    chex.assert_tree_shape_prefix((batch.obs, batch.action), batch.done.shape)
    chex.assert_equal_shape([batch.done, batch.log_prob, batch.value, batch.advantage, batch.value_target])
    output = evaluate_sequences(network, batch.obs, batch.carry, batch.done, remat=hyper.remat)
    log_ratio = output.distribution.log_prob(batch.action) - batch.log_prob
    policy = clipped_policy_loss(log_ratio, batch.advantage, hyper.clip_param)
    value = value_loss(output.value, batch.value, batch.value_target, hyper.value_clip)
    entropy = jnp.mean(output.distribution.entropy())
    total = policy + hyper.value_loss_coef * value - hyper.entropy_coef * entropy
    return total, {
        "loss/policy": policy,
        "loss/value": value,
        "loss/entropy": entropy,
        "loss/total": total,
        "policy/kl": approximate_kl(log_ratio),
        "policy/clip_fraction": jnp.mean(jnp.abs(jnp.exp(log_ratio) - 1) > hyper.clip_param),
        "policy/std": jnp.mean(output.distribution.std),
    }
