"""Noise on observations."""

from abc import abstractmethod

import equinox as eqx
import jax
from jaxtyping import Array, PRNGKeyArray


class AbstractNoise(eqx.Module):
    """A change to a measured quantity, drawn anew at every step."""

    @abstractmethod
    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        """The value with noise."""


class UniformNoise(AbstractNoise):
    """Adds a uniform number from [-magnitude, magnitude], in the quantity's own unit, to every component."""

    magnitude: float

    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        return value + jax.random.uniform(key, value.shape, minval=-self.magnitude, maxval=self.magnitude)


class GaussianNoise(AbstractNoise):
    """Adds a normal number with standard deviation `std`, in the quantity's own unit, to every component."""

    std: float

    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        return value + self.std * jax.random.normal(key, value.shape)
