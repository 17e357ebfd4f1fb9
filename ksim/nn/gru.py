"""A recurrent actor-critic."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput, critic_group
from ksim.nn.heads import MIN_STD, DenseStack, GaussianHead, orthogonal_linear
from ksim.types import Observation

GruCarry = tuple[Float[Array, "*e h"], Float[Array, "*e h"]]


class GruActorCritic(AbstractActorCritic):
    """Two separate GRU cells followed by hidden layers, with memory over the steps of an episode."""

    actor_cell: eqx.nn.GRUCell
    actor: DenseStack
    head: GaussianHead
    critic_cell: eqx.nn.GRUCell
    critic: DenseStack
    value: eqx.nn.Linear

    def __init__(
        self,
        obs_sizes: dict[str, int],
        action_size: int,
        *,
        memory_size: int = 128,
        actor_sizes: Sequence[int] = (128,),
        critic_sizes: Sequence[int] = (128,),
        std: str = "state_independent",
        init_std: float = 1.0,
        min_std: float = MIN_STD,
        squash: bool = False,
        key: PRNGKeyArray,
    ) -> None:
        """Initialises the networks; see `MlpActorCritic`. `memory_size` is the width of each GRU cell."""
        cell_keys, stack_keys, head_keys = (jax.random.split(k) for k in jax.random.split(key, 3))
        critic_in = obs_sizes.get("critic", obs_sizes["actor"])
        self.actor_cell = eqx.nn.GRUCell(obs_sizes["actor"], memory_size, key=cell_keys[0])
        self.actor = DenseStack(memory_size, actor_sizes, key=stack_keys[0])
        actor_out = [memory_size, *actor_sizes][-1]
        self.head = GaussianHead(
            actor_out, action_size, std=std, init_std=init_std, min_std=min_std, squash=squash, key=head_keys[0]
        )
        self.critic_cell = eqx.nn.GRUCell(critic_in, memory_size, key=cell_keys[1])
        self.critic = DenseStack(memory_size, critic_sizes, key=stack_keys[1])
        self.value = orthogonal_linear([memory_size, *critic_sizes][-1], 1, 1.0, key=head_keys[1])

    def initial_carry(self) -> GruCarry:
        return jnp.zeros(self.actor_cell.hidden_size), jnp.zeros(self.critic_cell.hidden_size)

    def __call__(self, obs: Observation, carry: GruCarry) -> tuple[ActorCriticOutput, GruCarry]:
        actor_memory = self.actor_cell(obs["actor"], carry[0])
        critic_memory = self.critic_cell(obs[critic_group(obs)], carry[1])
        distribution = self.head(self.actor(actor_memory))
        value = self.value(self.critic(critic_memory))[0]
        return ActorCriticOutput(distribution=distribution, value=value), (actor_memory, critic_memory)
