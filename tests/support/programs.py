"""Compiled programs: what is in one, and keeping their number in bounds."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
from jax._src import compiler

MAPS = Path("/proc/self/maps")
MANY = 20_000
_kept: dict[Any, Any] = {}


def keep_programs() -> None:
    """Keeps this process's programs that JAX's compilation cache cannot hold: those with collectives.

    Many tests train the same tiny tasks on two devices. What a worker compiled itself may be used again.
    """
    compile_anew = compiler._compile_and_write_cache

    def compile_once(backend: Any, computation: Any, devices: Any, options: Any, callbacks: Any, *names: Any) -> Any:
        if callbacks or jax.config.values["jax_persistent_cache_min_compile_time_secs"] < math.inf:
            return compile_anew(backend, computation, devices, options, callbacks, *names)
        key = (names, str(devices))
        if key not in _kept:
            _kept[key] = compile_anew(backend, computation, devices, options, callbacks, *names)
        return _kept[key]

    compiler._compile_and_write_cache = compile_once


def free_programs() -> None:
    """Drops all compiled programs where there are many.

    XLA maps memory for each on a CPU, and Linux allows a process 65,530 maps: beyond, the process is aborted.
    """
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        _kept.clear()
        jax.clear_caches()


def operations(compiled: Any) -> Counter[str]:
    """The number of occurrences of each XLA operation in a compiled program."""
    return Counter(re.findall(r"= \S+ ([a-z0-9-]+)\(", compiled.as_text()))
