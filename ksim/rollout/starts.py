"""Starts of episodes: the first states of envs, and their next starts.

The next start of an env is the state in which its next episode begins. If an episode ends and its env has no
start ready, a batch of starts is made, because vmapped envs are reset all or none, and a reset is expensive. The rows
of the batch that are not needed at once refill envs that have used their start. Their next episodes end without a
reset, so resets cost in proportion to the episodes that end.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PRNGKeyArray

from ksim.keys import NEXT_STARTS
from ksim.parallel.collectives import any_across_devices, axes_reduced, pack, unpack
from ksim.parallel.placement import unwrap_keys, wrap_keys
from ksim.rollout.environment import Environment, select_envs
from ksim.types import EnvState, NextStart

_ROWS_ON_ACCELERATOR = 1024
"""Starts made at once on an accelerator, where a smaller batch takes as long."""

LastStates = Callable[[Int[Array, " r"]], EnvState]
"""`(indices of envs) -> the last states of their episodes`, for `Environment.next_episode`."""


def initial_env_states(
    env: Environment, key: PRNGKeyArray, index_e: Int[Array, " e"], *, full_task: bool = False
) -> EnvState:
    """The first states of envs, by index in the global batch; all randomness of env i is from `fold_in(key, i)`.

    With `full_task`, as for an evaluation, common curricula are at their last level and per-env curricula at a random
    one. Otherwise all are at their first.
    """
    chex.assert_rank(index_e, 1)
    return jax.vmap(env.reset if full_task else env.first_episode)(env_keys(key, index_e))


def initial_next_starts(like_e: EnvState, key: PRNGKeyArray, index_e: Int[Array, " e"]) -> NextStart:
    """The next starts of some envs before their first rollout: they too derive from `fold_in(key, i)` alone.

    `like_e` are their first states, or shapes of states of any number of envs; `key` made these states.
    """
    chex.assert_rank(index_e, 1)
    return empty_starts(like_e, fold_in_each(env_keys(key, index_e), NEXT_STARTS))


def env_keys(key: PRNGKeyArray, index_e: Int[Array, " e"]) -> Key[Array, " e"]:
    """A key for each env, from its index in the global batch: the same on any number of devices."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index_e)


def fold_in_each(key_e: Key[Array, " e"], number: int | Array) -> Key[Array, " e"]:
    """The keys with one number folded into each."""
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(key_e)


def empty_starts(like_e: EnvState, key_e: Key[Array, " e"]) -> NextStart:
    """Next starts of which none is made yet, in separate memory. `like_e` are states of the envs, or shapes."""
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
    env: Environment, reached_e: EnvState, done_e: Bool[Array, " e"], last_states: LastStates, next_e: NextStart
) -> tuple[EnvState, NextStart]:
    """The states from which envs continue after a step, and their next starts.

    An env continues from the state that it reached or, if its episode ended, from its next start.
    """
    chex.assert_rank(done_e, 1)
    chex.assert_tree_shape_prefix((reached_e, next_e), done_e.shape)
    is_ready_e = next_e.is_ready & _is_still_next(env, _unpacked(next_e.packed, reached_e), reached_e)
    next_e = _make_needed(env, done_e & ~is_ready_e, last_states, dataclasses.replace(next_e, is_ready=is_ready_e))
    state_e = select_envs(done_e, _unpacked(next_e.packed, reached_e), reached_e)
    return state_e, dataclasses.replace(next_e, number=next_e.number + done_e, is_ready=next_e.is_ready & ~done_e)


def _is_still_next(env: Environment, start_e: EnvState, state_e: EnvState) -> Bool[Array, " e"]:
    """Whether starts made earlier are those that `next_episode` would return now; False if the env cannot tell.

    It can tell unless a class overrides `next_episode` without `is_next_start`.
    """
    owner = lambda method: next(kind for kind in type(env).__mro__ if method in vars(kind))
    if not issubclass(owner("is_next_start"), owner("next_episode")):
        return jnp.zeros(state_e.reward.shape, bool)
    return jax.vmap(env.is_next_start)(start_e, state_e)


class _StartsLoop(NamedTuple):
    """Carry of the loop over batches: the envs that need a start, those that have one, and the starts."""

    is_needed: Array
    is_ready: Array
    packed: dict[str, Array]


def _make_needed(
    env: Environment, is_needed_e: Bool[Array, " e"], last_states: LastStates, next_e: NextStart
) -> NextStart:
    """The next starts, after making batches of them until none is needed."""
    num_envs = is_needed_e.shape[0]
    num_rows = _batch_size(num_envs)
    # A call of one program, so that it is traced once.
    start = jax.jit(lambda last_r, key_r: _packed(jax.vmap(env.next_episode)(last_r, key_r)))
    shapes = jax.eval_shape(lambda: (last_states(jnp.arange(num_rows)), next_e.key[:num_rows]))
    axes = axes_reduced(start.trace(*shapes).jaxpr)

    def make_batch(at: _StartsLoop) -> _StartsLoop:
        order_e = jnp.argsort(at.is_needed.astype(jnp.int32) + ~at.is_ready, descending=True)
        index_r, row_e = order_e[:num_rows], jnp.argsort(order_e)
        key_r = jax.vmap(jax.random.fold_in)(next_e.key[index_r], next_e.number[index_r])
        packed_r = start(last_states(index_r), key_r)
        # Spare rows repeat a start that is ready already, which stays unchanged.
        is_made_e = (row_e < num_rows) & ~at.is_ready
        # Selected, because a scatter on a CPU loops over the rows.
        made_e = {name: x_r[jnp.minimum(row_e, num_rows - 1)] for name, x_r in packed_r.items()}
        return _StartsLoop(
            at.is_needed & ~is_made_e, at.is_ready | is_made_e, select_envs(is_made_e, made_e, at.packed)
        )

    def is_any_needed(at: _StartsLoop) -> Array:
        # Where starts have collectives, every device must make as many batches as the others.
        return functools.reduce(any_across_devices, axes, jnp.any(at.is_needed))

    made = jax.lax.while_loop(is_any_needed, make_batch, _StartsLoop(is_needed_e, next_e.is_ready, next_e.packed))
    return dataclasses.replace(next_e, is_ready=made.is_ready, packed=made.packed)


def _batch_size(num_envs: int) -> int:
    """Number of starts made in one batch.

    On a CPU no row may be wasted. If u starts are missing and episodes end at random, about num_envs / u episodes end,
    each using a start, before one needs a missing start. A batch of u rows replaces just those if u = sqrt(num_envs).
    """
    is_cpu = jax.default_backend() == "cpu"
    return math.isqrt(num_envs - 1) + 1 if is_cpu else min(num_envs, _ROWS_ON_ACCELERATOR)


def _packed(state_e: EnvState) -> dict[str, Array]:
    """States as one row of numbers per env and dtype."""
    return pack(unwrap_keys(state_e), num_axes=1)


def _unpacked(packed_e: dict[str, Array], like_e: EnvState) -> EnvState:
    return wrap_keys(unpack(packed_e, unwrap_keys(like_e), num_axes=1), like_e)
