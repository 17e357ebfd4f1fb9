"""A rollout: envs vmapped, time scanned, finished episodes reset on the way."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from ksim.keys import NEXT_STARTS
from ksim.nn.actor_critic import AbstractActorCritic, reset_carry
from ksim.parallel.collectives import any_across_devices, axes_reduced, pack, unpack
from ksim.parallel.placement import unwrap_keys, wrap_keys
from ksim.rollout.environment import Environment, select_envs
from ksim.rollout.threefry import unrolled
from ksim.types import EnvState, NextStart, Observation, Trajectory

_ROWS_ON_ACCELERATOR = 1024
"""Starts made at once on an accelerator, where a smaller batch takes as long."""

_Makes = tuple[Array, Array, dict[str, Array]]
"""Flags of the needed starts, flags of the ready ones, and the starts."""

EndedStates = Callable[[Int[Array, " r"]], EnvState]
"""`(indices of envs) -> the states in which their episodes ended`."""


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
    env: Environment, reached_e: EnvState, done_e: Bool[Array, " e"], ended: EndedStates, next_e: NextStart
) -> tuple[EnvState, NextStart]:
    """The states from which envs continue after a step, and their next starts.

    An env whose episode ended continues from its next start. Starts are made only when an env needs one that is not
    ready. The batch also makes those of other envs that have used up theirs. So resets cost in proportion to the
    episodes that end. `ended` gives the states in which the episodes of some envs ended, for `next_episode`.
    """
    chex.assert_rank(done_e, 1)
    chex.assert_tree_shape_prefix((reached_e, next_e), done_e.shape)
    is_ready_e = next_e.is_ready & _is_valid(env, _unpacked(next_e.packed, reached_e), reached_e)
    next_e = _make_needed(env, done_e & ~is_ready_e, ended, dataclasses.replace(next_e, is_ready=is_ready_e))
    state_e = select_envs(done_e, _unpacked(next_e.packed, reached_e), reached_e)
    return state_e, dataclasses.replace(next_e, number=next_e.number + done_e, is_ready=next_e.is_ready & ~done_e)


def _is_valid(env: Environment, start_e: EnvState, state_e: EnvState) -> Bool[Array, " e"]:
    kind = type(env)
    if not issubclass(_defining(kind, "is_next_start"), _defining(kind, "next_episode")):
        return jnp.zeros(state_e.reward.shape, bool)
    return jax.vmap(env.is_next_start)(start_e, state_e)


def _defining(kind: type[Any], method: str) -> type[Any]:
    """The class from which a class has a method."""
    return next(base for base in kind.__mro__ if method in vars(base))


def _make_needed(env: Environment, is_needed_e: Bool[Array, " e"], ended: EndedStates, next_e: NextStart) -> NextStart:
    """The next starts, after making the needed ones and some others."""
    num_envs = is_needed_e.shape[0]
    num_rows = _batch_size(num_envs)
    # A call of one program, so that it is traced once.
    start = jax.jit(lambda ended_r, key_r: _packed(jax.vmap(env.next_episode)(ended_r, key_r)))
    shapes = jax.eval_shape(lambda: (ended(jnp.arange(num_rows)), next_e.key[:num_rows]))
    axes = axes_reduced(start.trace(*shapes).jaxpr)

    def make(loop: _Makes) -> _Makes:
        is_needed_e, is_ready_e, packed_e = loop
        order_e = jnp.argsort(is_needed_e.astype(jnp.int32) + ~is_ready_e, descending=True)
        index_r, row_e = order_e[:num_rows], jnp.argsort(order_e)
        key_r = jax.vmap(jax.random.fold_in)(next_e.key[index_r], next_e.number[index_r])
        packed_r = start(ended(index_r), key_r)
        # Spare rows repeat a start that is ready already, which stays unchanged.
        is_made_e = (row_e < num_rows) & ~is_ready_e
        # Selected, because a scatter on a CPU loops over the rows.
        made_e = {name: x_r[jnp.minimum(row_e, num_rows - 1)] for name, x_r in packed_r.items()}
        return is_needed_e & ~is_made_e, is_ready_e | is_made_e, select_envs(is_made_e, made_e, packed_e)

    def is_any_needed(loop: _Makes) -> Array:
        # Where starts have collectives, every device must make as many batches as the others.
        return functools.reduce(any_across_devices, axes, jnp.any(loop[0]))

    loop = (is_needed_e, next_e.is_ready, next_e.packed)
    _, is_ready_e, packed_e = jax.lax.while_loop(is_any_needed, make, loop)
    return dataclasses.replace(next_e, is_ready=is_ready_e, packed=packed_e)


def _packed(state_e: EnvState) -> dict[str, Array]:
    """States as one row of numbers per env and dtype."""
    return pack(unwrap_keys(state_e), num_axes=1)


def _unpacked(packed_e: dict[str, Array], like_e: EnvState) -> EnvState:
    return wrap_keys(unpack(packed_e, unwrap_keys(like_e), num_axes=1), like_e)


def _batch_size(num_envs: int) -> int:
    """Number of starts made in one batch.

    On a CPU no work may be wasted. If u starts are not ready and episodes end at random, about num_envs / u episodes
    end, each of which uses up a start, before one needs a start that is not ready. A batch that replaces these has u
    starts to make: both are equal at sqrt(num_envs).
    """
    is_cpu = jax.default_backend() == "cpu"
    return math.isqrt(num_envs - 1) + 1 if is_cpu else min(num_envs, _ROWS_ON_ACCELERATOR)


_Loop = tuple[EnvState, PyTree, NextStart]
"""Carry of the scan: states, the model's memories, next starts."""

NON_FINITE = "rollout/not_finite"
"""The metric of steps left out of learning because of a non-finite reward or observation."""


def initial_env_states(
    env: Environment, key: PRNGKeyArray, index_e: Int[Array, " e"], *, full_task: bool = False
) -> EnvState:
    """The first states of envs, by index in the global batch; all randomness of env i is from `fold_in(key, i)`.

    With `full_task`, as for an evaluation, curricula of all envs are at their last level and those of single envs at a
    random one. Otherwise all are at their first.
    """
    chex.assert_rank(index_e, 1)
    return jax.vmap(env.reset if full_task else env.first_episode)(env_keys(key, index_e))


def initial_next_starts(like_e: EnvState, key: PRNGKeyArray, index_e: Int[Array, " e"]) -> NextStart:
    """The next starts of some envs before their first rollout: they too derive from `fold_in(key, i)` alone.

    `like_e` are their first states, or shapes of states of any number of envs; `key` made these states.
    """
    chex.assert_rank(index_e, 1)
    return empty_starts(like_e, _fold_in(env_keys(key, index_e), NEXT_STARTS))


def env_keys(key: PRNGKeyArray, index_e: Int[Array, " e"]) -> Key[Array, " e"]:
    """A key for each env, from its index in the global batch: the same on any number of devices."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(index_e)


def unroll(
    env: Environment,
    model: AbstractActorCritic,
    env_state_e: EnvState,
    carry_e: PyTree,
    key_e: Key[Array, " e"],
    *,
    num_steps: int,
    deterministic: bool = False,
    reached_groups: Sequence[str] = (),
) -> tuple[Trajectory, EnvState, PyTree]:
    """Steps a batch of envs under a policy.

    An env whose episode ends continues from its next start, see `continue_or_start`. The states carry the next starts
    from rollout to rollout; without them, none is ready when the rollout begins, and the env's key draws them.

    A step with a non-finite reward or observation is masked: the env counts as standing still with zero reward, and its
    episode as truncated, bootstrapped with the value of the previous state. The env continues from its next start, and
    the metric `rollout/not_finite` is 1 for that step. So an env that blew up barely affects learning.

    Args:
        model: The policy and the value function, on raw observations.
        env_state_e, carry_e: States and the model's memory to start from.
        key_e: One key per env for this rollout.
        deterministic: Use the deterministic policy instead of sampling.
        reached_groups: Observation groups that the trajectory also holds for the states reached, in `reached`.

    Returns:
        The trajectory with leading axes (env, time), and the states and memories after it.
    """
    chex.assert_rank(key_e, 1)
    chex.assert_tree_shape_prefix((env_state_e, carry_e), key_e.shape)
    given_e, env_state_e = env_state_e.next_start, dataclasses.replace(env_state_e, next_start=None)
    # The number after the last step's.
    next_e = empty_starts(env_state_e, _fold_in(key_e, num_steps)) if given_e is None else given_e

    def step(loop: _Loop, t: Array) -> tuple[_Loop, Trajectory]:
        state_e, carry_e, next_e = loop
        # An env whose reset is non-finite steps with masked data until a reset succeeds.
        obs_e = select_envs(_is_finite(state_e.obs), state_e.obs, jax.tree.map(jnp.zeros_like, state_e.obs))
        decision_e, carry_e = _decide(model, obs_e, carry_e, _fold_in(key_e, t), deterministic=deterministic)
        reached_e = jax.vmap(env.step)(state_e, decision_e.action)
        is_good_e = _is_finite((state_e.obs, reached_e.obs, reached_e.reward))
        value_at_cut_e = _value_at_cut(model, decision_e.value, reached_e, carry_e, is_good_e)
        transition_e = _transition(obs_e, decision_e, reached_e, value_at_cut_e, is_good_e)
        groups = [group for group in reached_groups if group in obs_e]
        before_e, after_e = ({group: obs[group] for group in groups} for obs in (obs_e, reached_e.obs))
        transition_e = dataclasses.replace(transition_e, reached=select_envs(is_good_e, after_e, before_e))
        done_e = transition_e.done

        def ended(index_r: Array) -> EnvState:
            before_r, after_r = jax.tree.map(lambda x: x[index_r], (state_e, reached_e))
            return select_envs(is_good_e[index_r], after_r, before_r)

        state_e, next_e = continue_or_start(env, reached_e, done_e, ended, next_e)
        return (state_e, reset_carry(model, done_e, carry_e), next_e), transition_e

    (env_state_e, carry_e, next_e), steps_te = _scan(step, (env_state_e, carry_e, next_e), num_steps)
    steps_et = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps_te)
    trajectory = _with_next_values(steps_et, _values(model, env_state_e, carry_e))
    return trajectory, dataclasses.replace(env_state_e, next_start=None if given_e is None else next_e), carry_e


def _scan(
    step: Callable[[_Loop, Array], tuple[_Loop, Trajectory]], loop: _Loop, num_steps: int
) -> tuple[_Loop, Trajectory]:
    """The loop after its steps, and their transitions with leading axes (time, env).

    On a GPU each output of a scan takes a kernel in each step. So all numbers of one per env are a single output.
    """
    shapes_e: Any = None

    def packed(loop: _Loop, t: Array) -> tuple[_Loop, tuple[dict[str, Array], PyTree]]:
        nonlocal shapes_e
        loop, transition_e = step(loop, t)
        numbers_e, rest_e = eqx.partition(transition_e, lambda x: x.ndim == 1)
        shapes_e = jax.eval_shape(lambda: numbers_e)
        return loop, (pack(numbers_e), rest_e)

    loop, (numbers_t, rest_te) = jax.lax.scan(packed, loop, jnp.arange(num_steps))
    shapes_te = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_steps, *x.shape), x.dtype), shapes_e)
    return loop, eqx.combine(unpack(numbers_t, shapes_te, num_axes=1), rest_te)


class _Decision(NamedTuple):
    """The action to take for an observation, and fields of `Trajectory`."""

    action: Array
    sample: Array
    log_prob: Array
    value: Array


def _decide(
    model: AbstractActorCritic, obs_e: Observation, carry_e: PyTree, key_e: Key[Array, " e"], *, deterministic: bool
) -> tuple[_Decision, PyTree]:
    """The actions to take with the values of the observations, and the model's memory after them."""

    def decide(key: PRNGKeyArray, obs: Observation, carry: PyTree) -> tuple[_Decision, PyTree]:
        output, carry = model(obs, carry)
        distribution = output.distribution
        sample = distribution.mean if deterministic else distribution.sample(unrolled(key))
        return _Decision(distribution.action(sample), sample, distribution.log_prob(sample), output.value), carry

    return jax.vmap(decide)(key_e, obs_e, carry_e)


def _values(model: AbstractActorCritic, state_e: EnvState, carry_e: PyTree) -> Float[Array, " e"]:
    return jax.vmap(lambda obs, carry: model(obs, carry)[0].value)(state_e.obs, carry_e)


def _value_at_cut(
    model: AbstractActorCritic,
    value_e: Float[Array, " e"],
    reached_e: EnvState,
    carry_e: PyTree,
    is_good_e: Bool[Array, " e"],
) -> Float[Array, " e"]:
    """Values of the states reached, which truncated episodes need; zeros if a step truncates none."""
    return jax.lax.cond(
        # Few steps truncate an episode.
        jnp.any(reached_e.truncated & ~reached_e.terminated & is_good_e),
        functools.partial(_values, model),
        lambda *_: jnp.zeros_like(value_e),
        reached_e,
        carry_e,
    )


def _transition(
    obs_e: Observation,
    decision_e: _Decision,
    reached_e: EnvState,
    value_at_cut_e: Float[Array, " e"],
    is_good_e: Bool[Array, " e"],
) -> Trajectory:
    """One step of all envs. A non-finite step counts as truncated, with the env standing still and zero reward."""
    return Trajectory(
        obs=obs_e,
        action=decision_e.sample,
        log_prob=decision_e.log_prob,
        value=decision_e.value,
        next_value=jnp.where(is_good_e, value_at_cut_e, decision_e.value),
        reward=jnp.where(is_good_e, reached_e.reward, 0.0),
        terminated=reached_e.terminated & is_good_e,
        done=reached_e.terminated | reached_e.truncated | ~is_good_e,
        metrics=reached_e.metrics | {NON_FINITE: (~is_good_e).astype(jnp.float32)},
    )


def _with_next_values(steps_et: Trajectory, last_value_e: Float[Array, " e"]) -> Trajectory:
    """The trajectory with every `next_value`; its steps hold these only at the ends of episodes.

    Within an episode the state reached is the next observed state, whose value is already known.
    """
    following_et = jnp.concatenate([steps_et.value[:, 1:], last_value_e[:, None]], axis=1)
    return dataclasses.replace(steps_et, next_value=jnp.where(steps_et.done, steps_et.next_value, following_et))


def _fold_in(key_e: Key[Array, " e"], number: int | Array) -> Key[Array, " e"]:
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(key_e)


def _is_finite(tree_e: PyTree) -> Bool[Array, " e"]:
    """Whether all numbers of each env are finite."""
    leaves = [jnp.isfinite(x).reshape(x.shape[0], -1).all(axis=1) for x in jax.tree.leaves(tree_e)]
    return jnp.stack(leaves).all(axis=0)
