"""A network without memory that was not written for ksim, as an actor-critic."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput
from ksim.nn.heads import MIN_STD, bounded_std, check_init_std, distribution_of
from ksim.types import Observation


class AdaptedActorCritic(AbstractActorCritic):
    """A network that returns `(mean of the action, value)` or `(distribution, value)` for an observation.

    Where it returns a mean, the standard deviation is one learned vector, as that of `GaussianHead`.

    Attributes:
        network: The network.
        log_std: Logarithm of the standard deviation; None where the network returns a distribution.
        takes_groups: Whether the network takes all groups of the observation, or the array of the actor's alone.
        min_std: Lower bound of the standard deviation.
        squash: Whether actions are squashed between -1 and 1.
    """

    network: eqx.Module
    log_std: Float[Array, " a"] | None
    takes_groups: bool = eqx.field(static=True)
    min_std: float = eqx.field(static=True)
    squash: bool = eqx.field(static=True)

    def __init__(
        self,
        network: eqx.Module,
        *,
        takes_groups: bool,
        action_size: int | None,
        init_std: float,
        min_std: float = MIN_STD,
        squash: bool = False,
    ) -> None:
        """Adapts a network.

        Args:
            network: A callable module.
            takes_groups: As above.
            action_size: Length of the mean; None where it returns a distribution.
            init_std: Standard deviation to start from.
            min_std: Lower bound of the standard deviation.
            squash: Whether actions are squashed between -1 and 1, where the network returns a mean.

        Raises:
            ConfigError: `init_std` is out of bounds.
        """
        check_init_std(init_std, min_std)
        self.network, self.takes_groups, self.min_std, self.squash = network, takes_groups, min_std, squash
        self.log_std = None if action_size is None else jnp.full(action_size, math.log(init_std))

    def initial_carry(self) -> None:
        return None

    def __call__(self, obs: Observation, carry: None) -> tuple[ActorCriticOutput, None]:
        network: Any = self.network
        action, value = network(obs if self.takes_groups else obs["actor"])
        distribution = action
        if self.log_std is not None:
            distribution = distribution_of(action, bounded_std(self.log_std, self.min_std), squash=self.squash)
        return ActorCriticOutput(distribution=distribution, value=jnp.reshape(value, ())), None

    def described(self) -> str:
        """A description of the adapted module."""
        takes = "all groups of the observation" if self.takes_groups else "the observation group 'actor'"
        gives = "(distribution, value)" if self.log_std is None else "(mean, value), with a learned standard deviation"
        gives += ", squashed by tanh" if self.squash else ""
        return f"{type(self.network).__name__}, adapted: {takes} to {gives}"
