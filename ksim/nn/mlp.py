"""A feed-forward actor-critic."""

from collections.abc import Sequence

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput, critic_group
from ksim.nn.heads import MIN_STD, DenseStack, GaussianHead, orthogonal_linear
from ksim.types import Observation


class MlpActorCritic(AbstractActorCritic):
    """Two separate multi-layer perceptrons: policy on the `actor` group, value on the `critic` group."""

    actor: DenseStack
    head: GaussianHead
    critic: DenseStack
    value: eqx.nn.Linear

    def __init__(
        self,
        obs_sizes: dict[str, int],
        action_size: int,
        *,
        actor_sizes: Sequence[int] = (256, 128),
        critic_sizes: Sequence[int] = (256, 128),
        std: str = "state_independent",
        init_std: float = 1.0,
        min_std: float = MIN_STD,
        squash: bool = False,
        key: PRNGKeyArray,
    ) -> None:
        """Initialises the networks.

        Args:
            obs_sizes: Length of each observation group.
            action_size: Length of the action.
            actor_sizes: Widths of the policy's hidden layers.
            critic_sizes: Widths of the value function's hidden layers.
            std: Whether the policy's standard deviation is `"state_independent"` or `"learned"` per state.
            init_std: Standard deviation to start from.
            min_std: Lower bound of the standard deviation.
            squash: Whether actions are squashed between -1 and 1, see `SquashedGaussian`.
            key: Seeds the weights.
        """
        actor_key, head_key, critic_key, value_key = jax.random.split(key, 4)
        critic_in = obs_sizes.get("critic", obs_sizes["actor"])
        self.actor = DenseStack(obs_sizes["actor"], actor_sizes, key=actor_key)
        actor_out = [obs_sizes["actor"], *actor_sizes][-1]
        self.head = GaussianHead(
            actor_out, action_size, std=std, init_std=init_std, min_std=min_std, squash=squash, key=head_key
        )
        self.critic = DenseStack(critic_in, critic_sizes, key=critic_key)
        self.value = orthogonal_linear([critic_in, *critic_sizes][-1], 1, 1.0, key=value_key)

    def initial_carry(self) -> None:
        return None

    def __call__(self, obs: Observation, carry: None) -> tuple[ActorCriticOutput, None]:
        distribution = self.head(self.actor(obs["actor"]))
        value = self.value(self.critic(obs[critic_group(obs)]))[0]
        return ActorCriticOutput(distribution=distribution, value=value), None
