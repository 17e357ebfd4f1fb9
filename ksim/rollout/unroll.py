"""A rollout: envs vmapped, time scanned, finished episodes reset on the way."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, reset_carry
from ksim.rollout.environment import Environment, select_envs
from ksim.types import EnvState, Trajectory

NOT_FINITE = "rollout/not_finite"
"""The metric of steps that are left out of learning, because a reward or an observation was not finite."""


def initial_env_states(
    env: Environment, key: PRNGKeyArray, index_e: Int[Array, " e"], *, full_task: bool = False
) -> EnvState:
    """The first states of some envs of the global batch: env i's life comes from `fold_in(key, i)` alone.

    Args:
        env: The environment.
        key: Where all randomness comes from.
        index_e: The envs' places in the global batch.
        full_task: Whether the curricula stand at their ends, as for an evaluation, and not at their starts.
    """
    chex.assert_rank(index_e, 1)
    return jax.vmap(env.reset if full_task else env.first_episode)(env_keys(key, index_e))


def env_keys(key: PRNGKeyArray, index_e: Int[Array, " e"]) -> Key[Array, " e"]:
    """A key for each env, from its place in the global batch: the same on any number of devices."""
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
) -> tuple[Trajectory, EnvState, PyTree]:
    """Steps a batch of envs under a policy.

    An env whose episode ends continues from a reset state, drawn once per env and rollout from the env's key. (A reset
    inside the scan would put a second forward pass of the physics into every step.) If it ends again within the same
    rollout, it starts from that state again.

    A step whose reward or observation is not finite is masked: the env counts as standing still with zero reward, and
    its episode as truncated, so it bootstraps with the value of the state before it. The env continues from its reset
    state, and the metric `rollout/not_finite` is 1 for that step. So an env that blew up barely affects learning.

    Args:
        env: The environment.
        model: The policy and the value function, on raw observations.
        env_state_e: States to start from.
        carry_e: The model's memory to start from.
        key_e: One key per env for this rollout.
        num_steps: Control steps.
        deterministic: Use the deterministic policy instead of sampling.

    Returns:
        The trajectory with leading axes (env, time), and the states and memories after it.
    """
    chex.assert_rank(key_e, 1)
    chex.assert_tree_shape_prefix((env_state_e, carry_e), key_e.shape)
    fresh_key_e = jax.vmap(lambda key: jax.random.fold_in(key, num_steps))(key_e)
    fresh_e = jax.vmap(env.next_episode)(env_state_e, fresh_key_e)

    def value_of(state_e: EnvState, carry_e: PyTree) -> Float[Array, " e"]:
        return jax.vmap(lambda obs, carry: model(obs, carry)[0].value)(state_e.obs, carry_e)

    def act(key: PRNGKeyArray, obs: PyTree, carry: PyTree) -> tuple[Array, Array, Array, PyTree]:
        output, carry = model(obs, carry)
        action = output.distribution.mode() if deterministic else output.distribution.sample(key)
        return action, output.distribution.log_prob(action), output.value, carry

    def step(loop: tuple[EnvState, PyTree], t: Array) -> tuple[tuple[EnvState, PyTree], Trajectory]:
        state_e, carry_e = loop
        step_key_e = jax.vmap(lambda key: jax.random.fold_in(key, t))(key_e)
        # One whose very reset is not finite is stepped in vain until a reset is.
        obs_e = select_envs(_is_finite(state_e.obs), state_e.obs, jax.tree.map(jnp.zeros_like, state_e.obs))
        action_e, log_prob_e, value_e, carry_e = jax.vmap(act)(step_key_e, obs_e, carry_e)
        reached_e = jax.vmap(env.step)(state_e, action_e)
        is_good_e = _is_finite((state_e.obs, reached_e.obs, reached_e.reward))
        terminated_e = reached_e.terminated & is_good_e
        done_e = reached_e.terminated | reached_e.truncated | ~is_good_e
        # Only a truncated episode needs the value of the state it was cut at, and few steps have one.
        final_value_e = jax.lax.cond(
            jnp.any(reached_e.truncated & ~reached_e.terminated & is_good_e),
            value_of,
            lambda *_: jnp.zeros_like(value_e),
            reached_e,
            carry_e,
        )
        transition = Trajectory(
            obs=obs_e,
            action=action_e,
            log_prob=log_prob_e,
            value=value_e,
            # As if the env had stood still for a step that earned nothing, and was cut then.
            next_value=jnp.where(is_good_e, final_value_e, value_e),
            reward=jnp.where(is_good_e, reached_e.reward, 0.0),
            terminated=terminated_e,
            done=done_e,
            metrics=reached_e.metrics | {NOT_FINITE: (~is_good_e).astype(jnp.float32)},
        )
        return (select_envs(done_e, fresh_e, reached_e), reset_carry(model, done_e, carry_e)), transition

    (env_state_e, carry_e), steps_te = jax.lax.scan(step, (env_state_e, carry_e), jnp.arange(num_steps))
    trajectory = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps_te)
    # Inside an episode the state reached is the next one observed, and its value is known already.
    following_et = jnp.concatenate([trajectory.value[:, 1:], value_of(env_state_e, carry_e)[:, None]], axis=1)
    next_value_et = jnp.where(trajectory.done, trajectory.next_value, following_et)
    return dataclasses.replace(trajectory, next_value=next_value_et), env_state_e, carry_e


def _is_finite(tree_e: PyTree) -> Bool[Array, " e"]:
    """Whether all numbers of each env are finite."""
    leaves = [jnp.isfinite(x).reshape(x.shape[0], -1).all(axis=1) for x in jax.tree.leaves(tree_e)]
    return jnp.stack(leaves).all(axis=0)
