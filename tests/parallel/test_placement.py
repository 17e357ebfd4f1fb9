import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim import ConfigError, EnvState, replicate_state, shard_environments
from ksim.parallel.layout import PmapDevices, SingleDevice
from ksim.parallel.placement import unwrap_keys
from ksim.types import EnvBatch, LearnerState, TrainState

DEVICES = jax.devices()[:2]


def test_replicated_state_has_a_copy_on_each_device():
    tree = {"x": jnp.arange(3.0), "n": jnp.int32(7), "key": jax.random.key(1)}
    copies = replicate_state(tree, DEVICES)
    assert copies["x"].shape == (2, 3)
    assert [shard.device for shard in copies["x"].addressable_shards] == DEVICES
    np.testing.assert_array_equal(copies["n"], [7, 7])
    np.testing.assert_array_equal(jax.random.key_data(copies["key"])[1], jax.random.key_data(tree["key"]))


def test_sharded_environments_are_consecutive_shares():
    tree = {"x": jnp.arange(6.0), "key": jax.random.split(jax.random.key(0), 6)}
    shares = shard_environments(tree, DEVICES)
    # Device d of 2 holds envs [3d, 3d + 3).
    np.testing.assert_array_equal(shares["x"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(np.asarray(shares["x"].addressable_shards[1].data), [[3, 4, 5]])
    assert shares["key"].shape == (2, 3)


@pytest.mark.parametrize("bad", [jnp.float32(1.0), jnp.zeros(5), jnp.zeros((2, 6))])
def test_leaf_that_is_not_per_env_is_named_and_never_reshaped_by_guess(bad):
    with pytest.raises(ConfigError, match=r"env_state\['b'\] has shape .*number of environments \(6\)"):
        shard_environments({"a": jnp.zeros(6), "b": bad}, DEVICES)


def test_environments_that_do_not_divide_are_an_error_with_the_nearest_valid_numbers():
    message = r"Number of environments \(10\) must be divisible by number of devices \(3\)\. Nearest.*9, 12"
    with pytest.raises(ConfigError, match=message):
        shard_environments(jnp.zeros(10), jax.devices()[:3])


def make_state(num_envs):
    blank = jnp.zeros(num_envs)
    env_state = EnvState(
        inner={"key": jax.random.split(jax.random.key(0), num_envs)},
        obs={"actor": jnp.arange(2.0 * num_envs).reshape(num_envs, 2)},
        reward=blank,
        terminated=blank > 0,
        truncated=blank > 0,
        metrics={},
    )
    zero = jnp.int32(0)
    learner = LearnerState({"w": jnp.arange(3.0)}, None, None, jax.random.key(2), zero, zero, {})
    return TrainState(learner=learner, envs=EnvBatch(env_state, None, blank, blank.astype(jnp.int32)))


@pytest.mark.parametrize("layout", [SingleDevice(), PmapDevices(DEVICES, "device")], ids=["single", "pmap"])
def test_layout_gives_back_what_was_placed(layout):
    state = make_state(num_envs=4)
    placed = layout.place(state)
    back = TrainState(layout.first(placed.learner), layout.join_envs(placed.envs))
    jax.tree.map(np.testing.assert_array_equal, unwrap_keys(back), unwrap_keys(state))


def test_single_device_keeps_the_callers_arrays_when_the_step_reuses_memory():
    layout, state = SingleDevice(), make_state(num_envs=2)
    step = layout.map(lambda s: s.learner.params["w"] + 1, donate=True)
    step(layout.place(state))
    np.testing.assert_array_equal(state.learner.params["w"], [0, 1, 2])
