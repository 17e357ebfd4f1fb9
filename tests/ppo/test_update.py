import dataclasses

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from ksim.learn.guards import UpdateState
from ksim.learn.learner import initial_learner_state, static_leaves
from ksim.nn import MlpActorCritic
from ksim.parallel.collectives import mean_across_devices
from ksim.ppo.losses import Minibatch, ppo_loss
from ksim.ppo.minibatches import GradientSync, stratified_minibatches, update
from ksim.ppo.ppo import adapt_learning_rate
from tests.support.hlo import all_reduces
from tests.support.hyperparameters import make_hyper
from tests.support.tasks import point_mass_task, train_iterations

NUM_ENVS, NUM_STEPS = 8, 5
SIZES = {"actor": 3}
AXIS = "replica"


def make_model():
    return MlpActorCritic(SIZES, 2, actor_sizes=(8,), critic_sizes=(8,), key=jax.random.key(0))


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


def mean_over_replicas(grads):
    return jax.lax.pmean(grads, AXIS)


def run_update(num_devices, rollout=None, **options):
    """Parameters before an update, and what follows from it with the batch over so many devices, one row per device."""
    function, learner, split = make_update(num_devices, rollout, **options)
    params, _, num_bad, metrics = jax.jit(jax.vmap(function, axis_name=AXIS))(split)
    return learner.params, params, num_bad, metrics


def make_update(num_devices, rollout=None, *, optimizer=None, sync_gradients=mean_over_replicas, **options):
    """An update of one device's share of the rollout, the learner before it, and all shares of the rollout."""
    hyper = make_hyper(**{"num_batches": 2, "num_passes": 2} | options)
    optimizer, model = optimizer or adam(), make_model()
    learner, static = initial_learner_state(model, SIZES, optimizer, jax.random.key(0), {}), static_leaves(model)
    rollout = make_rollout() if rollout is None else rollout
    split = jax.tree.map(lambda x: x.reshape(num_devices, -1, *x.shape[1:]), rollout)

    def one_device(rollout):
        end, (_, num_skipped) = update(
            UpdateState.of(learner),
            rollout,
            minibatches(hyper, rollout.done.shape[0], AXIS),
            loss=lambda params, batch: ppo_loss(eqx.combine(params, static), batch, hyper),
            optimizer=optimizer,
            sync=GradientSync(
                average=sync_gradients, axis_name=AXIS, period=hyper.grad_sync_period, mode=hyper.grad_sync_mode
            ),
        )
        return end.params, end.opt_state, end.num_bad, {"policy/bad_updates": num_skipped}

    return one_device, learner, split


def minibatches(hyper, num_local_envs, axis_name):
    return stratified_minibatches(
        jax.random.key(3),
        num_local_envs,
        num_batches=hyper.num_batches,
        num_passes=hyper.num_passes,
        axis_name=axis_name,
    )


def adam():
    return optax.inject_hyperparams(lambda learning_rate: optax.adam(learning_rate, eps=1e-5))(learning_rate=1e-2)


def assert_replicas_equal(tree):
    for leaf in jax.tree.leaves(tree):
        np.testing.assert_array_equal(leaf, jnp.broadcast_to(leaf[:1], leaf.shape))


def assert_close(a, b, **kwargs):
    first = lambda tree: jax.tree.map(lambda x: x[0], tree)
    chex.assert_trees_all_close(first(a), first(b), **kwargs)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_update_on_several_devices_equals_that_on_one(num_devices):
    _, one, _, _ = run_update(1)
    _, many, _, _ = run_update(num_devices)
    assert_close(one, many, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_accumulating_over_a_whole_pass_is_one_update_with_the_full_batch(num_devices):
    _, accumulated, _, _ = run_update(num_devices, num_passes=1, num_batches=2, grad_sync_period=2)
    before, at_once, _, _ = run_update(1, num_passes=1, num_batches=1)
    assert_close(accumulated, at_once, rtol=1e-5, atol=1e-7)
    assert not np.allclose(before.head.linear.weight, at_once.head.linear.weight[0], atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("num_devices", [1, 2])
def test_accumulating_over_a_period_that_does_not_divide_flushes_what_remains(num_devices):
    hyper = make_hyper(num_batches=2, num_passes=2)
    index_mb, optimizer, rollout = minibatches(hyper, NUM_ENVS, None), adam(), make_rollout()
    params, static = eqx.partition(make_model(), eqx.is_inexact_array)
    opt_state = optimizer.init(params)
    batch = lambda index_b: jax.tree.map(lambda x: x[index_b], rollout)
    grad = jax.jit(jax.grad(lambda p, index_b: ppo_loss(eqx.combine(p, static), batch(index_b), hyper)[0]))
    for period in (index_mb[:3], index_mb[3:]):
        grads = [grad(params, index_b) for index_b in period]
        mean = jax.tree.map(lambda *g: sum(g) / len(g), *grads)
        updates, opt_state = optimizer.update(mean, opt_state, params)
        params = optax.apply_updates(params, updates)
    _, flushed, _, _ = run_update(num_devices, grad_sync_period=3)
    assert_close(flushed, jax.tree.map(lambda x: x[None], params), rtol=1e-5, atol=1e-7)


def recorded(optimizer, seen):
    """The optimizer, which also notes the parameters before each step in `seen`, by replica and number of the step."""

    def note(replica, number, params):
        seen[int(replica), int(number)] = np.array(params)

    def step(updates, state, params=None):
        inner, number = state
        jax.debug.callback(note, jax.lax.axis_index(AXIS), number, ravel_pytree(params)[0])
        updates, inner = optimizer.update(updates, inner, params)
        return updates, (inner, number + 1)

    return optax.GradientTransformation(lambda params: (optimizer.init(params), jnp.int32(0)), step)


@pytest.mark.parametrize(("period", "synchronised"), [(1, {1, 2, 3, 4, 5}), (2, {2, 4}), (4, {4})])
def test_local_replicas_are_bitwise_equal_after_every_period_and_apart_in_between(period, synchronised):
    seen = {}
    options = {"num_passes": 3, "grad_sync_period": period, "grad_sync_mode": "local"}
    function, _, split = make_update(2, optimizer=recorded(adam(), seen), **options)
    params = jax.pmap(function, axis_name=AXIS, devices=jax.devices()[:2])(split)[0]
    jax.effects_barrier()
    equal = {number for number in range(1, 6) if np.array_equal(seen[0, number], seen[1, number])}
    assert equal == synchronised
    assert_replicas_equal(params)


def test_period_of_one_when_local_is_that_of_accumulating():
    accumulated, local = (run_update(2, grad_sync_mode=mode)[1:] for mode in ("accumulate", "local"))
    chex.assert_trees_all_equal(local, accumulated)


@pytest.mark.long
def test_local_replicas_are_identical_after_one_of_them_skipped_a_step_of_its_own():
    rollout, hyper = make_rollout(), make_hyper(num_batches=2, num_passes=1)
    # An env of the first of two minibatches: of the step that each device takes, or skips, by itself.
    bad_env = minibatches(hyper, NUM_ENVS, None)[0, 0]
    rollout = dataclasses.replace(rollout, advantage=rollout.advantage.at[bad_env, 0].set(jnp.nan))
    function, learner, split = make_update(2, rollout, num_passes=1, grad_sync_period=2, grad_sync_mode="local")
    params, opt_state, num_bad, metrics = jax.pmap(function, axis_name=AXIS, devices=jax.devices()[:2])(split)
    assert_replicas_equal((params, opt_state))
    np.testing.assert_array_equal(metrics["policy/bad_updates"], [1, 1])
    np.testing.assert_array_equal(num_bad, [0, 0])
    moved = jax.tree.map(lambda x, y: np.abs(x[0] - y).max(), params, learner.params)
    assert max(jax.tree.leaves(moved)) > 1e-3


def all_reduces_of(num_devices=2, **options):
    """Reductions over devices in one update, and how many of them are of gradients."""
    sync = lambda grads: mean_across_devices(grads, AXIS)
    function, learner, split = make_update(num_devices, sync_gradients=sync, **options)
    program = jax.pmap(function, axis_name=AXIS, devices=jax.devices()[:num_devices]).lower(split).compile()
    reductions = all_reduces(program.as_text())
    size = sum(x.size for x in jax.tree.leaves(learner.params))
    return reductions.total(), reductions[f"f32[{size}]"]


@pytest.mark.parametrize("mode", ["accumulate", "local"])
@pytest.mark.parametrize(("period", "num_periods"), [(1, 4), (2, 2), (4, 1)])
def test_compiled_update_reduces_gradients_once_per_period_and_nothing_in_between(period, num_periods, mode):
    in_all, of_gradients = all_reduces_of(grad_sync_period=period, grad_sync_mode=mode)
    assert of_gradients == num_periods
    # Gradients and whether they are finite; after local steps parameters and moments, counts, and the bad ones of them.
    each_time = 2 + 3 * (mode == "local" and period > 1)
    assert in_all == num_periods * each_time


@pytest.mark.parametrize(("mode", "period"), [("accumulate", 1), ("accumulate", 2), ("local", 2)])
def test_update_when_one_device_has_a_bad_gradient_is_skipped_and_counted_on_all(mode, period):
    rollout = make_rollout()
    rollout = dataclasses.replace(rollout, advantage=rollout.advantage.at[0, 0].set(jnp.nan))
    _, params, _, metrics = run_update(2, rollout, grad_sync_period=period, grad_sync_mode=mode)
    assert_replicas_equal(params)
    chex.assert_tree_all_finite(params)
    # Env 0 is in one of two minibatches of each of two passes.
    np.testing.assert_array_equal(metrics["policy/bad_updates"], [2, 2])


def test_update_when_all_is_bad_changes_nothing_and_counts_in_a_row():
    rollout = make_rollout()
    rollout = dataclasses.replace(rollout, advantage=rollout.advantage * jnp.nan)
    before, params, num_bad, _ = run_update(1, rollout)
    assert_close(jax.tree.map(lambda x: x[None], before), params, rtol=0)
    assert num_bad[0] == 4


def test_learning_rate_moves_towards_the_desired_kl():
    hyper = make_hyper(desired_kl=0.01, min_learning_rate=1e-4, max_learning_rate=1.0)
    rate = jnp.float32(0.3)
    adapt = lambda kl: float(adapt_learning_rate(rate, jnp.float32(kl), hyper))
    adapted = [adapt(kl) for kl in (0.03, 0.01, 0.001, jnp.nan)]
    np.testing.assert_allclose(adapted, [0.2, 0.3, 0.45, 0.3], rtol=1e-6)


@pytest.mark.parametrize("period", [2, 3, 4])
def test_learning_rate_falls_if_a_few_optimizer_steps_of_an_iteration_move_the_policy_far(period):
    # Minibatches before the first step see an unchanged policy.
    task = point_mass_task(num_devices=1, num_batches=2, num_passes=2, grad_sync_period=period, desired_kl=1e-7)
    _, history = train_iterations(task, 2)
    rates = [metrics["policy/learning_rate"] for metrics in history]
    assert rates[1] == pytest.approx(rates[0] / 1.5)
    assert all(metrics["policy/kl_last_pass"] > 2e-7 for metrics in history)


@pytest.mark.parametrize(("kl", "bound"), [(1.0, 0.25), (0.0, 0.4)])
def test_learning_rate_stays_within_its_bounds(kl, bound):
    hyper = make_hyper(desired_kl=0.01, min_learning_rate=0.25, max_learning_rate=0.4)
    np.testing.assert_allclose(adapt_learning_rate(jnp.float32(0.3), jnp.float32(kl), hyper), bound)
