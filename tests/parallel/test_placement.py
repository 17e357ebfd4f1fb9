import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ksim import ConfigError, replicate_state, shard_environments
from ksim.nn import GruActorCritic
from ksim.parallel.placement import gather_environments, unreplicate_state, unwrap_keys

DEVICES = jax.devices()[:2]
DTYPES = ("float32", "float16", "bfloat16", "int32", "int8", "uint32", "bool", "key")


def assert_same(back, tree):
    """The same structure, types and bits; numbers come back as arrays."""
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for x, y in zip(jax.tree.leaves(unwrap_keys(back)), jax.tree.leaves(unwrap_keys(tree)), strict=True):
        if eqx.is_array_like(y):
            expected = np.asarray(jnp.asarray(y))
            assert x.dtype == expected.dtype
            assert np.shape(x) == expected.shape
            assert x.tobytes() == expected.tobytes()
        else:
            assert x is y


@st.composite
def arrays(draw, leading=()):
    shape = (*leading, *draw(st.lists(st.integers(0, 3), max_size=2)))
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99))
    on_host = draw(st.booleans())
    if dtype == "key":
        return jax.random.split(jax.random.key(seed), shape) if shape else jax.random.key(seed)
    bits = np.random.default_rng(seed).integers(0, 255, size=(*shape, 4), dtype=np.uint8)
    x = (bits[..., 0] % 2).astype(bool) if dtype == "bool" else bits[..., : jnp.dtype(dtype).itemsize].copy()
    x = x if dtype == "bool" else x.view(jnp.dtype(dtype))[..., 0]
    return x if on_host else jnp.asarray(x)


def trees(leaves):
    containers = lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), children, max_size=3)
        | st.tuples(children)
        | st.none()
    )
    return st.recursive(leaves, containers, max_leaves=6)


NUMBERS = st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.floats(width=32)
STATIC = st.sampled_from([jnp.tanh, "words", np.random.default_rng])


@settings(max_examples=60, deadline=None)
@given(trees(arrays() | NUMBERS | STATIC), st.sampled_from([1, 2, 4]))
def test_replicated_state_comes_back_bit_for_bit_whatever_the_tree(tree, num_devices):
    placed = replicate_state(tree, jax.devices()[:num_devices])
    for leaf in filter(eqx.is_array, jax.tree.leaves(placed)):
        assert leaf.shape[0] == num_devices
    assert_same(unreplicate_state(placed), tree)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.integers(1, 3), st.data())
def test_sharded_environments_come_back_bit_for_bit_whatever_the_tree(num_devices, share, data):
    tree = data.draw(trees(arrays(leading=(num_devices * share,)) | STATIC))
    placed = shard_environments(tree, jax.devices()[:num_devices])
    for leaf in filter(eqx.is_array, jax.tree.leaves(placed)):
        assert leaf.shape[:2] == (num_devices, share)
    assert_same(gather_environments(placed), tree)


def test_model_with_an_activation_function_keeps_it():
    model = GruActorCritic({"actor": 3}, 2, actor_sizes=(4,), critic_sizes=(4,), memory_size=4, key=jax.random.key(0))
    tree = {"model": model, "activation": jax.nn.tanh, "name": "policy", "count": 3}
    placed = replicate_state(tree, DEVICES)
    assert placed["activation"] is jax.nn.tanh
    assert_same(unreplicate_state(placed), tree)


def test_replicated_state_has_a_copy_on_each_device():
    tree = {"x": jnp.arange(3.0), "n": jnp.int32(7), "key": jax.random.key(1), "step": 5}
    copies = replicate_state(tree, DEVICES)
    assert copies["x"].shape == (2, 3)
    assert [shard.device for shard in copies["x"].addressable_shards] == DEVICES
    np.testing.assert_array_equal(copies["n"], [7, 7])
    np.testing.assert_array_equal(copies["step"], [5, 5])
    np.testing.assert_array_equal(jax.random.key_data(copies["key"])[1], jax.random.key_data(tree["key"]))


def test_sharded_environments_are_consecutive_shares():
    tree = {"x": jnp.arange(6.0), "key": jax.random.split(jax.random.key(0), 6)}
    shares = shard_environments(tree, DEVICES)
    # Device d of 2 holds envs [3d, 3d + 3).
    np.testing.assert_array_equal(shares["x"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(np.asarray(shares["x"].addressable_shards[1].data), [[3, 4, 5]])
    assert shares["key"].shape == (2, 3)


@pytest.mark.parametrize("bad", [jnp.float32(1.0), 3, jnp.zeros(5), jnp.zeros((2, 6)), np.zeros(())])
def test_leaf_that_is_not_per_env_is_named_and_never_reshaped_by_guess(bad):
    with pytest.raises(ConfigError, match=r"env_state\['b'\] has shape .*number of environments \(6\).*broadcast it"):
        shard_environments({"a": jnp.zeros(6), "b": bad}, DEVICES)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            lambda: replicate_state({"steps": np.int64(2**40)}, DEVICES),
            r"Leaf \['steps'\] holds a number beyond int32's range, such as 1099511627776",
        ),
        (
            lambda: shard_environments({"a": jnp.zeros(6)}, DEVICES, num_envs=4),
            r"env_state\['a'\] has shape \(6,\).*number of environments \(4\)",
        ),
        (
            lambda: shard_environments(jnp.zeros(10), jax.devices()[:3]),
            r"Number of environments \(10\) must be divisible by number of devices \(3\)\. Nearest.*9, 12",
        ),
    ],
    ids=["a number that would be cut", "another number of environments", "environments that do not divide"],
)
def test_what_cannot_be_placed_is_an_error(place, message):
    with pytest.raises(ConfigError, match=message):
        place()
