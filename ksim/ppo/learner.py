"""PPO as a learner: the order of one iteration."""

import dataclasses
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ksim.learn.collect import Collected, collect_rollout
from ksim.learn.finite import BAD_UPDATES, Optimized, updated_normalizer
from ksim.learn.learner import (
    AbstractLearner,
    Figures,
    MemoryUse,
    initial_learner_state,
    normalized_policy,
    static_leaves,
)
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.parallel.collectives import mean_across_devices, moments_across_devices
from ksim.ppo.advantages import generalized_advantages, normalize_advantages
from ksim.ppo.gradient_sync import GradientSync, Outcome
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.ppo.losses import Minibatch, Normalize, ppo_loss
from ksim.ppo.minibatches import stratified_minibatches
from ksim.ppo.update import adapt_learning_rate, update
from ksim.types import EnvBatch, LearnerState, Metrics, TrainState, Trajectory

PPOLoss = Callable[[AbstractActorCritic, Minibatch, PPOHyperparameters], tuple[Float[Array, ""], Metrics]]
"""`(network, minibatch, hyper) -> (loss, metrics)`; the metrics are scalars and include `policy/kl`."""

Alongside = Callable[[Trajectory, Normalize], PyTree]
"""Computes additional inputs of a loss from a rollout: arrays with leading axes env, time."""


def nothing_alongside(trajectory: Trajectory, normalize: Normalize) -> None:
    """The `Alongside` of `ppo_loss`, which needs no additional inputs."""


PLOTS = {
    "standard deviation of the policy": "policy/std",
    "fraction of clipped ratios": "policy/clip_fraction",
    "explained variance of the returns": "rollout/explained_variance",
}
"""Panels of the learning curves, by their titles."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PPO(AbstractLearner):
    """Proximal policy optimization, Schulman et al. 2017 (arXiv:1707.06347).

    Attributes:
        optimizer: Gradient transformation, with an injected `learning_rate`.
        loss: The loss of a minibatch.
        alongside: Computes that loss's additional inputs.
        start: Returns entries of the start table, by name.
        line: Additional metrics on the line of each iteration, by label.
        plots: Metrics plotted with the learning curves, by the panel's title.
    """

    optimizer: optax.GradientTransformation
    hyper: PPOHyperparameters
    loss: PPOLoss = ppo_loss
    alongside: Alongside = nothing_alongside
    start: Callable[[], Mapping[str, str]] = dict
    line: Mapping[str, str] = dataclasses.field(default_factory=dict)
    plots: Mapping[str, str] = dataclasses.field(default_factory=lambda: PLOTS)

    def init(self, key: PRNGKeyArray) -> LearnerState:
        parts = (self.network, self.obs_sizes, self.optimizer, key, self.env.initial_levels())
        return initial_learner_state(*parts, normalize_values=self.hyper.normalize_values)

    def collect(self, state: TrainState, key: PRNGKeyArray) -> tuple[Collected, EnvBatch]:
        return collect_rollout(self.env, self.rollout, self.policy(state.learner), state, key)

    def policy(self, learner: LearnerState) -> NormalizedActorCritic:
        return normalized_policy(self.network, learner)

    def figures(self) -> Figures:
        order = MemoryUse(option="num_passes", bytes_per_env=4, purpose="the order of the minibatches")
        return Figures(
            hyper=self.hyper,
            start=self.start(),
            line=self.line,
            memory=(order,),
            syncs_per_iteration=self.hyper.syncs_per_iteration,
            plots=self.plots,
        )

    def learn(
        self, learner: LearnerState, collected: Collected, key: PRNGKeyArray, is_usable: Bool[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        """Makes all passes over a rollout, then updates the learning rate and the statistics for the next one."""
        hyper, trajectory = self.hyper, collected.trajectory
        advantage_et = self._advantages(trajectory)
        normalizer = self._with_targets(learner.normalizer, trajectory.value + advantage_et, is_usable)
        rollout, residual_variance = self._prepare(learner.normalizer, normalizer, collected, advantage_et)
        env_index_mb = stratified_minibatches(
            key,
            trajectory.reward.shape[0],
            num_batches=hyper.num_batches,
            num_passes=hyper.num_passes,
            axis_name=self.axis_name,
        )
        updated, outcome = update(
            Optimized.of(learner),
            rollout,
            env_index_mb,
            loss=self._loss,
            optimizer=self.optimizer,
            sync=self._sync(),
            is_usable=is_usable,
        )
        learning_rate = optax.tree.get(updated.opt_state, "learning_rate")
        metrics = self._metrics(outcome) | {"policy/learning_rate": learning_rate}
        _, target_variance = moments_across_devices(rollout.value_target, self.axis_name)
        metrics["rollout/explained_variance"] = 1 - residual_variance / (target_variance + 1e-8)
        # NaN keeps the rate: skipped updates make the KL divergence small, which would raise the rate.
        kl = jnp.where(metrics[BAD_UPDATES] > 0, jnp.nan, metrics["policy/kl_last_pass"])
        adapted = adapt_learning_rate(learning_rate, kl, hyper)
        updated = updated._replace(opt_state=optax.tree.set(updated.opt_state, learning_rate=adapted))
        if hyper.normalize_observations:
            normalizer = updated_normalizer(normalizer, trajectory.obs, is_usable, self.axis_name)
        return dataclasses.replace(updated.put_into(learner), normalizer=normalizer), metrics

    def _advantages(self, trajectory: Trajectory) -> Float[Array, "e t"]:
        return generalized_advantages(
            trajectory.reward,
            trajectory.value,
            trajectory.next_value,
            trajectory.terminated,
            trajectory.done,
            gamma=self.hyper.gamma,
            gae_lambda=self.hyper.gae_lambda,
        )

    def _with_targets(
        self, normalizer: ObservationNormalizer, target_et: Float[Array, "e t"], is_usable: Bool[Array, ""]
    ) -> ObservationNormalizer:
        """Statistics with these value targets included, so that even the first targets are learned normalised."""
        if normalizer.values is None:
            return normalizer
        values = updated_normalizer(normalizer.values, {"value": target_et}, is_usable, self.axis_name)
        return dataclasses.replace(normalizer, values=values)

    def _prepare(
        self,
        before: ObservationNormalizer,
        normalizer: ObservationNormalizer,
        collected: Collected,
        advantage_et: Float[Array, "e t"],
    ) -> tuple[Minibatch, Float[Array, ""]]:
        """The whole rollout as input of the loss, and the variance of value targets that values do not explain.

        Args:
            before: The statistics with which the rollout was collected.
            normalizer: The statistics with which it is learned.
        """
        trajectory = collected.trajectory
        value_et, target_et = trajectory.value, trajectory.value + advantage_et
        if before.values is not None and normalizer.values is not None:
            # Clipping compares with the network's output at the rollout, so invert by the statistics of that time.
            value_et, target_et = before.values.outputs(value_et), normalizer.values.normalize(target_et)
        normalized_et, residual_variance = normalize_advantages(advantage_et, self.axis_name)
        if normalizer.values is not None:
            residual_variance /= jnp.square(normalizer.values.scale)
        rollout = Minibatch(
            obs=normalizer(trajectory.obs),
            carry=collected.model_carry,
            done=trajectory.done,
            action=trajectory.action,
            log_prob=trajectory.log_prob,
            value=value_et,
            advantage=normalized_et,
            value_target=target_et,
            alongside=self.alongside(trajectory, normalizer),
        )
        return rollout, residual_variance

    def _loss(self, params: PyTree, minibatch: Minibatch) -> tuple[Float[Array, ""], Metrics]:
        return self.loss(eqx.combine(params, static_leaves(self.network)), minibatch, self.hyper)

    def _sync(self) -> GradientSync:
        hyper = self.hyper
        return GradientSync(
            average=self.sync_gradients,
            axis_name=self.axis_name,
            period=hyper.grad_sync_period,
            mode=hyper.grad_sync_mode,
        )

    def _metrics(self, outcome: Outcome) -> Metrics:
        """Metrics of an update over all minibatches and devices."""
        metrics_m, num_skipped = outcome
        metrics: Metrics = jax.tree.map(jnp.mean, metrics_m)
        metrics[BAD_UPDATES] = num_skipped.astype(jnp.float32)
        metrics["policy/kl_last_pass"] = jnp.mean(metrics_m["policy/kl"][-self.hyper.num_batches :])
        return mean_across_devices(metrics, self.axis_name)
