"""A rollout: envs vmapped, time scanned; an env whose episode ends continues from its next start."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, reset_carry
from ksim.parallel.collectives import pack, unpack
from ksim.rollout.environment import Environment, select_envs
from ksim.rollout.starts import continue_or_start, empty_starts, fold_in_each
from ksim.rollout.threefry import unrolled
from ksim.types import EnvState, NextStart, Observation, Trajectory

_Loop = tuple[EnvState, PyTree, NextStart]
"""Carry of the scan: states, the model's memories, next starts."""

NON_FINITE = "rollout/not_finite"
"""The metric of steps that are masked because of a non-finite reward or observation, see `unroll`."""


def finite_steps(trajectory: Trajectory) -> Bool[Array, "e t"]:
    """Whether each step is finite; true for all steps if the rollout does not report it."""
    return trajectory.metrics.get(NON_FINITE, jnp.zeros_like(trajectory.reward)) == 0


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

    An env whose episode ends continues from its next start (`ksim.rollout.starts`). The states carry the next starts
    from rollout to rollout. If the given states have none, this rollout makes its own from `key_e` and returns none.

    A step with a non-finite reward or observation is masked: the env counts as standing still with zero reward, and its
    episode as truncated, bootstrapped with the value of the previous state. The metric `rollout/not_finite` is 1 for
    that step. So an env that blew up barely affects learning.

    Args:
        model: The policy and the value function, on raw observations.
        env_state_e, carry_e: States and the model's memory to start from.
        key_e: One key per env for this rollout.
        deterministic: Use the deterministic policy instead of sampling.
        reached_groups: Names of observation groups. Each step's `reached` holds them for the state after the step,
            before a new episode starts.

    Returns:
        The trajectory with leading axes (env, time), and the states and memories after it.
    """
    chex.assert_rank(key_e, 1)
    chex.assert_tree_shape_prefix((env_state_e, carry_e), key_e.shape)
    given_e, env_state_e = env_state_e.next_start, dataclasses.replace(env_state_e, next_start=None)
    # Steps fold in the numbers below.
    next_e = empty_starts(env_state_e, fold_in_each(key_e, num_steps)) if given_e is None else given_e

    def step(loop: _Loop, t: Array) -> tuple[_Loop, Trajectory]:
        state_e, carry_e, next_e = loop
        # An env whose reset is non-finite steps with masked data until a reset succeeds.
        obs_e = select_envs(_is_finite(state_e.obs), state_e.obs, jax.tree.map(jnp.zeros_like, state_e.obs))
        decision_e, carry_e = _decide(model, obs_e, carry_e, fold_in_each(key_e, t), deterministic=deterministic)
        reached_e = jax.vmap(env.step)(state_e, decision_e.action)
        is_good_e = _is_finite((state_e.obs, reached_e.obs, reached_e.reward))
        value_at_cut_e = _value_at_cut(model, decision_e.value, reached_e, carry_e, is_good_e)
        transition_e = _transition(obs_e, decision_e, reached_e, value_at_cut_e, is_good_e)
        groups = [group for group in reached_groups if group in obs_e]
        before_e, after_e = ({group: obs[group] for group in groups} for obs in (obs_e, reached_e.obs))
        transition_e = dataclasses.replace(transition_e, reached=select_envs(is_good_e, after_e, before_e))
        done_e = transition_e.done

        def last_states(index_r: Array) -> EnvState:
            before_r, after_r = jax.tree.map(lambda x: x[index_r], (state_e, reached_e))
            return select_envs(is_good_e[index_r], after_r, before_r)

        state_e, next_e = continue_or_start(env, reached_e, done_e, last_states, next_e)
        return (state_e, reset_carry(model, done_e, carry_e), next_e), transition_e

    (env_state_e, carry_e, next_e), steps_te = _scan(step, (env_state_e, carry_e, next_e), num_steps)
    steps_et = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps_te)
    trajectory = _with_next_values(steps_et, _values(model, env_state_e, carry_e))
    return trajectory, dataclasses.replace(env_state_e, next_start=None if given_e is None else next_e), carry_e


def _scan(
    step: Callable[[_Loop, Array], tuple[_Loop, Trajectory]], loop: _Loop, num_steps: int
) -> tuple[_Loop, Trajectory]:
    """The loop after its steps, and their transitions with leading axes (time, env).

    All fields of one number per env are packed as one output: on a GPU each output takes a kernel in every step.
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
    """Values that truncated episodes bootstrap with; zeros if a step truncates none."""
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


def _is_finite(tree_e: PyTree) -> Bool[Array, " e"]:
    """Whether all numbers of each env are finite."""
    leaves = [jnp.isfinite(x).reshape(x.shape[0], -1).all(axis=1) for x in jax.tree.leaves(tree_e)]
    return jnp.stack(leaves).all(axis=0)
