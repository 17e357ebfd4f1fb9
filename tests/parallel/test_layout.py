"""Layouts of one and several devices, and their programs in the compilation cache."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim import EnvState
from ksim.parallel.layout import LAYOUTS as MAPPED, SingleDevice
from ksim.parallel.placement import unwrap_keys
from ksim.types import EnvBatch, LearnerState, TrainState

DEVICES = jax.devices()[:2]


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


LAYOUTS = [
    pytest.param(SingleDevice(), id="single"),
    *(pytest.param(layout(DEVICES, "replica"), id=name) for name, layout in MAPPED.items()),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_gives_back_what_was_placed(layout):
    state = make_state(num_envs=4)
    placed = layout.place(state)
    back = TrainState(layout.first(placed.learner), layout.join_envs(placed.envs))
    chex.assert_trees_all_equal(unwrap_keys(back), unwrap_keys(state))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_envs_are_made_on_the_device_that_holds_them_as_one_global_batch(layout):
    make = lambda key, index_e: {"i": index_e, "key": jax.vmap(lambda i: jax.random.fold_in(key, i))(index_e)}
    batch = layout.make_envs(make, jax.random.key(4), 6)
    np.testing.assert_array_equal(batch["i"], np.arange(6))
    np.testing.assert_array_equal(
        jax.random.key_data(batch["key"][5]), jax.random.key_data(jax.random.fold_in(jax.random.key(4), 5))
    )
    on = {shard.device: shard.data.shape for shard in batch["i"].addressable_shards}
    assert on == dict.fromkeys(layout.devices, (6 // layout.num_devices,))
    # Placing it moves nothing.
    where = {shard.device: np.asarray(shard.data).ravel().tolist() for shard in batch["i"].addressable_shards}
    placed = layout.shard(batch)
    assert where == {shard.device: np.asarray(shard.data).ravel().tolist() for shard in placed["i"].addressable_shards}


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_batch_that_is_partly_sharded_and_partly_on_the_host_is_placed_whole(layout):
    tree = {"there": layout.make_envs(lambda _, index_e: index_e, jax.random.key(0), 4), "host": np.arange(4) + 10}
    placed = layout.shard(tree)
    np.testing.assert_array_equal(placed["there"], [[0, 1], [2, 3]])
    np.testing.assert_array_equal(placed["host"], [[10, 11], [12, 13]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_step_that_reuses_memory_takes_that_of_what_was_placed_and_never_the_callers(layout):
    state = make_state(num_envs=2)
    placed = layout.place(state)
    step = layout.map(lambda s: s.learner.params["w"] + 1, donate=True)
    np.testing.assert_array_equal(layout.first(step(placed)), [1, 2, 3])
    np.testing.assert_array_equal(state.learner.params["w"], [0, 1, 2])
    assert placed.learner.params["w"].is_deleted()


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_mapped_function_has_the_rows_of_its_device_and_the_axis_by_its_name(layout):
    envs = layout.shard({"x": np.arange(4.0), "key": jax.random.split(jax.random.key(0), 4)})
    place, fold_in = layout.replicate(jnp.int32(5)), jax.vmap(jax.random.fold_in)

    def function(envs, place):
        assert envs["x"].shape == envs["key"].shape == (2,)
        index = jax.lax.axis_index("replica")
        total = jax.lax.psum(envs["x"].sum(), "replica")
        return {"total": total, "index": index + place, "key": fold_in(envs["key"], envs["x"].astype(int))}

    out = layout.map(function)(envs, place)
    np.testing.assert_array_equal(out["total"], [6, 6])
    np.testing.assert_array_equal(out["index"], [5, 6])
    expected = fold_in(layout.join_envs(envs)["key"], jnp.arange(4))
    np.testing.assert_array_equal(*map(jax.random.key_data, (layout.join_envs(out["key"]), expected)))


# JAX 0.11 dies of such inputs, which MJX has.
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_arrays_without_elements_may_be_taken_closed_over_and_returned(layout):
    nothing = jnp.zeros((0, 2))
    placed = layout.replicate({"x": np.arange(3.0), "empty": np.zeros((4, 0))})

    def function(tree):
        return {"x": tree["x"] + nothing.sum() + tree["empty"].sum(), "empty": tree["empty"], "nothing": nothing}

    out = layout.first(layout.map(function, donate=True)(placed))
    np.testing.assert_array_equal(out["x"], np.arange(3.0))
    assert (out["empty"].shape, out["nothing"].shape) == ((4, 0), (0, 2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_without_elements_are_as_many_after_a_mapped_function_as_before(layout):
    placed = layout.shard({"x": np.arange(8.0).reshape(8, 1), "empty": np.zeros((8, 0))})
    rows = layout.join_envs(layout.map(lambda tree: jax.tree.map(lambda x: 2 * x, tree))(placed))
    assert (rows["x"].shape, rows["empty"].shape) == ((8, 1), (8, 0))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_step_compiled_ahead_refuses_other_shapes(layout):
    step = layout.compile(lambda state: (state, state.learner.params["w"]), layout.place(make_state(4)), donate=False)
    step(layout.place(make_state(4)))
    with pytest.raises(TypeError, match="compiled"):
        step(layout.place(make_state(8)))


HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture
def hits():
    """The programs that were read from the cache, which holds the smallest ones too."""
    shortest_s = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    events = []

    def listen(event, **_):
        if event == HIT:
            events.append(event)

    jax.monitoring.register_event_listener(listen)
    yield events
    jax.monitoring.unregister_event_listener(listen)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", shortest_s)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("collective", [None, "psum", "pmax", "all_gather", "ppermute"])
def test_cache_holds_programs_without_collectives_alone(name, collective, hits):
    layout = MAPPED[name](jax.devices()[:2], "device")
    reductions = {
        None: lambda x: x,
        "psum": lambda x: jax.lax.psum(x, "device"),
        "pmax": lambda x: jax.lax.pmax(x, "device"),
        "all_gather": lambda x: jax.lax.all_gather(x, "device").sum(0),
        "ppermute": lambda x: jax.lax.ppermute(x, "device", [(0, 1), (1, 0)]),
    }
    placed = layout.shard(np.arange(8.0, dtype=np.float32))

    def double(x):
        return reductions[collective](2 * x)

    first = layout.map(double)(placed)
    hits.clear()
    second = layout.map(double)(placed)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
    assert len(hits) == (1 if collective is None else 0)


def test_compiling_leaves_the_options_of_the_cache_as_they_were():
    before = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    layout = MAPPED["pmap"](jax.devices()[:2], "device")
    mapped = layout.map(lambda x: jax.lax.psum(x, "device") + jnp.float32(1))
    mapped(layout.replicate(np.float32(1)))
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == before
