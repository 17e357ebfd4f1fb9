"""Running normalisation of observations, over all envs of all devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput
from ksim.parallel.collectives import mean_across_devices, sum_across_devices
from ksim.types import Observation

MAX_NORMALIZED = 10.0
"""Normalised observations are clipped to this many standard deviations."""


class ObservationNormalizer(eqx.Module):
    """Mean and variance of every component of every observation group, over all steps seen.

    Attributes:
        count: Steps seen. A float, since it outgrows 32-bit integers; its rounding does not matter.
        mean: Means, by group.
        variance: Variances, by group; 1 before anything was seen.
    """

    count: Float[Array, "*d"]
    mean: Observation
    variance: Observation

    @staticmethod
    def init(obs_sizes: dict[str, int]) -> "ObservationNormalizer":
        """A normalizer that has seen nothing and changes nothing."""
        return ObservationNormalizer(
            count=jnp.zeros(()),
            mean={group: jnp.zeros(size) for group, size in obs_sizes.items()},
            variance={group: jnp.ones(size) for group, size in obs_sizes.items()},
        )

    def __call__(self, obs: Observation) -> Observation:
        """Observations of any leading shape, with mean 0 and variance 1 by what was seen so far."""
        bound = jnp.where(self.count > 0, MAX_NORMALIZED, jnp.inf)
        return {
            group: jnp.clip((x - self.mean[group]) * jax.lax.rsqrt(self.variance[group] + 1e-8), -bound, bound)
            for group, x in obs.items()
        }

    def update(self, obs: Observation, axis_name: str | None) -> "ObservationNormalizer":
        """Statistics with a batch merged in, the batches of all devices counted alike.

        The parallel algorithm of Chan, Golub & LeVeque 1979.

        Args:
            obs: Observations, every leaf (env, time, features).
            axis_name: The mapped axis of devices.
        """
        num_local = next(iter(obs.values()))[..., 0].size
        num_new = sum_across_devices(jnp.asarray(num_local, jnp.float32), axis_name)
        count = self.count + num_new
        mean, variance = {}, {}
        for group, x in obs.items():
            batch_mean = mean_across_devices(jnp.mean(x, axis=(0, 1)), axis_name)
            batch_variance = mean_across_devices(jnp.mean(jnp.square(x - batch_mean), axis=(0, 1)), axis_name)
            delta = batch_mean - self.mean[group]
            weight = num_new / count
            mean[group] = self.mean[group] + delta * weight
            variance[group] = (
                self.variance[group] * (1 - weight)
                + batch_variance * weight
                + jnp.square(delta) * weight * (1 - weight)
            )
        return ObservationNormalizer(count=count, mean=mean, variance=variance)


class NormalizedActorCritic(AbstractActorCritic):
    """A network that is shown normalised observations: what acts, and what a checkpoint holds."""

    network: AbstractActorCritic
    normalizer: ObservationNormalizer

    def initial_carry(self) -> PyTree:
        return self.network.initial_carry()

    def __call__(self, obs: Observation, carry: PyTree) -> tuple[ActorCriticOutput, PyTree]:
        return self.network(self.normalizer(obs), carry)
