"""REPPO: policy gradients through a learned Q function, on the policy's own rollouts and within a trust region."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from ksim.learn.guards import BAD_UPDATES, UpdateState, updated_normalizer
from ksim.learn.learner import (
    AbstractLearner,
    LearnerInfo,
    MemoryUse,
    RolloutBatch,
    initial_learner_state,
    static_leaves,
)
from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput, critic_group
from ksim.nn.distributions import AbstractDistribution
from ksim.nn.networks import MIN_STD, GaussianHead
from ksim.nn.normalizer import ObservationNormalizer
from ksim.parallel.collectives import (
    axis_size,
    device_index,
    global_env_index,
    mean_across_devices,
    moments_across_devices,
)
from ksim.ppo.minibatches import GradientSync, MinibatchHyperparameters, stratified_minibatches, take_rows, update
from ksim.rollout.starts import env_keys
from ksim.types import LearnerState, Metrics, Observation

MAX_RETURN, NUM_BINS = 10.0, 151
"""Bins of returns, in standard deviations of the returns seen: from minus to plus `MAX_RETURN`."""
SMOOTHING = 0.75
"""Standard deviation of the Gaussian around a return, in widths of a bin (Farebrother et al. 2024)."""
INITIAL_ENTROPY_WEIGHT, INITIAL_KL_WEIGHT = 0.1, 0.01
"""Initial weights of the entropy and of the KL divergence."""


class NormedStack(eqx.Module):
    """Hidden layers: linear, layer normalisation (Ba et al. 2016, arXiv:1607.06450), SiLU."""

    linear: tuple[eqx.nn.Linear, ...]
    norm: tuple[eqx.nn.LayerNorm, ...]

    def __init__(self, in_size: int, hidden_sizes: Sequence[int], *, key: PRNGKeyArray) -> None:
        sizes = [in_size, *hidden_sizes]
        keys = jax.random.split(key, max(len(hidden_sizes), 1))
        self.linear = tuple(eqx.nn.Linear(m, n, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=False))
        self.norm = tuple(eqx.nn.LayerNorm(n) for n in hidden_sizes)

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " m"]:
        for linear, norm in zip(self.linear, self.norm, strict=True):
            x = jax.nn.silu(norm(linear(x)))
        return x


class CategoricalQ(eqx.Module):
    """The return of an action as a distribution over bins, and a prediction of its own features a step later.

    Learned as a classification: Farebrother et al. 2024, "Stop regressing" (arXiv:2403.03950), section 3.1.
    """

    encoder: NormedStack
    logits: eqx.nn.Linear
    predictor: NormedStack
    prediction: eqx.nn.Linear

    def __init__(self, obs_size: int, action_size: int, hidden_sizes: Sequence[int], *, key: PRNGKeyArray) -> None:
        keys = jax.random.split(key, 4)
        num_in = obs_size + action_size
        num_features = [num_in, *hidden_sizes][-1]
        self.encoder = NormedStack(num_in, hidden_sizes, key=keys[0])
        self.logits = eqx.nn.Linear(num_features, NUM_BINS, key=keys[1])
        self.predictor = NormedStack(num_features, [num_features], key=keys[2])
        self.prediction = eqx.nn.Linear(num_features, num_features, key=keys[3])

    def features(self, obs: Float[Array, " n"], action: Float[Array, " a"]) -> Float[Array, " f"]:
        """The last hidden layer for a normalised observation and an action."""
        return self.encoder(jnp.concatenate([obs, action]))

    def next_features(self, features: Float[Array, " f"]) -> Float[Array, " f"]:
        """The features of the next step, predicted from those of this one."""
        return self.prediction(self.predictor(features))

    def __call__(self, obs: Float[Array, " n"], action: Float[Array, " a"]) -> Float[Array, ""]:
        """The expected return, normalised."""
        return jnp.sum(jax.nn.softmax(self.logits(self.features(obs, action))) * bin_centers())


def bin_edges() -> Float[Array, " n1"]:
    """The edges of the bins, normalised."""
    return jnp.linspace(-MAX_RETURN, MAX_RETURN, NUM_BINS + 1)


def bin_centers() -> Float[Array, " n"]:
    """The centers of the bins, normalised."""
    edges = bin_edges()
    return (edges[1:] + edges[:-1]) / 2


def bin_probabilities(value: Float[Array, ""]) -> Float[Array, " n"]:
    """The share of each bin in a Gaussian around a normalised value: HL-Gauss, arXiv:2403.03950, eq. 4."""
    edges, width = bin_edges(), 2 * MAX_RETURN / NUM_BINS
    bound = MAX_RETURN - width / 2
    below = jax.scipy.special.erf((edges - jnp.clip(value, -bound, bound)) / (math.sqrt(2) * SMOOTHING * width))
    return jnp.diff(below) / (below[-1] - below[0])


class ReppoNetwork(AbstractActorCritic):
    """A policy, a Q function, and the weights of entropy and KL divergence, all learned together.

    Attributes:
        log_entropy_weight: Logarithm of the weight of the entropy, in standard deviations of returns per nat in each
            step of the horizon 1 / (1 - gamma).
        log_kl_weight: Logarithm of the weight of the KL divergence, in standard deviations of returns per nat.
    """

    actor: NormedStack
    head: GaussianHead
    q: CategoricalQ
    log_entropy_weight: Float[Array, ""]
    log_kl_weight: Float[Array, ""]

    def __init__(
        self,
        obs_sizes: dict[str, int],
        action_size: int,
        *,
        actor_sizes: Sequence[int] = (256, 256),
        critic_sizes: Sequence[int] = (256, 256),
        init_std: float = 1.0,
        min_std: float = MIN_STD,
        key: PRNGKeyArray,
    ) -> None:
        """Initialises the networks.

        Args:
            obs_sizes: Length of each observation group.
            actor_sizes: Widths of the policy's hidden layers.
            critic_sizes: Widths of the Q function's hidden layers.
            init_std: Initial standard deviation before the hyperbolic tangent; it is a function of the observation.
            min_std: Lower bound of it.
            key: Seeds the weights.
        """
        actor_key, head_key, q_key = jax.random.split(key, 3)
        actor_in, critic_in = obs_sizes["actor"], obs_sizes.get("critic", obs_sizes["actor"])
        self.actor = NormedStack(actor_in, actor_sizes, key=actor_key)
        self.head = GaussianHead(
            [actor_in, *actor_sizes][-1],
            action_size,
            std="learned",
            init_std=init_std,
            min_std=min_std,
            squash=True,
            key=head_key,
        )
        self.q = CategoricalQ(critic_in, action_size, critic_sizes, key=q_key)
        self.log_entropy_weight = jnp.full((), math.log(INITIAL_ENTROPY_WEIGHT))
        self.log_kl_weight = jnp.full((), math.log(INITIAL_KL_WEIGHT))

    def initial_carry(self) -> None:
        return None

    def policy(self, obs: Observation) -> AbstractDistribution:
        """The distribution of the action."""
        return self.head(self.actor(obs["actor"]))

    def entropy_weight_per_step(self, gamma: float) -> Float[Array, ""]:
        """Weight of the entropy of one step, in standard deviations of returns per nat."""
        return (1 - gamma) * jnp.exp(self.log_entropy_weight)

    def __call__(self, obs: Observation, carry: None) -> tuple[ActorCriticOutput, None]:
        distribution = self.policy(obs)
        return ActorCriticOutput(distribution, self.q(obs[critic_group(obs)], distribution.mode())), None


@dataclasses.dataclass(frozen=True, kw_only=True)
class REPPOHyperparameters(MinibatchHyperparameters):
    """Hyperparameters of REPPO: the options of the same names."""

    kl_bound: float
    entropy_target: float
    latent_loss_coef: float
    rollout_length: int


def soft_returns(
    reward_et: Float[Array, "e t"],
    next_value_et: Float[Array, "e t"],
    log_prob_et: Float[Array, "e t"],
    terminated_et: Bool[Array, "e t"],
    done_et: Bool[Array, "e t"],
    *,
    gamma: float,
    gae_lambda: float,
    entropy_weight: Float[Array, ""],
) -> Float[Array, "e t"]:
    """Lambda-returns of the actions taken, with the entropy of later actions: Voelcker et al. 2025, section 3.2.

    Termination removes the bootstrap; truncation keeps it. Both cut the sum.

    Args:
        next_value_et: Value of the state reached, with the entropy of the action there, in units of rewards.
        log_prob_et: Log-density of the actions taken.
        gamma: Discount per step.
        gae_lambda: Weight of the longer return in the mean of a step's and a longer return.
        entropy_weight: Reward per nat of entropy.
    """
    chex.assert_equal_shape([reward_et, next_value_et, log_prob_et, terminated_et, done_et])
    bootstrap_et = jnp.where(terminated_et, 0.0, next_value_et)
    later_log_prob_et = jnp.roll(log_prob_et, -1, axis=1)
    is_cut_et = done_et.at[:, -1].set(True)

    def step(later_e: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        reward_e, bootstrap_e, log_prob_e, is_cut_e = inputs
        longer_e = jnp.where(is_cut_e, bootstrap_e, later_e - entropy_weight * log_prob_e)
        return_e = reward_e + gamma * ((1 - gae_lambda) * bootstrap_e + gae_lambda * longer_e)
        return return_e, return_e

    time_major = jax.tree.map(jnp.transpose, (reward_et, bootstrap_et, later_log_prob_et, is_cut_et))
    _, return_te = jax.lax.scan(step, jnp.zeros_like(reward_et[:, 0]), time_major, reverse=True)
    return return_te.T


class Transitions(eqx.Module):
    """Inputs of the loss, one row per step of an env.

    Attributes:
        obs, reached: Normalised observations of the state and of the one reached.
        action, next_action: The action taken, and one of the acting policy in the state reached.
        mean, std: Of the acting policy, before the hyperbolic tangent.
        target: The normalised return that the Q function learns.
        key: Seeds the action that the policy improves; None until a minibatch is made.
    """

    obs: Observation
    reached: Observation
    action: Float[Array, "b a"]
    next_action: Float[Array, "b a"]
    mean: Float[Array, "b a"]
    std: Float[Array, "b a"]
    target: Float[Array, " b"]
    key: Key[Array, " b"] | None = None


def kl_divergence(
    old_mean: Float[Array, "*b a"], old_std: Float[Array, "*b a"], mean: Float[Array, "*b a"], std: Float[Array, "*b a"]
) -> Float[Array, "*b"]:
    """KL divergence of a new Gaussian from an old one, the same for their hyperbolic tangents."""
    ratio = jnp.square(old_std / std)
    gap = jnp.square((old_mean - mean) / std)
    return 0.5 * jnp.sum(ratio + gap - 1 - jnp.log(ratio), axis=-1)


def reppo_loss(
    network: ReppoNetwork, batch: Transitions, hyper: REPPOHyperparameters
) -> tuple[Float[Array, ""], Metrics]:
    """The loss of a minibatch, Voelcker et al. 2025 (arXiv:2507.11019), and its components as metrics.

    - The Q function learns its targets as classes, and to predict its own features a step later.
    - The policy improves along the gradient of Q and of its entropy in the states in which it is within `kl_bound` of
      the acting policy. In the others it returns towards it.
    - The weight of the entropy rises while the entropy is below `entropy_target` per component of an action, that of
      the KL divergence while it is above `kl_bound`.
    """
    chex.assert_equal_shape([batch.mean, batch.std, batch.action, batch.next_action])
    seen, seen_next = batch.obs[critic_group(batch.obs)], batch.reached[critic_group(batch.obs)]
    features = jax.vmap(network.q.features)(seen, batch.action)
    log_share = jax.nn.log_softmax(jax.vmap(network.q.logits)(features))
    q_loss = -jnp.mean(jnp.sum(jax.vmap(bin_probabilities)(batch.target) * log_share, axis=-1))
    next_features = jax.lax.stop_gradient(jax.vmap(network.q.features)(seen_next, batch.next_action))
    latent_loss = jnp.mean(jnp.square(jax.vmap(network.q.next_features)(features) - next_features))

    fixed_q = jax.lax.stop_gradient(network.q)
    distribution = jax.vmap(network.policy)(batch.obs)
    noise = jax.vmap(lambda key: jax.random.normal(key, batch.mean.shape[1:]))(batch.key)
    sample = distribution.mean + distribution.std * noise
    value = jax.vmap(fixed_q)(seen, distribution.action(sample))
    log_prob = distribution.log_prob(sample)
    kl = kl_divergence(batch.mean, batch.std, distribution.mean, distribution.std)
    entropy_weight, kl_weight = (
        jax.lax.stop_gradient(jnp.exp(x)) for x in (network.log_entropy_weight, network.log_kl_weight)
    )
    is_near = kl < hyper.kl_bound
    weight_per_step = jax.lax.stop_gradient(network.entropy_weight_per_step(hyper.gamma))
    policy_loss = jnp.mean(jnp.where(is_near, weight_per_step * log_prob - value, kl_weight * kl))

    entropy, mean_kl = -jnp.mean(log_prob), jnp.mean(kl)
    num_components = batch.action.shape[-1]
    excess = jax.lax.stop_gradient(entropy - hyper.entropy_target * num_components)
    slack = jax.lax.stop_gradient(hyper.kl_bound - mean_kl)
    weight_loss = jnp.exp(network.log_entropy_weight) * excess + jnp.exp(network.log_kl_weight) * slack
    total = q_loss + hyper.latent_loss_coef * latent_loss + policy_loss + weight_loss
    return total, {
        "loss/q": q_loss,
        "loss/latent": latent_loss,
        "loss/policy": policy_loss,
        "loss/entropy": entropy,
        "loss/total": total,
        "policy/kl": mean_kl,
        "policy/near_fraction": jnp.mean(is_near),
        "policy/std": jnp.mean(distribution.std),
        "policy/entropy_weight": entropy_weight,
        "policy/kl_weight": kl_weight,
    }


LINE = {"near": "policy/near_fraction"}
"""Additional metrics on the line of each iteration, by label."""
PLOTS = {
    "standard deviation of the policy": "policy/std",
    "fraction of states within the trust region": "policy/near_fraction",
    "explained variance of the returns": "rollout/explained_variance",
}
"""Panels of the learning curves, by their titles."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class REPPO(AbstractLearner):
    """Relative entropy pathwise policy optimization, Voelcker et al. 2025 (arXiv:2507.11019).

    It differs from the paper in four points. Returns are normalised by their running statistics, so that neither the
    bins nor the weights depend on the scale of rewards. The entropy weight of a step is (1 - gamma) times the
    learned one. The KL divergence is exact, not sampled. Q function, policy and weights take one step together with
    each minibatch.

    Attributes:
        optimizer: Gradient transformation, with an injected `learning_rate`.
    """

    optimizer: optax.GradientTransformation
    hyper: REPPOHyperparameters

    def init(self, key: PRNGKeyArray) -> LearnerState:
        parts = (self.network, self.obs_sizes, self.optimizer, key, self.env.initial_levels())
        return initial_learner_state(*parts, normalize_values=True)

    def learn(
        self, learner: LearnerState, collected: RolloutBatch, key: PRNGKeyArray, is_usable: Bool[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        """Computes the returns of a rollout by the acting policy and its Q function, then makes all passes over it."""
        hyper, axis_name, trajectory = self.hyper, self.axis_name, collected.trajectory
        order_key, draw_key, noise_key = jax.random.split(key, 3)
        rows, normalizer, residual_variance = self._transitions(learner, collected, draw_key, is_usable)
        num_envs, num_steps = trajectory.reward.shape
        # Steps of all envs are in each minibatch: a stratum is made of consecutive steps of one env.
        index_mb = stratified_minibatches(
            order_key,
            num_envs * num_steps,
            num_batches=hyper.num_batches,
            num_passes=hyper.num_passes,
            axis_name=axis_name,
        )
        pass_m = jnp.arange(len(index_mb)) // hyper.num_batches
        num_rows = num_envs * num_steps
        total, first = axis_size(axis_name) * num_rows, device_index(axis_name) * num_rows

        def minibatch(rows: Transitions, index_b: Int[Array, " b"]) -> Transitions:
            row_b, pass_b = index_b % num_rows, index_b // num_rows
            key_b = env_keys(noise_key, total * pass_b + first + row_b)
            return dataclasses.replace(take_rows(rows, row_b), key=key_b)

        updated, (metrics_m, num_skipped) = update(
            UpdateState.of(learner),
            rows,
            index_mb + num_rows * pass_m[:, None],
            loss=lambda params, batch: reppo_loss(eqx.combine(params, static_leaves(self.network)), batch, hyper),
            optimizer=self.optimizer,
            sync=GradientSync.of(self.sync_gradients, axis_name, hyper),
            is_usable=is_usable,
            gather=minibatch,
        )
        metrics: Metrics = jax.tree.map(jnp.mean, metrics_m) | {BAD_UPDATES: num_skipped.astype(jnp.float32)}
        metrics = mean_across_devices(metrics, axis_name)
        metrics["policy/learning_rate"] = optax.tree.get(updated.opt_state, "learning_rate")
        _, target_variance = moments_across_devices(rows.target, axis_name)
        metrics["rollout/explained_variance"] = 1 - residual_variance / (target_variance + 1e-8)
        if hyper.normalize_observations:
            normalizer = updated_normalizer(normalizer, trajectory.obs, is_usable, axis_name)
        return dataclasses.replace(updated.into(learner), normalizer=normalizer), metrics

    def _transitions(
        self, learner: LearnerState, collected: RolloutBatch, key: PRNGKeyArray, is_usable: Bool[Array, ""]
    ) -> tuple[Transitions, ObservationNormalizer, Float[Array, ""]]:
        """The rows of a rollout, statistics that include its returns, and the variance that Q does not explain."""
        hyper, axis_name, trajectory, before = self.hyper, self.axis_name, collected.trajectory, learner.normalizer
        assert before.values is not None
        network: ReppoNetwork = eqx.combine(learner.params, static_leaves(self.network))
        obs, reached = before(trajectory.obs), before(trajectory.reached)
        over_rows = lambda function: jax.vmap(jax.vmap(function))
        acting, following = over_rows(network.policy)(obs), over_rows(network.policy)(reached)
        key_e = env_keys(key, global_env_index(len(trajectory.reward), axis_name))
        noise_eta = jax.vmap(lambda key: jax.random.normal(key, following.mean.shape[1:]))(key_e)
        sample = following.mean + following.std * noise_eta
        group, next_action = critic_group(obs), following.action(sample)
        next_q = over_rows(network.q)(reached[group], next_action)
        action = acting.action(trajectory.action)
        q = over_rows(network.q)(obs[group], action)
        # In units of rewards; next to 0 before any return was seen.
        per_unit = before.values.denormalize(jnp.float32(1)) - before.values.denormalize(jnp.float32(0))
        entropy_weight = per_unit * network.entropy_weight_per_step(hyper.gamma)
        return_et = soft_returns(
            trajectory.reward,
            before.values.denormalize(next_q) - entropy_weight * following.log_prob(sample),
            trajectory.log_prob,
            trajectory.terminated,
            trajectory.done,
            gamma=hyper.gamma,
            gae_lambda=hyper.gae_lambda,
            entropy_weight=entropy_weight,
        )
        values = updated_normalizer(before.values, {"value": return_et}, is_usable, axis_name)
        target_et = values.normalize(return_et)
        _, residual_variance = moments_across_devices(
            target_et - values.normalize(before.values.denormalize(q)), axis_name
        )
        steps = (obs, reached, action, next_action, acting.mean, acting.std, target_et)
        rows = Transitions(*jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps))
        return rows, dataclasses.replace(before, values=values), residual_variance

    def info(self) -> LearnerInfo:
        steps = self.hyper.rollout_length
        order = MemoryUse(option="num_passes", bytes_per_env=4 * steps, purpose="the order of the minibatches")
        return LearnerInfo(
            hyper=self.hyper,
            line=LINE,
            plots=PLOTS,
            memory=(order,),
            syncs_per_iteration=self.hyper.syncs_per_iteration,
        )


def clipped_by_part(max_grad_norm: float, learning_rate: float | Float[Array, ""]) -> optax.GradientTransformation:
    """Adam after clipping the gradients of policy and Q function apart, each by its global norm."""
    clip = optax.clip_by_global_norm(max_grad_norm)

    def label(path: tuple[Any, ...], _: Any) -> str:
        return {"actor": "policy", "head": "policy", "q": "q"}.get(path[0].name, "weights")

    clip_parts = optax.partition(
        {"policy": clip, "q": clip, "weights": optax.identity()},
        lambda params: jax.tree_util.tree_map_with_path(label, params),
    )
    return optax.chain(clip_parts, optax.adam(learning_rate))
