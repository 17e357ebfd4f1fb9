"""Values that are normalised by running statistics of their targets."""

import dataclasses
import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.learning_task import ScaledRewards
from ksim.learn.learner import RolloutBatch
from ksim.nn import MlpActorCritic, NormalizedActorCritic, ObservationNormalizer
from ksim.nn.normalizer import ValueNormalizer
from ksim.ppo import ppo
from ksim.ppo.losses import Minibatch, value_loss
from ksim.ppo.ppo import PPO
from ksim.types import Trajectory
from tests.support.tasks import point_mass_task, train_iterations


@functools.cache
def scaled_task(scale):
    """The trained point mass whose rewards are multiplied, and the metrics of its iterations."""
    task = point_mass_task(num_devices=1, normalize_values=True)
    task.environment = ScaledRewards(task.environment, scale)
    return train_iterations(task, 3)


def test_values_go_back_and_forth_between_the_units_of_rewards_and_of_the_network():
    targets = jax.random.normal(jax.random.key(0), (4, 50)) * 30 + 200
    normalizer = ValueNormalizer.init()
    np.testing.assert_array_equal(normalizer.normalize(targets), targets)
    # Next to 0, but not so that the network's outputs are lost.
    np.testing.assert_allclose(normalizer.denormalize(targets), 0, atol=1e-15)
    np.testing.assert_array_equal(normalizer.outputs(normalizer.denormalize(targets)), targets)
    for rows in (targets[:1], targets[1:]):
        normalizer = normalizer.update({"value": rows}, None)
    normalized = normalizer.normalize(targets)
    np.testing.assert_allclose([normalized.mean(), normalized.std()], [0, 1], atol=1e-5)
    np.testing.assert_allclose(normalizer.denormalize(normalized), targets, rtol=1e-5)
    np.testing.assert_allclose(normalizer.outputs(targets), normalized, rtol=1e-5)


class Prepared(NamedTuple):
    """A rollout with random advantages of variance 1 as input of the loss, and what that was made from."""

    batch: Minibatch
    residual_variance: jax.Array
    outputs_et: jax.Array
    value_et: jax.Array
    advantage_et: jax.Array
    scale: jax.Array


@functools.cache
def prepared(was_seen: bool) -> Prepared:
    """With `was_seen` after targets with a standard deviation of 50, otherwise as the first rollout."""
    task = point_mass_task(num_devices=1, normalize_values=True, value_clip=0.2)
    learner, network = task.initial_learner()
    ppo = task.get_learner(network, None)
    assert isinstance(ppo, PPO)
    before, key = learner.normalizer, jax.random.key(0)
    if was_seen:
        values = before.values.update({"value": 50 * jax.random.normal(key, (4, 9))}, None)
        before = dataclasses.replace(before, values=values)
    obs_et = {"actor": jax.random.normal(key, (4, 8, task.obs_sizes["actor"]))}
    say = lambda model: jax.vmap(jax.vmap(lambda obs: model(obs, None)[0].value))(obs_et)
    value_et, advantage_et = say(NormalizedActorCritic(network, before)), 7 + jax.random.normal(key, (4, 8))
    after = ppo._with_targets(before, value_et + advantage_et, jnp.bool_(True))
    blank = jnp.zeros((4, 8))
    trajectory = Trajectory(
        obs=obs_et, action=blank[..., None], log_prob=blank, value=value_et, next_value=value_et, reward=blank,
        terminated=blank > 0, done=blank > 0, metrics={},
    )  # fmt: skip
    collected = RolloutBatch(trajectory, None, blank, blank.astype(int))
    batch, residual_variance = ppo._prepare(before, after, collected, advantage_et)
    return Prepared(batch, residual_variance, say(network), value_et, advantage_et, after.values.scale)


@pytest.mark.long
@pytest.mark.parametrize("was_seen", [False, True])
def test_value_is_clipped_around_the_networks_output_when_statistics_change(was_seen):
    batch, residual_variance, outputs_et, value_et, advantage_et, _ = prepared(was_seen)
    np.testing.assert_allclose(batch.value, outputs_et, rtol=1e-5, atol=1e-5)
    # Before the first step the value is the old one: nothing is clipped, and every sample has its gradient.
    loss = lambda value_et, clip: value_loss(value_et, batch.value, batch.value_target, clip)
    plain, clipped = (jax.value_and_grad(loss)(batch.value, clip) for clip in (None, 0.2))
    chex.assert_trees_all_close(clipped, plain, rtol=1e-6)
    # Where the residuals are the advantages, the critic explains 1 - Var(advantage) / Var(target).
    unexplained = residual_variance / batch.value_target.var()
    np.testing.assert_allclose(unexplained, advantage_et.var() / (value_et + advantage_et).var(), atol=1e-4)


def test_advantages_that_are_small_among_all_returns_stay_small():
    first, later = prepared(was_seen=False), prepared(was_seen=True)
    np.testing.assert_allclose(first.batch.advantage.std(), 1, rtol=1e-4)
    # 1 is less than 0.03 of 40, the standard deviation with the new targets.
    expected = (later.advantage_et - later.advantage_et.mean()) / (0.03 * later.scale)
    np.testing.assert_allclose(later.batch.advantage, expected, rtol=1e-4, atol=1e-6)
    assert later.batch.advantage.std() < 0.95


def test_policy_behind_a_normalizer_of_values_says_them_in_the_units_of_rewards():
    network = MlpActorCritic({"actor": 3}, 2, actor_sizes=[4], critic_sizes=[4], key=jax.random.key(0))
    plain = ObservationNormalizer.init({"actor": 3})
    values = ValueNormalizer(jnp.float32(9), {"value": jnp.float32(100)}, {"value": jnp.float32(25)})
    obs = {"actor": jnp.ones(3)}
    (before, _), (after, _) = (
        NormalizedActorCritic(network, normalizer)(obs, None)
        for normalizer in (plain, dataclasses.replace(plain, values=values))
    )
    np.testing.assert_allclose(after.value, 100 + 5 * before.value, rtol=1e-6)
    chex.assert_trees_all_equal(after.distribution, before.distribution)


@pytest.mark.long
@pytest.mark.parametrize("scale", [0.1, 1e6])
def test_scale_of_rewards_changes_neither_the_loss_nor_the_policy(scale):
    (one, one_metrics), (other, other_metrics) = (scaled_task(x) for x in (1.0, scale))
    for a, b in zip(one_metrics, other_metrics, strict=True):
        assert b["rollout/reward"] == pytest.approx(scale * a["rollout/reward"], rel=1e-3)
        assert b["loss/value"] == pytest.approx(a["loss/value"], rel=0.01)
        assert b["loss/value"] < 2
    chex.assert_trees_all_close(other.learner.params, one.learner.params, atol=1e-3)
    assert one.learner.normalizer.values.count == 3 * 16 * 8
    values = [state.learner.normalizer.values for state in (one, other)]
    np.testing.assert_allclose(values[1].mean["value"], scale * values[0].mean["value"], rtol=0.01)
    np.testing.assert_allclose(values[1].variance["value"], scale**2 * values[0].variance["value"], rtol=0.01)


@pytest.mark.long
@pytest.mark.parametrize(("min_std", "factor"), [(0.0, 1.5), (100.0, 1.0)])
def test_rate_does_not_rise_where_advantages_are_not_magnified(min_std, factor, monkeypatch):
    monkeypatch.setattr(ppo, "MIN_ADVANTAGE_STD", min_std)
    task = point_mass_task(num_devices=1, normalize_values=True, desired_kl=10.0, learning_rate=1e-4)
    _, history = train_iterations(task, 2)
    np.testing.assert_allclose(history[1]["policy/learning_rate"], factor * history[0]["policy/learning_rate"])
