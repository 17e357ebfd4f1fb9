import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.keys import OBSERVATION_NOISE
from ksim.rollout.threefry import unrolled

KEY = jax.random.key(7)

DRAWS = {
    "uniform": lambda key: jax.random.uniform(key, (3, 5), minval=-1.0, maxval=2.0),
    "one number": jax.random.uniform,
    "normal": lambda key: jax.random.normal(key, (21,)),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (9,)),
    "randint": lambda key: jax.random.randint(key, (4,), 0, 1000),
    "permutation": lambda key: jax.random.permutation(key, 12),
    "bytes": lambda key: jax.random.bits(key, (6,), jnp.uint8),
    "no numbers": lambda key: jax.random.uniform(key, (0,)),
    "after a split": lambda key: jax.random.normal(jax.random.split(key, (2, 3))[1, 2], (2,)),
    "after a fold": lambda key: jax.random.uniform(jax.random.fold_in(key, OBSERVATION_NOISE), (2,)),
    "after folding in a traced number": lambda key: jax.lax.map(
        lambda i: jax.random.uniform(jax.random.fold_in(key, i)), jnp.arange(3)
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_unrolled_key_draws_the_numbers_of_the_key(draw):
    expected = draw(KEY)
    np.testing.assert_array_equal(draw(unrolled(KEY)), expected)
    # As in a program of many envs.
    keys = jax.random.split(KEY, 3)
    compiled = jax.jit(jax.vmap(lambda key: draw(unrolled(key))))
    np.testing.assert_array_equal(compiled(keys), jax.vmap(draw)(keys))


@pytest.mark.parametrize("key", [jax.random.key(0, impl="rbg"), unrolled(KEY)], ids=["another generator", "unrolled"])
def test_unrolled_key_of_another_generator_or_that_is_unrolled_is_that_key(key):
    assert unrolled(key) is key


def test_unrolled_key_can_be_kept_in_a_state():
    # Where an env ends, rows of a fresh state are chosen; a checkpoint holds the raw data.
    keys = jax.vmap(unrolled)(jax.random.split(KEY, 2))
    chosen = jnp.where(jnp.array([True, False]), keys, keys[::-1])
    wrapped = jax.random.wrap_key_data(jax.random.key_data(chosen), impl=jax.random.key_impl(keys))
    np.testing.assert_array_equal(jax.vmap(jax.random.uniform)(wrapped), jax.vmap(jax.random.uniform)(chosen))
