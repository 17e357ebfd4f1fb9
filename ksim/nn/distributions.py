"""Distributions of actions."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class AbstractDistribution(eqx.Module):
    """A distribution of actions, as a density over samples and a map from samples to actions.

    A trajectory keeps samples: their density is known exactly, also where actions that differ round to the same number.

    Attributes:
        mean: The mean sample.
        std: Standard deviations of samples, positive, of the shape of `mean`.
    """

    mean: eqx.AbstractVar[Float[Array, "*batch a"]]
    std: eqx.AbstractVar[Float[Array, "*batch a"]]

    @abstractmethod
    def sample(self, key: PRNGKeyArray) -> Float[Array, "*batch a"]:
        """Draws a sample."""

    @abstractmethod
    def action(self, sample: Float[Array, "*batch a"]) -> Float[Array, "*batch a"]:
        """The action of a sample: what the environment is given."""

    @abstractmethod
    def log_prob(self, sample: Float[Array, "*batch a"]) -> Float[Array, "*batch"]:
        """Log-density of the action of a sample, summed over its components."""

    @abstractmethod
    def entropy(self) -> Float[Array, "*batch"]:
        """Differential entropy of actions in nats, summed over components."""

    def mode(self) -> Float[Array, "*batch a"]:
        """The deterministic action: that of the mean sample."""
        return self.action(self.mean)


class Gaussian(AbstractDistribution):
    """Independent normal distributions over the components of an action; samples are actions.

    Attributes:
        mean: The mean action, which is also the mode.
        std: Standard deviations, positive, of the shape of `mean`.
    """

    mean: Float[Array, "*batch a"]
    std: Float[Array, "*batch a"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*batch a"]:
        return self.mean + self.std * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def action(self, sample: Float[Array, "*batch a"]) -> Float[Array, "*batch a"]:
        return sample

    def log_prob(self, sample: Float[Array, "*batch a"]) -> Float[Array, "*batch"]:
        standardised = (sample - self.mean) / self.std
        return -jnp.sum(0.5 * jnp.square(standardised) + jnp.log(self.std) + 0.5 * jnp.log(2 * jnp.pi), axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(jnp.log(self.std) + 0.5 * jnp.log(2 * jnp.pi * jnp.e), axis=-1)
