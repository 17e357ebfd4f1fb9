"""Running normalisation of observations and values, over all envs of all devices."""

import dataclasses
import math
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput
from ksim.parallel.collectives import axis_size, mean_across_devices
from ksim.types import Observation

MAX_NORMALIZED = 10.0
"""Standard deviations to which normalised observations are clipped."""
UNSEEN_SCALE = 2.0**-64
"""The scale of values before any target was seen: nothing beside a reward, and a power of two, so exactly undone."""


_Self = TypeVar("_Self", bound="RunningMoments")


class RunningMoments(eqx.Module):
    """Mean and variance of numbers by name, each a scalar or a vector, over all steps seen.

    Attributes:
        count: Steps seen. A float, since it outgrows 32-bit integers; its rounding does not matter.
        variance: Variances, by name; 1 before anything was seen.
    """

    count: Float[Array, "*d"]
    mean: dict[str, Array]
    variance: dict[str, Array]

    def update(self: _Self, batch: dict[str, Array], axis_name: str | None) -> _Self:
        """Statistics with a batch merged in, which has leading axes env and time; all devices' batches count alike.

        The parallel algorithm of Chan, Golub & LeVeque 1979. Names without statistics are left out.
        """
        num_new = float(axis_size(axis_name) * math.prod(next(iter(batch.values())).shape[:2]))
        count = self.count + num_new
        mean, variance = {}, {}
        for name in self.mean:
            x = batch[name]
            batch_mean = mean_across_devices(jnp.mean(x, axis=(0, 1)), axis_name)
            batch_variance = mean_across_devices(jnp.mean(jnp.square(x - batch_mean), axis=(0, 1)), axis_name)
            delta = batch_mean - self.mean[name]
            weight = num_new / count
            mean[name] = self.mean[name] + delta * weight
            variance[name] = (
                self.variance[name] * (1 - weight) + batch_variance * weight + jnp.square(delta) * weight * (1 - weight)
            )
        return dataclasses.replace(self, count=count, mean=mean, variance=variance)


class ValueNormalizer(RunningMoments):
    """Statistics of the targets of the values, so that a network's values have mean 0 and variance 1."""

    @staticmethod
    def init() -> "ValueNormalizer":
        """A normalizer that has seen nothing, to which all values are next to 0."""
        return ValueNormalizer(jnp.zeros(()), {"value": jnp.zeros(())}, {"value": jnp.ones(())})

    def normalize(self, value: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """Normalised values, as of a network, from values in the units of rewards."""
        return (value - self.mean["value"]) / self.scale

    def denormalize(self, value: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """Values of a network in the units of rewards.

        Near 0 before anything was seen. Otherwise the first targets would contain values of a new network, of about 1,
        and their scale would stay in the statistics, however small rewards are.
        """
        return jnp.where(self.count > 0, value * self.scale + self.mean["value"], value * UNSEEN_SCALE)

    def outputs(self, value: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """A network's outputs from its values: the inverse of `denormalize`, also before anything was seen."""
        return jnp.where(self.count > 0, self.normalize(value), value / UNSEEN_SCALE)

    @property
    def scale(self) -> Float[Array, "*d"]:
        """Units of rewards per unit of the network."""
        return jnp.sqrt(self.variance["value"] + 1e-8)


class ObservationNormalizer(RunningMoments):
    """Statistics of every component of every observation group, by group; and of values, where they are normalised.

    Attributes:
        values: Statistics of values; None where a network's values are in the units of rewards.
    """

    values: ValueNormalizer | None = None

    @staticmethod
    def init(obs_sizes: dict[str, int], *, with_values: bool = False) -> "ObservationNormalizer":
        """A normalizer that has seen nothing and changes nothing."""
        return ObservationNormalizer(
            count=jnp.zeros(()),
            mean={group: jnp.zeros(size) for group, size in obs_sizes.items()},
            variance={group: jnp.ones(size) for group, size in obs_sizes.items()},
            values=ValueNormalizer.init() if with_values else None,
        )

    def __call__(self, obs: Observation) -> Observation:
        """Observations of any leading shape, with mean 0 and variance 1 by what was seen so far.

        Groups without statistics, which the network does not use, are left out.
        """
        bound = jnp.where(self.count > 0, MAX_NORMALIZED, jnp.inf)
        return {
            group: jnp.clip((x - self.mean[group]) * jax.lax.rsqrt(self.variance[group] + 1e-8), -bound, bound)
            for group, x in obs.items()
            if group in self.mean
        }


class NormalizedActorCritic(AbstractActorCritic):
    """A network with its observation normaliser: the policy that acts and that a checkpoint holds.

    Its values are in the units of rewards, even if the network's values are normalised.
    """

    network: AbstractActorCritic
    normalizer: ObservationNormalizer

    def initial_carry(self) -> PyTree:
        return self.network.initial_carry()

    def __call__(self, obs: Observation, carry: PyTree) -> tuple[ActorCriticOutput, PyTree]:
        output, carry = self.network(self.normalizer(obs), carry)
        if self.normalizer.values is not None:
            output = dataclasses.replace(output, value=self.normalizer.values.denormalize(output.value))
        return output, carry
