"""Mapped programs in the compilation cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.parallel.layout import LAYOUTS

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


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("collective", [None, "psum", "pmax", "all_gather", "ppermute"])
def test_cache_holds_programs_without_collectives_alone(name, collective, hits):
    layout = LAYOUTS[name](jax.devices()[:2], "device")
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
    layout = LAYOUTS["pmap"](jax.devices()[:2], "device")
    mapped = layout.map(lambda x: jax.lax.psum(x, "device") + jnp.float32(1))
    mapped(layout.replicate(np.float32(1)))
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == before
