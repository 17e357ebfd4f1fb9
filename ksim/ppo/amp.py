"""Adversarial motion priors: PPO with a discriminator's reward for moving like a reference."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ksim.keys import DISCRIMINATOR
from ksim.learn.guards import BAD_UPDATES, UpdateState, all_finite, optimizer_step, updated_normalizer
from ksim.learn.learner import AbstractLearner, LearnerInfo, RolloutBatch
from ksim.nn.networks import DenseStack, orthogonal_linear
from ksim.nn.normalizer import ObservationNormalizer
from ksim.parallel.collectives import (
    all_across_devices,
    axis_size,
    device_index,
    gather_across_devices,
    global_env_index,
    mean_across_devices,
)
from ksim.ppo.ppo import PPO
from ksim.rollout.starts import env_keys
from ksim.rollout.unroll import finite_steps
from ksim.types import LearnerState, Metrics, Trajectory


class Discriminator(eqx.Module):
    """An MLP from the features of two consecutive states to a score: 1 for the reference, -1 for the policy."""

    stack: DenseStack
    score: eqx.nn.Linear

    def __init__(self, num_features: int, hidden_sizes: Sequence[int], *, key: PRNGKeyArray) -> None:
        """Initialises the network. `num_features` is the number of features of one state."""
        stack_key, score_key = jax.random.split(key)
        self.stack = DenseStack(2 * num_features, hidden_sizes, key=stack_key)
        self.score = orthogonal_linear([2 * num_features, *hidden_sizes][-1], 1, 1.0, key=score_key)

    def __call__(self, pair: Float[Array, " f2"]) -> Float[Array, ""]:
        """The score of a transition, given as the normalised features of a state and of its successor."""
        return self.score(self.stack(pair))[0]


def style_reward(score: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """Rewards from 0 to 1 for the scores of transitions, Peng et al. 2021 (arXiv:2104.02180), eq. 7."""
    return jnp.maximum(0.0, 1 - 0.25 * jnp.square(score - 1))


def discriminator_loss(
    discriminator: Discriminator, real_bf: Float[Array, "b f2"], fake_bf: Float[Array, "b f2"], gradient_penalty: float
) -> tuple[Float[Array, ""], Metrics]:
    """Least squares with a gradient penalty on real transitions, Peng et al. 2021 (arXiv:2104.02180), eqs. 6 and 8.

    Args:
        real_bf: Normalised transitions of the reference.
        fake_bf: Normalised transitions of the policy, from this and earlier iterations.
        gradient_penalty: Weight of the penalty.
    """
    chex.assert_equal_shape([real_bf, fake_bf])
    real_b, slope_bf = jax.vmap(jax.value_and_grad(discriminator))(real_bf)
    fake_b = jax.vmap(discriminator)(fake_bf)
    penalty = jnp.mean(jnp.sum(jnp.square(slope_bf), axis=-1))
    loss = jnp.mean(jnp.square(real_b - 1)) + jnp.mean(jnp.square(fake_b + 1)) + 0.5 * gradient_penalty * penalty
    return loss, {
        "loss/discriminator": loss,
        "style/gradient_penalty": penalty,
        "style/score_of_reference": jnp.mean(real_b),
        "style/score_of_policy": jnp.mean(fake_b),
    }


STYLE = "style"
"""Observation group of the discriminator."""
SAMPLES_PER_ENV = 4
"""Transitions of each env that go into the replay buffer with each iteration."""
PLOTS = {
    "style reward, at most 1": "style/reward",
    "score of the reference, 1 where it is told apart": "style/score_of_reference",
    "score of the policy, -1 where it is told apart": "style/score_of_policy",
}
"""Panels of the learning curves, by their titles."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AMPHyperparameters:
    """Hyperparameters of adversarial motion priors.

    Attributes:
        style_weight: Weight of the style reward, per control step.
        task_weight: Weight of the task's reward.
        gradient_penalty: Weight of the gradient penalty on real transitions.
        num_steps: Optimizer steps of the discriminator per iteration.
        batch_size: Real transitions per step over all devices; the number of fake ones is the same.
        replay_size: Capacity of the replay buffer, in transitions of the policy.
    """

    style_weight: float
    task_weight: float
    gradient_penalty: float
    num_steps: int
    batch_size: int
    replay_size: int


class StyleState(eqx.Module):
    """State of the discriminator's training, the same on every device.

    Attributes:
        discriminator: The discriminator. All its leaves are learned.
        num_bad: The discriminator's optimizer steps skipped in a row.
        normalizer: Statistics of the features of the policy's states.
        replay: Ring buffer of raw transitions of the policy.
        num_replayed: Transitions ever written to the ring, kept below twice its size.
    """

    discriminator: Discriminator
    opt_state: PyTree
    num_bad: Int[Array, "*d"]
    normalizer: ObservationNormalizer
    replay: Float[Array, "*d_n 2 f"]
    num_replayed: Int[Array, "*d"]


class AMPState(LearnerState):
    """The learner's state with the discriminator's state."""

    style: StyleState


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AMP(AbstractLearner):
    """Adversarial motion priors around PPO, Peng et al. 2021 (arXiv:2104.02180).

    Attributes:
        ppo: Learns from rollouts, with the task and style rewards combined.
        make_discriminator: Makes the discriminator from a key.
        optimizer: The discriminator's gradient transformation.
        reference: Returns the reference's raw transitions, (n, 2, f); called when learning is traced.
    """

    ppo: PPO
    hyper: AMPHyperparameters
    make_discriminator: Callable[[PRNGKeyArray], Discriminator]
    optimizer: optax.GradientTransformation
    reference: Callable[[], Float[Array, "n 2 f"]]

    def init(self, key: PRNGKeyArray) -> AMPState:
        num_features = self.obs_sizes[STYLE]
        discriminator: Any = self.make_discriminator(jax.random.fold_in(key, DISCRIMINATOR))
        style = StyleState(
            discriminator=discriminator,
            opt_state=self.optimizer.init(discriminator),
            num_bad=jnp.int32(0),
            normalizer=ObservationNormalizer.init({STYLE: num_features}),
            replay=jnp.zeros((self.hyper.replay_size, 2, num_features)),
            num_replayed=jnp.int32(0),
        )
        learner = self.ppo.init(key)
        return AMPState(**{x.name: getattr(learner, x.name) for x in dataclasses.fields(learner)}, style=style)

    def info(self) -> LearnerInfo:
        info = self.ppo.info()
        return dataclasses.replace(
            info,
            hyper=(info.hyper, self.hyper),
            syncs_per_iteration=info.syncs_per_iteration + self.hyper.num_steps,
            start={**info.start, "style": f"{len(self.reference())} transitions of the reference"},
            line={**info.line, "style": "style/reward"},
            plots={**info.plots, **PLOTS},
        )

    def learn(
        self, learner: LearnerState, collected: RolloutBatch, key: PRNGKeyArray, is_usable: Bool[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        """Computes rewards by the current discriminator, then updates the policy by PPO, then the discriminator."""
        assert isinstance(learner, AMPState)
        hyper, style, trajectory = self.hyper, learner.style, collected.trajectory
        reward_et = _style_rewards(style, trajectory)
        total_et = hyper.task_weight * trajectory.reward + hyper.style_weight * reward_et
        rewarded = dataclasses.replace(collected, trajectory=dataclasses.replace(trajectory, reward=total_et))
        learned, metrics = self.ppo.learn(learner, rewarded, key, is_usable)
        style_key = jax.random.fold_in(key, DISCRIMINATOR)
        style, style_metrics = self._learn_style(style, trajectory, style_key, is_usable)
        style_metrics["style/reward"] = mean_across_devices(jnp.mean(reward_et), self.axis_name)
        metrics[BAD_UPDATES] += style_metrics.pop(BAD_UPDATES)
        num_bad = jnp.maximum(learned.num_bad_updates, style.num_bad)
        return dataclasses.replace(learned, style=style, num_bad_updates=num_bad), metrics | style_metrics

    def _learn_style(
        self, style: StyleState, trajectory: Trajectory, key: PRNGKeyArray, is_usable: Bool[Array, ""]
    ) -> tuple[StyleState, Metrics]:
        """The discriminator after its steps of this iteration."""
        sample_key, batch_key = jax.random.split(key)
        features = {STYLE: trajectory.obs[STYLE]}
        normalizer = updated_normalizer(style.normalizer, features, is_usable, self.axis_name)
        new_n2f = self._sampled(trajectory, sample_key)
        replay, num_replayed = _put(style.replay, style.num_replayed, new_n2f, is_usable)
        style = dataclasses.replace(style, normalizer=normalizer, replay=replay, num_replayed=num_replayed)

        def step(before: UpdateState, step_key: PRNGKeyArray) -> tuple[UpdateState, tuple[Metrics, Array]]:
            real_bf, fake_bf = self._batch(style, new_n2f, step_key)
            loss = lambda discriminator: discriminator_loss(
                discriminator, real_bf, fake_bf, self.hyper.gradient_penalty
            )
            local_grads, metrics = jax.grad(loss, has_aux=True)(before.params)
            grads = self.sync_gradients(local_grads)
            is_finite = all_across_devices(all_finite(grads) & is_usable, self.axis_name)
            return optimizer_step(self.optimizer, before, grads, is_finite), (metrics, ~is_finite)

        start = UpdateState(style.discriminator, style.opt_state, style.num_bad)
        at, (metrics_s, is_skipped_s) = jax.lax.scan(step, start, jax.random.split(batch_key, self.hyper.num_steps))
        style = dataclasses.replace(style, discriminator=at.params, opt_state=at.opt_state, num_bad=at.num_bad)
        metrics = mean_across_devices(jax.tree.map(jnp.mean, metrics_s), self.axis_name)
        return style, metrics | {BAD_UPDATES: jnp.sum(is_skipped_s).astype(jnp.float32)}

    def _sampled(self, trajectory: Trajectory, key: PRNGKeyArray) -> Float[Array, "n 2 f"]:
        """Sampled transitions of all devices' envs, in the order of the global batch; the same on every device."""
        pair_et2f = _transitions(trajectory)
        key_e = env_keys(key, global_env_index(len(pair_et2f), self.axis_name))
        # A non-finite step reaches no state: drawn only if the env has no other step.
        logit_et = jnp.where(finite_steps(trajectory), 0.0, -jnp.inf)
        draw = lambda key, logit_t: jax.random.categorical(key, logit_t, shape=(SAMPLES_PER_ENV,))
        step_es = jax.vmap(draw)(key_e, logit_et)
        drawn_es2f = jax.vmap(lambda pair_t2f, step_s: pair_t2f[step_s])(pair_et2f, step_es)
        return gather_across_devices(drawn_es2f, self.axis_name).reshape(-1, *pair_et2f.shape[2:])

    def _batch(
        self, style: StyleState, new_n2f: Float[Array, "n 2 f"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "b f2"], Float[Array, "b f2"]]:
        """This device's normalised transitions of a step: real ones, and fake ones (new and replayed)."""
        real_key, new_key, old_key = jax.random.split(key, 3)
        size, reference_n2f = self.hyper.batch_size, self.reference()
        draw = lambda key, count: self._share(jax.random.randint(key, (size,), 0, count))
        real_b2f = reference_n2f[draw(real_key, len(reference_n2f))]
        new_b2f = new_n2f[draw(new_key, len(new_n2f))]
        old_b2f = style.replay[draw(old_key, jnp.clip(style.num_replayed, 1, len(style.replay)))]
        is_new_b = self._share(jnp.arange(size) % 2 == 0)
        fake_b2f = jnp.where(is_new_b[:, None, None], new_b2f, old_b2f)
        return _normalized(style, real_b2f), _normalized(style, fake_b2f)

    def _share(self, x_b: Array) -> Array:
        """This device's rows of a replicated batch."""
        size = len(x_b) // axis_size(self.axis_name)
        return jax.lax.dynamic_slice_in_dim(x_b, device_index(self.axis_name) * size, size)


def _transitions(trajectory: Trajectory) -> Float[Array, "e t 2 f"]:
    """The features before and after each step, including steps that end an episode."""
    return jnp.stack([trajectory.obs[STYLE], trajectory.reached[STYLE]], axis=2)


def _style_rewards(style: StyleState, trajectory: Trajectory) -> Float[Array, "e t"]:
    """The style reward of each step, including steps that end an episode; 0 for a non-finite step."""
    score_et = jax.vmap(jax.vmap(style.discriminator))(_normalized(style, _transitions(trajectory)))
    return jnp.where(finite_steps(trajectory), style_reward(score_et), 0.0)


def _normalized(style: StyleState, pair_b2f: Float[Array, "*b 2 f"]) -> Float[Array, "*b f2"]:
    normalized = style.normalizer({STYLE: pair_b2f})[STYLE]
    return normalized.reshape(*normalized.shape[:-2], -1)


def _put(
    replay_n2f: Float[Array, "n 2 f"], num_replayed: Int[Array, ""], new_m2f: Float[Array, "m 2 f"], is_usable: Array
) -> tuple[Float[Array, "n 2 f"], Int[Array, ""]]:
    """The ring with new transitions in place of its oldest, and the updated `num_replayed`."""
    size, num_new = len(replay_n2f), len(new_m2f)
    index_m = (num_replayed + jnp.arange(num_new)) % size
    # If the rollout is unusable, the index is past the end, where a write is dropped.
    replay_n2f = replay_n2f.at[jnp.where(is_usable, index_m, size)].set(new_m2f, mode="drop")
    # Kept below twice the size, which is enough for the ring: a full count would overflow 32 bits.
    total = num_replayed + jnp.where(is_usable, num_new, 0)
    return replay_n2f, jnp.where(total >= 2 * size, total - size, total)
