"""One training step, written once: what a layout jits on one device, and maps over several."""

import dataclasses
from collections.abc import Callable

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, initial_carries
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.parallel.collectives import (
    all_across_devices,
    mean_across_devices,
)
from ksim.ppo.advantages import generalized_advantages, normalize_advantages
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.ppo.losses import Minibatch
from ksim.ppo.minibatches import stratified_minibatches
from ksim.ppo.statistics import device_metrics, episode_metrics, finished_episodes, rollout_metrics
from ksim.ppo.update import SyncGradients, adapt_learning_rate, update
from ksim.rollout.environment import Environment
from ksim.rollout.unroll import NOT_FINITE
from ksim.types import EnvBatch, EnvState, LearnerState, Levels, Metrics, TrainState, Trajectory

Rollout = Callable[
    [AbstractActorCritic, EnvState, PyTree, Key[Array, ""]],
    tuple[Trajectory, EnvState, PyTree],
]
"""`(model, env_state, model_carry, rng) -> (trajectory, env_state, model_carry)` for one device's envs.

`rng` is one key, the same on every device.
"""


MAX_NOT_FINITE = 0.5
"""Where a larger share of the steps is not finite, there is nothing to learn from a rollout."""


class Collected(eqx.Module):
    """What the first half of a training step hands to the second: one device's rollout.

    Attributes:
        trajectory: The rollout.
        model_carry: The model's memory before it, one row per env.
        episode_return: Undiscounted return of the running episode up to and including each step.
        episode_length: Its length in steps, likewise.
    """

    trajectory: Trajectory
    model_carry: PyTree
    episode_return: Float[Array, "*e_t"]
    episode_length: Int[Array, "*e_t"]


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """The training step of a task: `step(state) -> (state, metrics)`, pure and free of devices.

    It has two halves, `roll_out` and `improve`, which a run compiles as two programs to time them on every device.
    The first holds no collective of ksim's, so that no device waits for another in it.

    Attributes:
        env: The environment, whose curricula the step moves.
        rollout: Steps this device's envs under the policy.
        static: The leaves of the actor-critic that are no arrays.
        optimizer: Gradient transformation, with an injected `learning_rate`.
        sync_gradients: Averages gradients over devices.
        hyper: Numbers of the algorithm.
        axis_name: The mapped axis of devices; None on a single one.
    """

    env: Environment
    rollout: Rollout
    static: PyTree
    optimizer: optax.GradientTransformation
    sync_gradients: SyncGradients
    hyper: PPOHyperparameters
    axis_name: str | None

    def __call__(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Collects a rollout and learns from it."""
        envs, collected = self.roll_out(state.envs, state.learner)
        learner, metrics = self.improve(state.learner, collected)
        return TrainState(learner=learner, envs=envs), metrics

    def roll_out(self, envs: EnvBatch, learner: LearnerState) -> tuple[EnvBatch, Collected]:
        """The first half: steps the envs under the policy."""
        rollout_key, _ = _step_keys(learner)
        trajectory, envs_after, (return_et, length_et) = self.collect(TrainState(learner, envs), rollout_key)
        return envs_after, Collected(trajectory, envs.model_carry, return_et, length_et)

    def improve(self, learner: LearnerState, collected: Collected) -> tuple[LearnerState, Metrics]:
        """The second half: learns from what was collected, and moves the curricula."""
        _, update_key = _step_keys(learner)
        trajectory, episodes = collected.trajectory, (collected.episode_return, collected.episode_length)
        metrics = episode_metrics(*episodes, trajectory, self.axis_name)
        improved, learning_metrics = self.learn(learner, collected.model_carry, trajectory, update_key)
        metrics |= learning_metrics
        levels = self.env.next_levels(improved.levels, metrics, improved.iteration)
        # A curriculum that goes by a metric which is not finite stays where it is.
        levels = {name: jnp.where(jnp.isfinite(x), x, improved.levels[name]) for name, x in levels.items()}
        metrics |= {f"curriculum/{name}": level for name, level in learner.levels.items()}
        metrics |= device_metrics(trajectory, self.axis_name)
        return dataclasses.replace(improved, levels=levels), metrics

    def collect(
        self, state: TrainState, key: PRNGKeyArray
    ) -> tuple[Trajectory, EnvBatch, tuple[Float[Array, "e t"], Int[Array, "e t"]]]:
        """A rollout of this device's envs, and the running episode's return and length at every step."""
        learner, envs = state.learner, state.envs
        model = NormalizedActorCritic(eqx.combine(learner.params, self.static), learner.normalizer)
        env_state = jax.vmap(self.env.at_levels, in_axes=(0, None))(envs.env_state, learner.levels)
        trajectory, env_state, model_carry = self.rollout(model, env_state, envs.model_carry, key)
        (return_et, length_et), (return_e, length_e) = finished_episodes(
            trajectory.reward, trajectory.done, envs.episode_return, envs.episode_length
        )
        return trajectory, EnvBatch(env_state, model_carry, return_e, length_e), (return_et, length_et)

    def learn(
        self, learner: LearnerState, carry_e: PyTree, trajectory: Trajectory, key: PRNGKeyArray
    ) -> tuple[LearnerState, Metrics]:
        """All passes over a rollout, then the statistics that the next one will use."""
        hyper, axis_name = self.hyper, self.axis_name
        chex.assert_rank(trajectory.reward, 2)
        chex.assert_tree_shape_prefix(trajectory, trajectory.reward.shape)
        chex.assert_tree_shape_prefix(carry_e, trajectory.reward.shape[:1])
        rollout, value_target_et = self._prepare(learner.normalizer, carry_e, trajectory)
        rollout_figures = rollout_metrics(trajectory, value_target_et, axis_name)
        is_usable = jnp.asarray(rollout_figures.get(NOT_FINITE, 0.0)) <= MAX_NOT_FINITE
        env_index_mb = stratified_minibatches(
            key,
            trajectory.reward.shape[0],
            num_batches=hyper.num_batches,
            num_passes=hyper.num_passes,
            axis_name=axis_name,
        )
        params, opt_state, num_bad, metrics = update(
            learner.params,
            learner.opt_state,
            learner.num_bad_updates,
            rollout,
            env_index_mb,
            static=self.static,
            optimizer=self.optimizer,
            sync_gradients=self.sync_gradients,
            hyper=hyper,
            axis_name=axis_name,
            is_usable=is_usable,
        )
        metrics = mean_across_devices(metrics, axis_name) | rollout_figures
        learning_rate = optax.tree.get(opt_state, "learning_rate")
        metrics["policy/learning_rate"] = learning_rate
        # A policy that did not move has a KL divergence of 0, by which the rate would rise just when updates fail.
        kl = jnp.where(metrics["policy/bad_updates"] > 0, jnp.nan, metrics["policy/kl_last_pass"])
        adapted = adapt_learning_rate(learning_rate, kl, hyper)
        learner = LearnerState(
            params=params,
            normalizer=self._updated_normalizer(learner.normalizer, trajectory, is_usable),
            opt_state=optax.tree.set(opt_state, learning_rate=adapted),
            key=learner.key,
            iteration=learner.iteration + 1,
            num_bad_updates=num_bad,
            levels=learner.levels,
        )
        return learner, metrics

    def _prepare(
        self, normalizer: ObservationNormalizer, carry_e: PyTree, trajectory: Trajectory
    ) -> tuple[Minibatch, Float[Array, "e t"]]:
        advantage_et = generalized_advantages(
            trajectory.reward,
            trajectory.value,
            trajectory.next_value,
            trajectory.terminated,
            trajectory.done,
            gamma=self.hyper.gamma,
            gae_lambda=self.hyper.gae_lambda,
        )
        value_target_et = trajectory.value + advantage_et
        rollout = Minibatch(
            obs=normalizer(trajectory.obs),
            carry=carry_e,
            done=trajectory.done,
            action=trajectory.action,
            log_prob=trajectory.log_prob,
            value=trajectory.value,
            advantage=normalize_advantages(advantage_et, self.axis_name),
            value_target=value_target_et,
        )
        return rollout, value_target_et

    def _updated_normalizer(
        self, normalizer: ObservationNormalizer, trajectory: Trajectory, is_usable: Bool[Array, ""]
    ) -> ObservationNormalizer:
        """Statistics with the rollout merged in, unless it is not usable or holds a value that is not finite."""
        if not self.hyper.normalize_observations:
            return normalizer
        updated = normalizer.update(trajectory.obs, self.axis_name)
        is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(updated)]))
        is_finite = all_across_devices(is_finite & is_usable, self.axis_name)
        return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), updated, normalizer)


def _step_keys(learner: LearnerState) -> Key[Array, " 2"]:
    """The keys of this iteration's rollout and update."""
    return jax.random.split(jax.random.fold_in(learner.key, learner.iteration))


def trainable_leaves(model: AbstractActorCritic) -> PyTree:
    """The floating-point arrays of a model; None in place of every other leaf."""
    return eqx.filter(model, eqx.is_inexact_array)


def static_leaves(model: AbstractActorCritic) -> PyTree:
    """What `trainable_leaves` leaves out; `eqx.combine` puts the two together."""
    return eqx.filter(model, eqx.is_inexact_array, inverse=True)


def initial_learner_state(
    model: AbstractActorCritic,
    obs_sizes: dict[str, int],
    optimizer: optax.GradientTransformation,
    key: PRNGKeyArray,
    levels: Levels,
) -> LearnerState:
    """The learner before the first iteration."""
    params = trainable_leaves(model)
    return LearnerState(
        params=params,
        normalizer=ObservationNormalizer.init(obs_sizes),
        opt_state=optimizer.init(params),
        key=key,
        iteration=jnp.int32(0),
        num_bad_updates=jnp.int32(0),
        levels=levels,
    )


def initial_memories(model: AbstractActorCritic, num_envs: int) -> tuple[PyTree, Array, Array]:
    """What `EnvBatch` holds beside the environments' states before the first iteration."""
    return initial_carries(model, num_envs), jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)
