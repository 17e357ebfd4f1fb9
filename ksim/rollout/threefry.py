"""JAX's generator of random numbers, Threefry-2x32, in a form that a CPU computes faster."""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array, PRNGKeyArray


def unrolled(key: PRNGKeyArray) -> PRNGKeyArray:
    """A key of the same numbers, which a CPU draws in fewer steps.

    On a CPU, JAX computes the hash of a key and a counter (Threefry-2x32, Salmon et al. 2011) in a loop. Each pass
    starts several kernels. For the few numbers of an env step, this takes longer than the hash. Unrolled, the hash is
    fused into the kernels that use the numbers. Keys of other generators are returned unchanged.
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


@jax.jit  # traced once, not at each of the many uses
def _hash(key: Array, count: Array) -> tuple[Array, Array]:
    """The hash of each count by 20 rounds of Threefry-2x32: 64 bits, in two halves."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = jnp.broadcast_to(keys[0], count.shape), count + keys[1]
    for i in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x += y
            y = x ^ (y << jnp.uint32(rotation) | y >> jnp.uint32(32 - rotation))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y


def _fold_in(key: Array, data: Array | int) -> Array:
    return jnp.stack(_hash(key, jnp.asarray(data).astype(jnp.uint32)))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_hash(key, _counts(shape)), axis=-1)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width == 64:
        return jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), shape, jnp.uint64)
    x, y = _hash(key, _counts(shape))
    return (x ^ y).astype(f"uint{bit_width}")


def _counts(shape: tuple[int, ...]) -> Array:
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jax.random.key_data(jax.random.key(seed, impl="threefry2x32")),
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="ksim_threefry2x32",
    tag="ksim",
)
