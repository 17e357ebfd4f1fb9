"""PPO as a learner, in the order of one iteration: advantages, minibatches, passes, learning rate, statistics."""

import dataclasses
from collections.abc import Callable, Mapping

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ksim.learn.guards import BAD_UPDATES, UpdateState, updated_normalizer
from ksim.learn.learner import (
    AbstractLearner,
    LearnerInfo,
    MemoryUse,
    RolloutBatch,
    initial_learner_state,
    static_leaves,
)
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.nn.normalizer import ObservationNormalizer
from ksim.parallel.collectives import mean_across_devices, moments_across_devices
from ksim.ppo.losses import (
    Minibatch,
    Normalize,
    PPOHyperparameters,
    generalized_advantages,
    normalize_advantages,
    ppo_loss,
)
from ksim.ppo.minibatches import GradientSync, Outcome, stratified_minibatches, take_rows, update
from ksim.types import LearnerState, Metrics, Trajectory

PPOLoss = Callable[[AbstractActorCritic, Minibatch, PPOHyperparameters], tuple[Float[Array, ""], Metrics]]
"""`(network, minibatch, hyper) -> (loss, metrics)`; the metrics are scalars and include `policy/kl`."""

LossInputs = Callable[[Trajectory, Normalize], PyTree]
"""Computes additional inputs of a loss from a rollout: arrays with leading axes env, time."""


MIN_ADVANTAGE_STD = 0.03
"""Least divisor of advantages, in standard deviations of all value targets so far, where values are normalised.

If a policy earns the maximum, or nothing is rewarded, advantages are noise. Magnified to a variance of 1,
they would move the policy away from its peak. Hafner et al. 2023 (arXiv:2301.04104) bound the divisor of returns for
the same reason.
"""

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
        loss_inputs: Computes additional inputs of the loss.
        start: Returns entries of the start table, by name.
        line: Additional metrics on the line of each iteration, by label.
        plots: Metrics plotted with the learning curves, by the panel's title.
    """

    optimizer: optax.GradientTransformation
    hyper: PPOHyperparameters
    loss: PPOLoss = ppo_loss
    loss_inputs: LossInputs = lambda *_: None
    start: Callable[[], Mapping[str, str]] = dict
    line: Mapping[str, str] = dataclasses.field(default_factory=dict)
    plots: Mapping[str, str] = dataclasses.field(default_factory=lambda: PLOTS)

    def init(self, key: PRNGKeyArray) -> LearnerState:
        parts = (self.network, self.obs_sizes, self.optimizer, key, self.env.initial_levels())
        return initial_learner_state(*parts, normalize_values=self.hyper.normalize_values)

    def learn(
        self, learner: LearnerState, collected: RolloutBatch, key: PRNGKeyArray, is_usable: Bool[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        """Makes all passes over a rollout, then updates the learning rate and the statistics of observations.

        The statistics of value targets, where there are any, include this rollout before the first pass.
        """
        hyper, trajectory, axis_name = self.hyper, collected.trajectory, self.axis_name
        advantage_et = generalized_advantages(
            trajectory.reward,
            trajectory.value,
            trajectory.next_value,
            trajectory.terminated,
            trajectory.done,
            gamma=hyper.gamma,
            gae_lambda=hyper.gae_lambda,
        )
        normalizer = self._with_targets(learner.normalizer, trajectory.value + advantage_et, is_usable)
        rollout, residual_variance = self._prepare(learner.normalizer, normalizer, collected, advantage_et)
        env_index_mb = stratified_minibatches(
            key,
            trajectory.reward.shape[0],
            num_batches=hyper.num_batches,
            num_passes=hyper.num_passes,
            axis_name=axis_name,
        )

        def loss(params: PyTree, batch: Minibatch) -> tuple[Array, Metrics]:
            return self.loss(eqx.combine(params, static_leaves(self.network)), batch, hyper)

        updated, outcome = update(
            UpdateState.of(learner),
            rollout,
            env_index_mb,
            loss=loss,
            optimizer=self.optimizer,
            sync=GradientSync.of(self.sync_gradients, axis_name, hyper),
            is_usable=is_usable,
        )
        learning_rate = optax.tree.get(updated.opt_state, "learning_rate")
        if hyper.minibatches_before_step < len(env_index_mb):
            kl_m = outcome.metrics["policy/kl"][hyper.minibatches_before_step :][-hyper.num_batches :]
        else:
            # The only optimizer step comes after the losses of all minibatches.
            kl_m = loss(updated.params, take_rows(rollout, env_index_mb[-1]))[1]["policy/kl"]
        metrics = self._metrics(outcome, kl_m) | {"policy/learning_rate": learning_rate}
        _, target_variance = moments_across_devices(rollout.value_target, axis_name)
        metrics["rollout/explained_variance"] = 1 - residual_variance / (target_variance + 1e-8)
        # NaN keeps the rate: skipped updates make the KL divergence small, which would raise the rate.
        kl = jnp.where(metrics[BAD_UPDATES] > 0, jnp.nan, metrics["policy/kl_last_pass"])
        adapted = adapt_learning_rate(learning_rate, kl, hyper)
        if normalizer.values is not None:
            # Advantages that are not magnified move the policy little, which would raise the rate.
            is_noise = residual_variance < MIN_ADVANTAGE_STD**2
            adapted = jnp.where(is_noise, jnp.minimum(adapted, learning_rate), adapted)
        updated = updated._replace(opt_state=optax.tree.set(updated.opt_state, learning_rate=adapted))
        if hyper.normalize_observations:
            normalizer = updated_normalizer(normalizer, trajectory.obs, is_usable, axis_name)
        return dataclasses.replace(updated.into(learner), normalizer=normalizer), metrics

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
        collected: RolloutBatch,
        advantage_et: Float[Array, "e t"],
    ) -> tuple[Minibatch, Float[Array, ""]]:
        """The whole rollout as input of the loss, and the variance of value targets that values do not explain.

        Args:
            before: The statistics with which the rollout was collected.
            normalizer: The statistics with which it is learned.
        """
        trajectory = collected.trajectory
        value_et, target_et, min_std = trajectory.value, trajectory.value + advantage_et, jnp.float32(0)
        if before.values is not None and normalizer.values is not None:
            # Clipping compares with the network's output at the rollout, so invert by the statistics of that time.
            value_et, target_et = before.values.outputs(value_et), normalizer.values.normalize(target_et)
            min_std = MIN_ADVANTAGE_STD * normalizer.values.scale
        normalized_et, residual_variance = normalize_advantages(advantage_et, self.axis_name, min_std=min_std)
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
            loss_inputs=self.loss_inputs(trajectory, normalizer),
        )
        return rollout, residual_variance

    def _metrics(self, outcome: Outcome, last_kl_m: Float[Array, "*m"]) -> Metrics:
        """Metrics of an update over all minibatches and devices. `last_kl_m` is the KL divergence at its end."""
        metrics: Metrics = jax.tree.map(jnp.mean, outcome.metrics)
        metrics[BAD_UPDATES] = outcome.num_skipped.astype(jnp.float32)
        metrics["policy/kl_last_pass"] = jnp.mean(last_kl_m)
        return mean_across_devices(metrics, self.axis_name)

    def info(self) -> LearnerInfo:
        order = MemoryUse(option="num_passes", bytes_per_env=4, purpose="the order of the minibatches")
        return LearnerInfo(
            hyper=self.hyper,
            start=self.start(),
            line=self.line,
            memory=(order,),
            syncs_per_iteration=self.hyper.syncs_per_iteration,
            plots=self.plots,
        )


def adapt_learning_rate(learning_rate: Array, kl: Array, hyper: PPOHyperparameters) -> Array:
    """The learning rate for the next iteration, from the KL divergence at the end of this one.

    Divided by 1.5 if the KL is above twice the desired KL, multiplied by 1.5 if it is below half of it. Schulman et
    al. 2017 (arXiv:1707.06347), section 4, adapt the weight of a KL penalty in this way. NaN changes nothing. The
    rate stays between `min_learning_rate` and `max_learning_rate`.
    """
    chex.assert_rank([learning_rate, kl], 0)
    if hyper.desired_kl is None:
        return learning_rate
    factor = jnp.where(kl > 2 * hyper.desired_kl, 1 / 1.5, jnp.where(kl < hyper.desired_kl / 2, 1.5, 1.0))
    return jnp.clip(learning_rate * factor, hyper.min_learning_rate, hyper.max_learning_rate)
