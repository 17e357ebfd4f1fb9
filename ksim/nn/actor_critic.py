"""The interface between a policy and the learner: one forward pass, for acting and for the loss."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ksim.nn.distributions import AbstractDistribution
from ksim.types import Observation, tree_where


class ActorCriticOutput(eqx.Module):
    """The output of an actor-critic for an observation.

    Attributes:
        value: The expected discounted return from here.
    """

    distribution: AbstractDistribution
    value: Float[Array, "*batch"]


class AbstractActorCritic(eqx.Module):
    """A policy and a value function for one env and one step; ksim maps it over envs and time."""

    @abstractmethod
    def initial_carry(self) -> PyTree:
        """The memory at the start of an episode; None for a feed-forward model."""

    @abstractmethod
    def __call__(self, obs: Observation, carry: PyTree) -> tuple[ActorCriticOutput, PyTree]:
        """The distribution of the action and the value of `obs`, and the memory after it."""


def act(model: AbstractActorCritic, obs: Observation, carry: PyTree) -> tuple[Array, PyTree]:
    """The deterministic action, and the memory after it."""
    output, carry = model(obs, carry)
    return output.distribution.mode(), carry


def critic_group(obs: Observation) -> str:
    """The group that the critic reads: `critic` where there is one, else the actor's."""
    return "critic" if "critic" in obs else "actor"


def initial_carries(model: AbstractActorCritic, num_envs: int) -> PyTree:
    """The memory at the start of an episode, one row per env."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *x.shape)), model.initial_carry())


def reset_carry(model: AbstractActorCritic, done_e: Bool[Array, " e"], carry_e: PyTree) -> PyTree:
    """The memory of each env, reset where its episode is done."""
    return tree_where(done_e, model.initial_carry(), carry_e)


def evaluate_sequences(
    model: AbstractActorCritic,
    obs_et: Observation,
    carry_e: PyTree,
    done_et: Bool[Array, "e t"],
    *,
    remat: bool = False,
) -> ActorCriticOutput:
    """The model's outputs along recorded sequences, its memory restarted after each end of an episode.

    A model without memory gets all envs and times as one batch. With memory or `remat`, it is scanned over time.

    Args:
        obs_et: Observations, every leaf (env, time, features).
        carry_e: Memory at the start of the sequences.
        done_et: The episode ended or was cut with this step.
        remat: Whether a gradient recomputes the activations of each step instead of storing all of them.
    """
    num_envs, num_steps = done_et.shape
    if not jax.tree.leaves(carry_e) and not remat:
        flat = jax.tree.map(lambda x: x.reshape(num_envs * num_steps, *x.shape[2:]), obs_et)
        output, _ = jax.vmap(lambda obs: model(obs, carry_e))(flat)
        return jax.tree.map(lambda x: x.reshape(num_envs, num_steps, *x.shape[1:]), output)

    def step(carry_e: PyTree, inputs: tuple[Observation, Array]) -> tuple[PyTree, ActorCriticOutput]:
        obs_e, done_e = inputs
        output, carry_e = jax.vmap(model)(obs_e, carry_e)
        return reset_carry(model, done_e, carry_e), output

    if remat:
        # A scan keeps XLA from merging the two computations, as `prevent_cse` would.
        step = jax.checkpoint(step, prevent_cse=False)
    time_major = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (obs_et, done_et))
    _, output_te = jax.lax.scan(step, carry_e, time_major)
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), output_te)
