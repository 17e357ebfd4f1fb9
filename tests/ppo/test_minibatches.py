import functools

import jax
import numpy as np
import pytest

from ksim.ppo.minibatches import stratified_minibatches

NUM_ENVS, NUM_BATCHES, NUM_PASSES = 24, 3, 2


@functools.cache
def minibatches(num_devices):
    """Global env indices, (devices, minibatches, envs), of the same batch on so many devices."""
    local = NUM_ENVS // num_devices
    function = lambda _: stratified_minibatches(
        jax.random.key(1), local, num_batches=NUM_BATCHES, num_passes=NUM_PASSES, axis_name="device"
    )
    indices = jax.jit(jax.vmap(function, axis_name="device"))(np.arange(num_devices))
    return np.asarray(indices) + local * np.arange(num_devices)[:, None, None]


def test_minibatches_of_a_pass_hold_every_env_once():
    for one_pass in np.split(minibatches(1)[0], NUM_PASSES):
        assert sorted(one_pass.ravel()) == list(range(NUM_ENVS))


def test_minibatches_of_different_passes_differ():
    first, second = np.split(minibatches(1)[0], NUM_PASSES)
    assert (first != second).any()


def test_minibatch_takes_one_env_of_each_stratum():
    for minibatch in minibatches(1)[0]:
        np.testing.assert_array_equal(np.sort(minibatch) // NUM_BATCHES, np.arange(NUM_ENVS // NUM_BATCHES))


@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_minibatches_are_the_same_on_any_number_of_devices(num_devices):
    many = minibatches(num_devices).transpose(1, 0, 2).reshape(NUM_BATCHES * NUM_PASSES, -1)
    np.testing.assert_array_equal(many, minibatches(1)[0])
