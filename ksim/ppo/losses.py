"""Hyperparameters, advantages and losses of PPO, as pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, evaluate_sequences
from ksim.nn.distributions import AbstractDistribution
from ksim.parallel.collectives import moments_across_devices
from ksim.ppo.minibatches import MinibatchHyperparameters
from ksim.types import Metrics, Observation


@dataclass(frozen=True, kw_only=True)
class PPOHyperparameters(MinibatchHyperparameters):
    """Hyperparameters of PPO: the options of the same names, with the bounds of the rate set."""

    clip_param: float
    value_clip: float | None
    value_loss_coef: float
    entropy_coef: float
    learning_rate: float
    desired_kl: float | None
    min_learning_rate: float
    max_learning_rate: float
    normalize_values: bool
    remat: bool


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
    advantage_et: Float[Array, "e t"], axis_name: str | None, *, min_std: Float[Array, ""] | float = 0.0
) -> tuple[Float[Array, "e t"], Float[Array, ""]]:
    """Advantages normalised over all devices to mean 0 and variance at most 1, and their original variance.

    If they were normalised per device, the averaged gradient would depend on the number of devices.

    Args:
        min_std: Least divisor of the advantages, which keeps them small if they are only noise.
    """
    chex.assert_rank(advantage_et, 2)
    mean, variance = moments_across_devices(advantage_et, axis_name)
    factor = jax.lax.rsqrt(jnp.maximum(variance, jnp.square(min_std)) + 1e-8)
    return (advantage_et - mean) * factor, variance


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
        loss_inputs: Additional inputs of a loss other than `ppo_loss`; None for `ppo_loss`.
    """

    obs: Observation
    carry: PyTree
    done: Bool[Array, "e t"]
    action: Float[Array, "e t a"]
    log_prob: Float[Array, "e t"]
    value: Float[Array, "e t"]
    advantage: Float[Array, "e t"]
    value_target: Float[Array, "e t"]
    loss_inputs: PyTree = None


def clipped_policy_loss(
    log_ratio: Float[Array, "*batch"], advantage: Float[Array, "*batch"], clip: float
) -> Float[Array, ""]:
    """The clipped surrogate objective as a loss, Schulman et al. 2017 (arXiv:1707.06347), eq. 7."""
    chex.assert_equal_shape([log_ratio, advantage])
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))


def value_loss(
    value: Float[Array, "*batch"], old_value: Float[Array, "*batch"], target: Float[Array, "*batch"], clip: float | None
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


def rewarded_entropy(distribution: AbstractDistribution) -> Float[Array, "*batch"]:
    """Entropy that earns the bonus, in nats. If actions are unbounded, a `std` above 1 counts as 1.

    Environments clip actions that leave their range, mostly from -1 to 1. Noise beyond it costs nothing there, so a
    bonus for it would raise the standard deviation without end.
    """
    entropy = distribution.entropy()
    if distribution.bounds is not None:
        return entropy
    return entropy - jnp.sum(jax.nn.relu(jnp.log(distribution.std)), axis=-1)


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
    bonus = hyper.entropy_coef * jnp.mean(rewarded_entropy(output.distribution))
    total = policy + hyper.value_loss_coef * value - bonus
    return total, {
        "loss/policy": policy,
        "loss/value": value,
        "loss/entropy": jnp.mean(output.distribution.entropy()),
        "loss/total": total,
        "policy/kl": approximate_kl(log_ratio),
        "policy/clip_fraction": jnp.mean(jnp.abs(jnp.exp(log_ratio) - 1) > hyper.clip_param),
        "policy/std": jnp.mean(output.distribution.std),
    }
