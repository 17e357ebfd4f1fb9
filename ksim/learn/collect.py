"""Collection of a rollout, and the record of it that is passed to learning."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from ksim.learn.statistics import finished_episodes
from ksim.nn.actor_critic import AbstractActorCritic, initial_carries
from ksim.rollout.environment import Environment
from ksim.types import EnvBatch, EnvState, TrainState, Trajectory

Rollout = Callable[
    [AbstractActorCritic, EnvState, PyTree, Key[Array, ""]],
    tuple[Trajectory, EnvState, PyTree],
]
"""`(model, env_state, model_carry, rng) -> (trajectory, env_state, model_carry)` for one device's envs.

`rng` is one key, the same on every device.
"""


class Collected(eqx.Module):
    """One device's rollout, passed from the first half of a training step to the second.

    Attributes:
        model_carry: The model's memory before the rollout, one row per env.
        episode_return: Undiscounted return of the running episode up to and including each step.
        episode_length: Length in steps of the running episode up to and including each step.
    """

    trajectory: Trajectory
    model_carry: PyTree
    episode_return: Float[Array, "*e_t"]
    episode_length: Int[Array, "*e_t"]


def collect_rollout(
    env: Environment, rollout: Rollout, model: AbstractActorCritic, state: TrainState, key: PRNGKeyArray
) -> tuple[Collected, EnvBatch]:
    """A rollout of this device's envs under a policy, and the envs after it. Holds no collective of ksim's.

    Args:
        env: The environment. Its curricula are set to the state's levels.
        rollout: Steps the envs.
        model: The policy and value function, on raw observations.
        state: The state before the rollout.
        key: One key, the same on every device.
    """
    envs = state.envs
    env_state = jax.vmap(env.at_levels, in_axes=(0, None))(envs.env_state, state.learner.levels)
    env_state = dataclasses.replace(env_state, next_start=envs.next_start)
    trajectory, env_state, model_carry = rollout(model, env_state, envs.model_carry, key)
    # A task's own rollout may return states without next starts; the starts from before it are then still valid.
    next_start = envs.next_start if env_state.next_start is None else env_state.next_start
    env_state = dataclasses.replace(env_state, next_start=None)
    (return_et, length_et), (return_e, length_e) = finished_episodes(
        trajectory.reward, trajectory.done, envs.episode_return, envs.episode_length
    )
    collected = Collected(trajectory, envs.model_carry, return_et, length_et)
    return collected, EnvBatch(env_state, model_carry, return_e, length_e, next_start)


def initial_memories(model: AbstractActorCritic, num_envs: int) -> tuple[PyTree, Array, Array]:
    """The initial `model_carry`, `episode_return` and `episode_length` of `EnvBatch`."""
    return initial_carries(model, num_envs), jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)
