"""Functions of the host that compiled programs call, and that a cached program finds in another process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.physics.host_call import host_function
from tests.support.processes import run

ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)


def summing(calls, content):
    """A function that returns sums and doubled sums of rows, and notes how many rows it was given."""

    def fill(rows, out):
        calls.append(rows.shape)
        assert not rows.flags.writeable
        out[...] = rows.sum(axis=-1, keepdims=True) * [1, 2]

    return host_function(fill, content)


def expected():
    return ROWS.sum(axis=1, keepdims=True) * [1, 2]


def test_function_is_called_once_for_all_rows_of_a_program_and_of_each_device():
    calls = []
    function = summing(calls, b"rows")
    call = jax.vmap(lambda row: function(row, 2))
    np.testing.assert_array_equal(jax.jit(call)(ROWS), expected())
    assert calls == [(8, 3)]
    in_loop = jax.jit(lambda x: jax.lax.scan(lambda x, _: (call(x)[:, :1] + 0 * x, None), x, length=3)[0])
    np.testing.assert_array_equal(in_loop(ROWS)[:, 0], 9 * ROWS.sum(axis=1))
    calls.clear()
    shares = jax.pmap(call, devices=jax.local_devices()[:2])(ROWS.reshape(2, 4, 3))
    np.testing.assert_array_equal(shares.reshape(8, 2), expected())
    assert calls == [(4, 3), (4, 3)]


def test_function_of_one_row_is_called_in_and_outside_of_a_program():
    calls = []
    function = summing(calls, b"one")
    np.testing.assert_array_equal(function(jnp.asarray(ROWS[1]), 2), [12, 24])
    np.testing.assert_array_equal(jax.jit(lambda row: function(row, 2))(ROWS[1]), [12, 24])
    assert calls == [(3,), (3,)]


def test_what_a_function_raises_is_in_the_error_of_its_program():
    def fill(rows, out):
        raise ValueError(f"no good: {rows.shape}")

    function = host_function(fill, b"bad")
    with pytest.raises(Exception, match=r"ValueError: no good: \(3,\)"):
        jax.block_until_ready(jax.jit(lambda row: function(row, 2))(ROWS[0]))


def test_functions_of_equal_content_are_one_and_a_program_of_one_that_is_gone_says_so():
    def fill(rows, out):
        out[...] = 0.0

    first, second = host_function(fill, b"same"), host_function(fill, b"same")
    assert first is second
    assert host_function(fill, b"other") is not first
    # Of a number: what is traced of the function itself would hold it.
    program = jax.jit(lambda row: first(row, 2)).lower(ROWS[0]).compile()
    jax.clear_caches()
    del first, second
    with pytest.raises(Exception, match="The environment of this program is gone"):
        jax.block_until_ready(program(ROWS[0]))


CODE = """
import jax, numpy as np
import ksim
from examples.minimal import CrawlerTask
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
env = CrawlerTask(ksim.PPOConfig(num_envs=4)).environment
states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 4))
reached = jax.jit(jax.vmap(env.step))(states, np.ones((4, env.action_size), np.float32))
print(events.count("/jax/compilation_cache/cache_hits"), reached.inner.physics.qpos.sum())
"""


@pytest.mark.long
def test_program_of_native_mujoco_comes_from_the_cache_in_another_process(tmp_path):
    cached = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    (cold, there), (warm, here) = (run("-c", CODE, **cached).stdout.split() for _ in range(2))
    assert cold == "0"
    assert int(warm) >= 2
    assert here == there
