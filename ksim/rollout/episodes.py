"""Whole episodes of the deterministic policy, one per env, summed step by step."""

import functools
from collections.abc import Callable

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, act, initial_carries
from ksim.rollout.environment import Environment, select_envs
from ksim.rollout.starts import initial_env_states
from ksim.types import EnvState, Metrics

ERRORS = "error/"
"""Prefix of an environment's metrics that are averaged over each episode."""


class Episodes(eqx.Module):
    """One episode of each env, as far as it has come.

    Attributes:
        env_state: States, one row per env; once its episode is over, a row stays as it was then.
        fell: The episode terminated, not truncated.
        total_reward: Undiscounted return so far.
        length: Control steps so far.
        error_sums: Metrics named `error/...`, summed over these steps.
    """

    env_state: EnvState
    model_carry: PyTree
    is_running: Bool[Array, " e"]
    fell: Bool[Array, " e"]
    total_reward: Float[Array, " e"]
    length: Int[Array, " e"]
    error_sums: Metrics


def start_episodes(env: Environment, model: AbstractActorCritic, key: PRNGKeyArray, num_envs: int) -> Episodes:
    """Episodes after their resets; the reset of env i depends on `fold_in(key, i)` alone, not on their number."""
    state_e = initial_env_states(env, key, jnp.arange(num_envs), full_task=True)
    return Episodes(
        env_state=state_e,
        model_carry=initial_carries(model, num_envs),
        is_running=jnp.ones(num_envs, bool),
        fell=jnp.zeros(num_envs, bool),
        total_reward=jnp.zeros(num_envs),
        length=jnp.zeros(num_envs, jnp.int32),
        error_sums={name: jnp.zeros(num_envs) for name in state_e.metrics if name.startswith(ERRORS)},
    )


def advance_episodes(
    env: Environment,
    model: AbstractActorCritic,
    episodes: Episodes,
    num_steps: int,
    record: Callable[[EnvState, Array, EnvState], PyTree] = lambda *_: None,
) -> tuple[Episodes, PyTree]:
    """Steps each episode under the deterministic policy until it ends.

    `record` is given the states of all envs before a step, their actions, and the states after it. Its results have a
    leading axis of time.
    """
    chex.assert_rank(episodes.is_running, 1)
    chex.assert_tree_shape_prefix(episodes, episodes.is_running.shape)

    def step(at: Episodes, _: None) -> tuple[Episodes, PyTree]:
        action_e, carry_e = jax.vmap(functools.partial(act, model))(at.env_state.obs, at.model_carry)
        reached_e = jax.vmap(env.step)(at.env_state, action_e)
        running_e = at.is_running
        # Selected and not multiplied: 0 * nan is not 0.
        add = lambda total, x: total + jnp.where(running_e, x, 0)
        after = Episodes(
            # A fallen robot is not stepped further: it might blow up, and its contacts cost time.
            env_state=select_envs(running_e, reached_e, at.env_state),
            model_carry=carry_e,
            is_running=running_e & ~(reached_e.terminated | reached_e.truncated),
            fell=at.fell | (running_e & reached_e.terminated),
            total_reward=add(at.total_reward, reached_e.reward),
            length=at.length + running_e,
            error_sums={name: add(total, reached_e.metrics[name]) for name, total in at.error_sums.items()},
        )
        return after, record(at.env_state, action_e, reached_e)

    return jax.lax.scan(step, episodes, length=num_steps)
