"""Next starts of envs: made before their episodes end, many in one batch."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from ksim.parallel.placement import unwrap_keys, wrap_keys
from ksim.rollout.environment import Environment, select_envs
from ksim.types import EnvState, NextStart

_ROWS_ON_ACCELERATOR = 1024
"""Starts made at once on an accelerator (untried), where a smaller batch takes as long."""

_Loop = tuple[Array, Array, dict[str, Array]]
"""Flags of the needed starts, flags of the ready ones, and the starts."""

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
        packed={
            name: jnp.zeros((num_envs, *x.shape[1:]), x.dtype) for name, x in jax.eval_shape(_packed, like_e).items()
        },
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
    is_ready_e = next_e.is_ready & _is_still_next(env, _unpacked(next_e.packed, reached_e), reached_e)
    next_e = _made(env, done_e & ~is_ready_e, ended, dataclasses.replace(next_e, is_ready=is_ready_e))
    state_e = select_envs(done_e, _unpacked(next_e.packed, reached_e), reached_e)
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

    def make(loop: _Loop) -> _Loop:
        is_needed_e, is_ready_e, packed_e = loop
        order_e = jnp.argsort(is_needed_e.astype(jnp.int32) + ~is_ready_e, descending=True)
        index_r, row_e = order_e[:num_rows], jnp.argsort(order_e)
        key_r = jax.vmap(jax.random.fold_in)(next_e.key[index_r], next_e.number[index_r])
        packed_r = _packed(jax.vmap(env.next_episode)(ended(index_r), key_r))
        # Rows that are left over make a start again that is ready; it stays as it is.
        is_made_e = (row_e < num_rows) & ~is_ready_e
        # Selected and not scattered, which on a CPU is a loop over the rows.
        made_e = {name: x_r[jnp.minimum(row_e, num_rows - 1)] for name, x_r in packed_r.items()}
        return is_needed_e & ~is_made_e, is_ready_e | is_made_e, select_envs(is_made_e, made_e, packed_e)

    loop = (is_needed_e, next_e.is_ready, next_e.packed)
    _, is_ready_e, packed_e = jax.lax.while_loop(lambda loop: jnp.any(loop[0]), make, loop)
    return dataclasses.replace(next_e, is_ready=is_ready_e, packed=packed_e)


def _packed(state_e: EnvState) -> dict[str, Array]:
    """States as one array for each type of their leaves: what is moved often is better moved in few pieces."""
    parts: dict[str, list[Array]] = {}
    for x in jax.tree.leaves(unwrap_keys(state_e)):
        parts.setdefault(x.dtype.name, []).append(x.reshape(x.shape[0], -1))
    return {name: jnp.concatenate(xs, axis=1) for name, xs in parts.items()}


def _unpacked(packed_e: dict[str, Array], like_e: EnvState) -> EnvState:
    """The inverse of `_packed`, for states of the structure and shapes of `like_e`."""
    leaves, structure = jax.tree.flatten(unwrap_keys(like_e))
    starts, parts = dict.fromkeys(packed_e, 0), []
    for x in leaves:
        name, start = x.dtype.name, starts[x.dtype.name]
        starts[name] = start + math.prod(x.shape[1:])
        parts.append(packed_e[name][:, start : starts[name]].reshape(x.shape))
    return wrap_keys(jax.tree.unflatten(structure, parts), like_e)


def _batch_size(num_envs: int) -> int:
    """Number of starts made in one batch.

    On a CPU work must not be wasted. Where episodes end at random, an env that needs a start which is not ready comes
    once in a batch of n ends if num_envs / n starts are not ready. So batches of up to sqrt(num_envs) can be filled.
    """
    is_cpu = jax.default_backend() == "cpu"
    return math.isqrt(num_envs - 1) + 1 if is_cpu else min(num_envs, _ROWS_ON_ACCELERATOR)
