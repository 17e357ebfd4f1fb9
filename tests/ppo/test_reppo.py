import dataclasses
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ksim.nn.distributions import Gaussian
from ksim.ppo.reppo import (
    MAX_RETURN,
    NUM_BINS,
    REPPOHyperparameters,
    ReppoNetwork,
    Transitions,
    bin_centers,
    bin_probabilities,
    clipped_by_part,
    kl_divergence,
    reppo_loss,
    soft_returns,
)

GAMMA, LAMBDA, WEIGHT = 0.9, 0.7, 0.3
HYPER = REPPOHyperparameters(
    gamma=0.99,
    gae_lambda=0.95,
    kl_bound=0.1,
    entropy_target=-0.5,
    latent_loss_coef=1.0,
    num_batches=2,
    num_passes=2,
    normalize_observations=True,
    grad_sync_period=1,
    grad_sync_mode="accumulate",
    rollout_length=4,
)
NUM_ROWS, NUM_OBS, NUM_ACTIONS = 64, 3, 2


def brute_force(reward, next_value, log_prob, terminated, done):
    """The mean of the returns of 1, 2, ... steps with the weights of lambda, up to the end of the episode."""
    num_steps = len(reward)
    result = np.zeros(num_steps)
    for t in range(num_steps):
        total, weight, so_far = 0.0, 1.0, 0.0
        for k in range(t, num_steps):
            entropy = 0.0 if k == t else -WEIGHT * log_prob[k]
            so_far += GAMMA ** (k - t) * (reward[k] + entropy)
            bootstrapped = so_far + GAMMA ** (k - t + 1) * (0.0 if terminated[k] else next_value[k])
            is_last = done[k] or k == num_steps - 1
            total += weight * (1.0 if is_last else 1 - LAMBDA) * bootstrapped
            weight *= LAMBDA
            if is_last:
                break
        result[t] = total
    return result


def test_soft_returns_over_every_pattern_of_ends_equal_the_weighted_sum():
    patterns = np.array(list(itertools.product(["on", "terminated", "truncated"], repeat=4)))
    reward, next_value, log_prob = np.random.default_rng(0).normal(size=(3, *patterns.shape))
    terminated, done = patterns == "terminated", patterns != "on"
    expected = [brute_force(*row) for row in zip(reward, next_value, log_prob, terminated, done, strict=True)]
    actual = soft_returns(
        *(jnp.asarray(x, jnp.float32) for x in (reward, next_value, log_prob)),
        jnp.asarray(terminated),
        jnp.asarray(done),
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        entropy_weight=jnp.float32(WEIGHT),
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("value", "mean"), [(0.0, 0.0), (1.234, 1.234), (-7.7, -7.7), (1e3, MAX_RETURN)])
def test_shares_of_bins_sum_to_one_and_have_the_mean_of_the_value_within_the_bins(value, mean):
    share = bin_probabilities(jnp.float32(value))
    assert share.shape == bin_centers().shape
    np.testing.assert_allclose(jnp.sum(share), 1.0, rtol=1e-5)
    width = 2 * MAX_RETURN / NUM_BINS
    np.testing.assert_allclose(jnp.sum(share * bin_centers()), mean, atol=width if mean == MAX_RETURN else 1e-3)


def test_kl_divergence_is_the_mean_difference_of_log_densities():
    old = Gaussian(jnp.array([0.3, -1.0]), jnp.array([0.5, 1.2]))
    new = Gaussian(jnp.array([0.1, -0.4]), jnp.array([0.7, 0.9]))
    sample = jax.vmap(old.sample)(jax.random.split(jax.random.key(0), 200_000))
    expected = jnp.mean(jax.vmap(old.log_prob)(sample) - jax.vmap(new.log_prob)(sample))
    np.testing.assert_allclose(kl_divergence(old.mean, old.std, new.mean, new.std), expected, rtol=0.02)
    np.testing.assert_allclose(kl_divergence(old.mean, old.std, old.mean, old.std), 0.0, atol=1e-7)


@pytest.fixture(scope="module")
def network():
    return ReppoNetwork({"actor": NUM_OBS}, NUM_ACTIONS, actor_sizes=[16], critic_sizes=[16], key=jax.random.key(0))


@pytest.fixture(scope="module")
def batch(network):
    """Steps of the network's own policy; the target is highest for actions near 0.5."""
    rng = np.random.default_rng(0)
    obs, reached = ({"actor": jnp.asarray(x, jnp.float32)} for x in rng.normal(size=(2, NUM_ROWS, NUM_OBS)))
    distribution = jax.vmap(network.policy)(obs)
    action, following = jnp.asarray(rng.uniform(-1, 1, (2, NUM_ROWS, NUM_ACTIONS)), jnp.float32)
    target = 1 - jnp.sum(jnp.square(action - 0.5), axis=1)
    keys = jax.random.split(jax.random.key(1), NUM_ROWS)
    return Transitions(obs, reached, action, following, distribution.mean, distribution.std, target, keys)


loss = eqx.filter_jit(reppo_loss)


@eqx.filter_jit
def gradients(network, batch, hyper=HYPER):
    return eqx.filter_grad(lambda network: reppo_loss(network, batch, hyper)[0])(network)


def norm(tree):
    return float(jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)))))


@pytest.mark.long
def test_policy_does_not_move_the_q_function_which_learns_from_targets_alone(network, batch):
    grads = gradients(network, batch)
    # Another policy, with other actions of its own: the gradients of Q stay.
    other = eqx.tree_at(lambda n: n.head.linear.bias, network, network.head.linear.bias + 0.3)
    for x, y in zip(jax.tree.leaves(grads.q), jax.tree.leaves(gradients(other, batch).q), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)
    assert norm(grads.q) > 0
    assert norm(grads.actor) > 0


def test_state_beyond_the_bound_returns_to_the_acting_policy(network, batch):
    moved = eqx.tree_at(lambda n: n.head.linear.bias, network, network.head.linear.bias + 1.0)
    grads = gradients(moved, batch)
    # All states are beyond: the gradient is that of the KL divergence, which is all that grows with the bias.
    _, metrics = loss(moved, batch, HYPER)
    assert metrics["policy/near_fraction"] == 0
    assert (grads.head.linear.bias[:NUM_ACTIONS] > 0).all()
    # So the weight of the divergence grows, and at the acting policy it shrinks.
    assert grads.log_kl_weight < 0 < gradients(network, batch).log_kl_weight


@pytest.mark.parametrize(("target", "sign"), [(-5.0, 1), (5.0, -1)])
def test_weight_of_the_entropy_falls_above_its_target_and_rises_below(network, batch, target, sign):
    grads = gradients(network, batch, dataclasses.replace(HYPER, entropy_target=target))
    assert np.sign(grads.log_entropy_weight) == sign


def test_steps_on_one_batch_teach_the_q_function_and_move_the_policy_to_its_best_action(network, batch):
    optimizer = clipped_by_part(0.5, 1e-2)
    params, static = eqx.partition(network, eqx.is_inexact_array)
    start = loss(network, batch, HYPER)[1]

    @jax.jit
    def step(params, state, key):
        rows = eqx.tree_at(lambda b: b.key, batch, jax.random.split(key, NUM_ROWS))
        grads = jax.grad(lambda params: reppo_loss(eqx.combine(params, static), rows, HYPER)[0])(params)
        updates, state = optimizer.update(grads, state, params)
        return eqx.apply_updates(params, updates), state

    state = optimizer.init(params)
    for key in jax.random.split(jax.random.key(2), 150):
        params, state = step(params, state, key)
    learned = eqx.combine(params, static)
    q = jax.vmap(learned.q)(batch.obs["actor"], batch.action)
    assert np.corrcoef(q, batch.target)[0, 1] > 0.95
    assert loss(learned, batch, HYPER)[1]["loss/q"] < start["loss/q"]
    mode = jax.vmap(lambda obs: learned.policy(obs).mode())(batch.obs)
    assert (jnp.mean(mode, axis=0) > 0.1).all()


def test_gradients_of_policy_and_q_function_are_clipped_apart(network):
    params = eqx.filter(network, eqx.is_inexact_array)
    optimizer = clipped_by_part(1.0, 1.0)
    update = jax.jit(optimizer.update)
    grads = jax.tree.map(jnp.ones_like, params)
    huge = eqx.tree_at(lambda g: g.q, grads, jax.tree.map(lambda x: 1e6 * x, grads.q))
    moments: Any = [optax.tree.get(update(g, optimizer.init(params), params)[1], "mu") for g in (grads, huge)]
    assert norm(moments[0].actor) == pytest.approx(norm(moments[1].actor))
    assert norm(moments[1].q) == pytest.approx(0.1, rel=1e-4)  # a tenth of the gradient, by Adam
