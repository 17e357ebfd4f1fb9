import jax
import jax.numpy as jnp
import numpy as np

from ksim.parallel import collectives


def over_two(function, x):
    return jax.vmap(lambda x: function(x, "device"), axis_name="device")(x)


def test_collectives_reduce_over_devices():
    x = jnp.array([1.0, 3.0])
    for function, expected in (
        (collectives.mean_across_devices, 2.0),
        (collectives.sum_across_devices, 4.0),
        (collectives.min_across_devices, 1.0),
        (collectives.max_across_devices, 3.0),
    ):
        np.testing.assert_array_equal(over_two(function, x), [expected, expected])
        assert function(x, None) is x


def test_all_across_devices_is_false_when_one_device_says_so():
    flag = jnp.array([True, False])
    np.testing.assert_array_equal(over_two(collectives.all_across_devices, flag), [False, False])
    assert collectives.all_across_devices(flag[0], None)


def test_moments_are_those_of_the_whole_batch():
    x = jnp.array([[1.0, 2.0], [3.0, 10.0]])
    mean, variance = over_two(collectives.moments_across_devices, x)
    np.testing.assert_allclose(mean, 4.0)
    np.testing.assert_allclose(variance, np.var([1, 2, 3, 10]))


def test_global_env_index_counts_over_devices():
    index = jax.vmap(lambda _: collectives.global_env_index(3, "device"), axis_name="device")(jnp.arange(2))
    np.testing.assert_array_equal(index, [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(collectives.global_env_index(3, None), [0, 1, 2])
