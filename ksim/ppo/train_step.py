"""One training step, written once: what a layout jits on one device, and maps over several."""

import dataclasses
import time
from collections.abc import Callable

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from ksim.nn.actor_critic import AbstractActorCritic, initial_carries
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.parallel.collectives import (
    all_across_devices,
    gather_across_devices,
    mean_across_devices,
)
from ksim.ppo.advantages import generalized_advantages, normalize_advantages
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.ppo.losses import Minibatch
from ksim.ppo.minibatches import stratified_minibatches
from ksim.ppo.statistics import episode_metrics, finished_episodes, rollout_metrics
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


DEVICE_TIMES = "time/devices_us"
"""The metric that is no scalar: microseconds of rollout and update, one row per device."""
MAX_NOT_FINITE = 0.5
"""Where a larger share of the steps is not finite, there is nothing to learn from a rollout."""
_STAMP_MASK = 2**31 - 1


def _stamp_us(computed: Array) -> Int[Array, ""]:
    """The time, in microseconds, at which a device has computed an array."""

    def now(x: Array) -> np.ndarray:
        return np.full(np.shape(x), time.perf_counter_ns() // 1000 & _STAMP_MASK, np.int32)

    first, stamp = jnp.ravel(computed)[0], jax.ShapeDtypeStruct((), jnp.int32)
    return jax.pure_callback(now, stamp, first, vmap_method="broadcast_all")


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """The training step of a task: `step(state) -> (state, metrics)`, pure and free of devices.

    Attributes:
        env: The environment, whose curricula the step moves.
        rollout: Steps this device's envs under the policy.
        static: The leaves of the actor-critic that are no arrays.
        optimizer: Gradient transformation, with an injected `learning_rate`.
        sync_gradients: Averages gradients over devices.
        hyper: Numbers of the algorithm.
        axis_name: The mapped axis of devices; None on a single one.
        times_devices: Whether `DEVICE_TIMES` is among the metrics, at the cost of three callbacks.
    """

    env: Environment
    rollout: Rollout
    static: PyTree
    optimizer: optax.GradientTransformation
    sync_gradients: SyncGradients
    hyper: PPOHyperparameters
    axis_name: str | None
    times_devices: bool = False

    def __call__(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Collects a rollout and learns from it."""
        stamps = [_stamp_us(state.envs.episode_length)] if self.times_devices else []
        rollout_key, update_key = jax.random.split(jax.random.fold_in(state.learner.key, state.learner.iteration))
        trajectory, envs, metrics = self.collect(state, rollout_key)
        stamps += [_stamp_us(trajectory.reward)] if self.times_devices else []
        learner, learning_metrics = self.learn(state.learner, state.envs.model_carry, trajectory, update_key)
        metrics |= learning_metrics
        levels = self.env.next_levels(learner.levels, metrics, learner.iteration)
        # A curriculum that goes by a metric which is not finite stays where it is.
        levels = {name: jnp.where(jnp.isfinite(x), x, learner.levels[name]) for name, x in levels.items()}
        metrics |= {f"curriculum/{name}": level for name, level in state.learner.levels.items()}
        if stamps:
            stamps.append(_stamp_us(jax.tree.leaves(learner.params)[0]))
            # Stamps wrap around after 35 minutes.
            durations_us = jnp.diff(jnp.stack(stamps)) & _STAMP_MASK
            metrics[DEVICE_TIMES] = gather_across_devices(durations_us, self.axis_name)
        return TrainState(learner=dataclasses.replace(learner, levels=levels), envs=envs), metrics

    def collect(self, state: TrainState, key: PRNGKeyArray) -> tuple[Trajectory, EnvBatch, Metrics]:
        """A rollout of this device's envs, and the figures of the episodes that finished in it."""
        learner, envs = state.learner, state.envs
        model = NormalizedActorCritic(eqx.combine(learner.params, self.static), learner.normalizer)
        env_state = jax.vmap(self.env.at_levels, in_axes=(0, None))(envs.env_state, learner.levels)
        trajectory, env_state, model_carry = self.rollout(model, env_state, envs.model_carry, key)
        (return_et, length_et), (return_e, length_e) = finished_episodes(
            trajectory.reward, trajectory.done, envs.episode_return, envs.episode_length
        )
        metrics = episode_metrics(return_et, length_et, trajectory, self.axis_name)
        return trajectory, EnvBatch(env_state, model_carry, return_e, length_e), metrics

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
