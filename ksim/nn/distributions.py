"""The distribution of actions."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Gaussian(eqx.Module):
    """Independent normal distributions over the components of an action.

    Attributes:
        mean: The mean action, which is also the mode.
        std: Standard deviations, positive, of the shape of `mean`.
    """

    mean: Float[Array, "*batch a"]
    std: Float[Array, "*batch a"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*batch a"]:
        """Draws an action."""
        return self.mean + self.std * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def mode(self) -> Float[Array, "*batch a"]:
        """The mode: the deterministic action."""
        return self.mean

    def log_prob(self, action: Float[Array, "*batch a"]) -> Float[Array, "*batch"]:
        """Log-density of an action, summed over its components."""
        standardised = (action - self.mean) / self.std
        return -jnp.sum(0.5 * jnp.square(standardised) + jnp.log(self.std) + 0.5 * jnp.log(2 * jnp.pi), axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        """Differential entropy in nats, summed over components."""
        return jnp.sum(jnp.log(self.std) + 0.5 * jnp.log(2 * jnp.pi * jnp.e), axis=-1)
