"""The training step. A layout jits it on one device, or maps it over several."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ksim.learn.guards import has_enough_finite
from ksim.learn.learner import AbstractLearner, RolloutBatch
from ksim.learn.statistics import device_metrics, episode_metrics, rollout_metrics
from ksim.rollout.levels import bin_counts, level_metrics
from ksim.types import EnvBatch, LearnerState, Metrics, TrainState


@dataclasses.dataclass(frozen=True, eq=False)
class TrainStep:
    """The training step of a task: `step(state) -> (state, metrics)`, pure and independent of devices.

    It has two halves, `collect` and `learn`, which a run compiles as two programs to time them on every device.
    `collect` holds no collective, so that no device waits for another in it, unless code of the user's own has some.
    """

    algorithm: AbstractLearner

    def __call__(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Collects a rollout and learns from it."""
        envs, collected = self.collect(state.envs, state.learner)
        learner, metrics = self.learn(state.learner, collected)
        return TrainState(learner=learner, envs=envs), metrics

    def collect(self, envs: EnvBatch, learner: LearnerState) -> tuple[EnvBatch, RolloutBatch]:
        """The first half: steps the envs under the policy."""
        rollout_key, _ = _step_keys(learner)
        collected, envs = self.algorithm.collect(TrainState(learner, envs), rollout_key)
        return envs, collected

    def learn(self, learner: LearnerState, collected: RolloutBatch) -> tuple[LearnerState, Metrics]:
        """The second half: learns from the rollout, and updates the curricula."""
        _, update_key = _step_keys(learner)
        trajectory, axis_name = collected.trajectory, self.algorithm.axis_name
        chex.assert_rank(trajectory.reward, 2)
        chex.assert_tree_shape_prefix(trajectory, trajectory.reward.shape)
        chex.assert_tree_shape_prefix(collected.model_carry, trajectory.reward.shape[:1])
        metrics = episode_metrics(collected.episode_return, collected.episode_length, trajectory, axis_name)
        metrics |= rollout_metrics(trajectory, axis_name)
        learned, learning_metrics = self.algorithm.learn(learner, collected, update_key, has_enough_finite(metrics))
        metrics |= learning_metrics
        iteration = learner.iteration + 1
        counts = bin_counts(trajectory, learner.levels, axis_name)
        levels = self.algorithm.env.next_levels(learner.levels, metrics | counts, iteration)
        # A curriculum whose metric is non-finite keeps its level.
        levels = {name: jnp.where(jnp.isfinite(x), x, learner.levels[name]) for name, x in levels.items()}
        metrics |= level_metrics(learner.levels)
        metrics |= device_metrics(trajectory, axis_name)
        return dataclasses.replace(learned, iteration=iteration, levels=levels), metrics


def _step_keys(learner: LearnerState) -> Key[Array, " 2"]:
    """The keys of this iteration's rollout and update."""
    return jax.random.split(jax.random.fold_in(learner.key, learner.iteration))
