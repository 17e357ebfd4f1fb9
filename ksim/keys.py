"""Numbers that are folded into a random key for one purpose each, so that no two uses of a key draw the same.

What is counted (environments, iterations, steps, terms) is folded in as 0, 1, 2, ..., and the n-th split of a key is
the key with n folded in. So the numbers reserved here come from the other end, which no count and no split reaches.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array, PRNGKeyArray

_LAST = 2**31 - 1

EVALUATION = _LAST
"""Into the key of a seed, whose splits are for training: the episodes of evaluations."""
VIEWER = _LAST - 1
"""Into the key of a seed: the episodes in the viewer."""

NEXT_STARTS = _LAST
"""Into the key of an env, which makes its first episode: the starts of the following ones, by their numbers from 0."""

RESET = 0
"""Into the key of an episode, whose steps fold in their numbers from 1: its start."""

OBSERVATION_NOISE = _LAST - 1
"""Into the key of an observation, which the observation may use or split: its noise."""
WRAPPED_OBSERVATION = _LAST - 2
"""Into the key of an observation's wrapper, which the wrapper may use or split: the observation in it."""
NOISE_START = _LAST
"""Into the key of a noise, of which a chain folds in the numbers of its noises: its memory at a reset."""


def unrolled(key: PRNGKeyArray) -> PRNGKeyArray:
    """A key of the same numbers, which a CPU draws in fewer steps.

    On a CPU, JAX computes the hash of a key and a counter (Threefry-2x32, Salmon et al. 2011) in a loop. Each pass of
    it starts several kernels, and for as few numbers as a step of some envs needs that takes longer than the hash.
    Unrolled, the hash is fused into the kernels that use the numbers.

    Keys of another generator than JAX's default one are returned as they are.
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


@jax.jit  # traced once, not at each of the many uses
def _hash(key: Array, count: Array) -> tuple[Array, Array]:
    """The 64 bits, in two halves, that 20 rounds of Threefry-2x32 make of each count."""
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
