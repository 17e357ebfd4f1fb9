"""Compiled programs: what is in one, and keeping their number in bounds."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax

MAPS = Path("/proc/self/maps")
MANY = 20_000


def free_programs() -> None:
    """Drops all compiled programs where there are many.

    XLA maps memory for each on a CPU, and Linux allows a process 65,530 maps: beyond, the process is aborted.
    """
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()


def operations(compiled: Any) -> Counter[str]:
    """The number of occurrences of each XLA operation in a compiled program."""
    return Counter(re.findall(r"= \S+ ([a-z0-9-]+)\(", compiled.as_text()))
