"""Where envs start again when their episodes end: starts made ahead, many in one batch."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from ksim.rollout.environment import Environment, select_envs
from ksim.types import EnvState, NextStart

_ROWS_ON_ACCELERATOR = 1024
"""Starts made at once on an accelerator (untried), where a smaller batch takes as long."""

EndedStates = Callable[[Int[Array, " r"]], EnvState]
"""`(places of envs) -> the states in which their episodes ended`."""


def no_starts_yet(like_e: EnvState, key_e: Key[Array, " e"]) -> NextStart:
    """Next starts of which none has been made, in memory of their own.

    Args:
        like_e: States, or shapes of states, of the envs.
        key_e: The key of all starts of each env.
    """
    chex.assert_rank(key_e, 1)
    num_envs = key_e.shape[0]
    return NextStart(
        key=key_e,
        number=jnp.zeros(num_envs, jnp.int32),
        is_ready=jnp.zeros(num_envs, bool),
        # `lax.full` makes typed keys as well.
        state=jax.tree.map(lambda x: jax.lax.full((num_envs, *x.shape[1:]), 0, x.dtype), like_e),
    )


def continue_or_start(
    env: Environment, reached_e: EnvState, done_e: Bool[Array, " e"], ended: EndedStates, next_e: NextStart
) -> tuple[EnvState, NextStart]:
    """The states from which envs continue after a step: where the episode is over, its next start.

    Starts are made only when an env needs one that is not ready. The batch is then filled up with other envs whose
    last start is used up. So resets cost in proportion to the episodes that end, in few batches.

    Args:
        env: The environment.
        reached_e: The states reached.
        done_e: Whether the episode ended there.
        ended: The states that `next_episode` is given.
        next_e: The next starts before the step.

    Returns:
        The states, and the next starts after the step.
    """
    chex.assert_rank(done_e, 1)
    chex.assert_tree_shape_prefix((reached_e, next_e), done_e.shape)
    is_ready_e = next_e.is_ready & _is_still_next(env, next_e.state, reached_e)
    next_e = _made(env, done_e & ~is_ready_e, ended, dataclasses.replace(next_e, is_ready=is_ready_e))
    state_e = select_envs(done_e, next_e.state, reached_e)
    return state_e, dataclasses.replace(next_e, number=next_e.number + done_e, is_ready=next_e.is_ready & ~done_e)


def _is_still_next(env: Environment, start_e: EnvState, state_e: EnvState) -> Bool[Array, " e"]:
    kind = type(env)
    if not issubclass(_defining(kind, "is_next_start"), _defining(kind, "next_episode")):
        return jnp.zeros(state_e.reward.shape, bool)
    return jax.vmap(env.is_next_start)(start_e, state_e)


def _defining(kind: type[Any], method: str) -> type[Any]:
    """The class from which a class has a method."""
    return next(base for base in kind.__mro__ if method in vars(base))


def _made(env: Environment, is_needed_e: Bool[Array, " e"], ended: EndedStates, next_e: NextStart) -> NextStart:
    """The next starts with those that are needed, and with some of the others, made."""
    num_envs = is_needed_e.shape[0]
    num_rows = _batch_size(num_envs)

    def make(loop: tuple[Array, Array, EnvState]) -> tuple[Array, Array, EnvState]:
        is_needed_e, is_ready_e, start_e = loop
        urgency_r, index_r = jax.lax.top_k(is_needed_e.astype(jnp.int32) + ~is_ready_e, num_rows)
        key_r = jax.vmap(jax.random.fold_in)(next_e.key[index_r], next_e.number[index_r])
        start_r = jax.vmap(env.next_episode)(ended(index_r), key_r)
        # Rows that are left over make a start again that is ready, and are dropped: they are written past the end.
        index_r = jnp.where(urgency_r > 0, index_r, num_envs)
        put = lambda x_e, x_r: x_e.at[index_r].set(x_r, mode="drop")
        return put(is_needed_e, False), put(is_ready_e, True), jax.tree.map(put, start_e, start_r)

    _, is_ready_e, start_e = jax.lax.while_loop(
        lambda loop: jnp.any(loop[0]), make, (is_needed_e, next_e.is_ready, next_e.state)
    )
    return dataclasses.replace(next_e, is_ready=is_ready_e, state=start_e)


def _batch_size(num_envs: int) -> int:
    """How many starts are made at once.

    On a CPU work must not be wasted. Where episodes end at random, an env that needs a start which is not ready comes
    once in a batch of n ends if num_envs / n starts are not ready. So batches of up to sqrt(num_envs) can be filled.
    """
    is_cpu = jax.default_backend() == "cpu"
    return math.isqrt(num_envs - 1) + 1 if is_cpu else min(num_envs, _ROWS_ON_ACCELERATOR)
