import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ksim.nn import MlpActorCritic
from ksim.parallel.collectives import mean_across_devices
from ksim.ppo.hyperparameters import PPOHyperparameters
from ksim.ppo.losses import Minibatch
from ksim.ppo.minibatches import stratified_minibatches
from ksim.ppo.train_step import initial_learner_state, static_leaves
from ksim.ppo.update import adapt_learning_rate, update

NUM_ENVS, NUM_STEPS = 8, 5
SIZES = {"actor": 3}


def make_rollout(seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)
    shape = (NUM_ENVS, NUM_STEPS)
    return Minibatch(
        obs={"actor": jax.random.normal(keys[0], (*shape, 3))},
        carry=None,
        done=jnp.zeros(shape, bool),
        action=jax.random.normal(keys[1], (*shape, 2)),
        log_prob=jax.random.normal(keys[2], shape) - 2,
        value=jnp.zeros(shape),
        advantage=jax.random.normal(keys[3], shape),
        value_target=jax.random.normal(keys[4], shape),
    )


def run_update(num_devices, rollout=None, *, optimizer=None, **options):
    """Parameters after an update with the batch over so many devices; leading device axis."""
    hyper = dataclasses.replace(PPOHyperparameters(num_batches=2, num_passes=2), **options)
    optimizer = optimizer or optax.inject_hyperparams(optax.adam)(learning_rate=1e-2)
    model = MlpActorCritic(SIZES, 2, actor_sizes=(8,), critic_sizes=(8,), key=jax.random.key(0))
    learner, static = initial_learner_state(model, SIZES, optimizer, jax.random.key(0), {}), static_leaves(model)
    rollout = make_rollout() if rollout is None else rollout
    split = jax.tree.map(lambda x: x.reshape(num_devices, -1, *x.shape[1:]), rollout)

    def one_device(rollout):
        index_mb = stratified_minibatches(
            jax.random.key(3), rollout.done.shape[0], num_batches=2, num_passes=2, axis_name="device"
        )
        return update(
            learner.params,
            learner.opt_state,
            learner.num_bad_updates,
            rollout,
            index_mb,
            static=static,
            optimizer=optimizer,
            sync_gradients=lambda grads: mean_across_devices(grads, "device"),
            hyper=hyper,
            axis_name="device",
        )

    params, _, num_bad, metrics = jax.jit(jax.vmap(one_device, axis_name="device"))(split)
    return learner.params, params, num_bad, metrics


def assert_replicas_equal(tree):
    for leaf in jax.tree.leaves(tree):
        np.testing.assert_array_equal(leaf, jnp.broadcast_to(leaf[:1], leaf.shape))


def assert_close(a, b, **kwargs):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[0], y[0], **kwargs), a, b)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_update_on_several_devices_equals_that_on_one(num_devices):
    _, one, _, _ = run_update(1)
    _, many, _, _ = run_update(num_devices)
    assert_close(one, many, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["accumulate", "local"])
@pytest.mark.parametrize("period", [1, 2, 3])
def test_update_leaves_identical_replicas_whatever_the_period(mode, period):
    _, params, _, _ = run_update(2, grad_sync_period=period, grad_sync_mode=mode)
    assert_replicas_equal(params)


def test_accumulating_over_a_whole_pass_is_one_step_with_the_mean_gradient():
    sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    _, accumulated, _, _ = run_update(1, optimizer=sgd, grad_sync_period=4, num_passes=2)
    before, _, _, _ = run_update(1, optimizer=sgd)
    model = MlpActorCritic(SIZES, 2, actor_sizes=(8,), critic_sizes=(8,), key=jax.random.key(0))
    from ksim.ppo.losses import ppo_loss

    grads = jax.grad(lambda m: ppo_loss(m, make_rollout(), PPOHyperparameters())[0])(model)
    # Every env is in one minibatch of each pass, so the mean over minibatches is the gradient of the whole batch.
    expected = before.head.linear.weight - 0.1 * grads.head.linear.weight
    np.testing.assert_allclose(accumulated.head.linear.weight[0], expected, rtol=1e-4, atol=1e-6)


def test_update_with_a_remainder_flushes_it():
    # 4 minibatches with a period of 3: one step of three and one of the one that remains.
    _, with_flush, _, _ = run_update(1, grad_sync_period=3)
    _, without, _, _ = run_update(1, grad_sync_period=4)
    assert not np.allclose(with_flush.value.weight, without.value.weight)


@pytest.mark.parametrize(("mode", "period"), [("accumulate", 1), ("accumulate", 2), ("local", 2)])
def test_update_when_one_device_has_a_bad_gradient_is_skipped_on_all(mode, period):
    rollout = make_rollout()
    rollout = dataclasses.replace(rollout, advantage=rollout.advantage.at[0, 0].set(jnp.nan))
    _, params, _, metrics = run_update(2, rollout, grad_sync_period=period, grad_sync_mode=mode)
    assert_replicas_equal(params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
    # Env 0 is in one of two minibatches of each of two passes.
    np.testing.assert_array_equal(metrics["policy/bad_updates"], [2, 2])


def test_update_when_all_is_bad_changes_nothing_and_counts_in_a_row():
    rollout = make_rollout()
    rollout = dataclasses.replace(rollout, advantage=rollout.advantage * jnp.nan)
    before, params, num_bad, _ = run_update(1, rollout)
    assert_close(jax.tree.map(lambda x: x[None], before), params, rtol=0)
    assert num_bad[0] == 4


def test_learning_rate_moves_towards_the_desired_kl():
    hyper = PPOHyperparameters(desired_kl=0.01, min_learning_rate=1e-4, max_learning_rate=1.0)
    rate = jnp.float32(0.3)
    adapt = lambda kl: float(adapt_learning_rate(rate, jnp.float32(kl), hyper))
    wide = dataclasses.replace(hyper, learning_rate=2.0)
    np.testing.assert_allclose(float(adapt_learning_rate(jnp.float32(2.0), jnp.float32(0.01), wide)), 2.0)
    adapted = [adapt(kl) for kl in (0.03, 0.01, 0.001, jnp.nan)]
    np.testing.assert_allclose(adapted, [0.2, 0.3, 0.45, 0.3], rtol=1e-6)
