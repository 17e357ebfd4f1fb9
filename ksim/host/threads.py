"""How many threads XLA's pool has on a CPU; see "Threads" in docs/internals.md."""

import os
import re
from pathlib import Path

import jaxlib.version

from ksim.host.machine import num_cores

JAXLIB_VERSION = jaxlib.version.__version__
_SIZE = "PJRT_NPROC"
_OWN_SIZE = "KSIM_PJRT_NPROC"
"""The size that ksim set, so that a process started by this one, with other devices, does not take it for a user's."""
_CALLS_PER_DEVICE = 3
"""Batched LAPACK calls that a device's program may have in flight: two of MJX's step, and one of a reset or a term."""
_FIRST_WITHOUT_WAITING = (0, 11, 1)
"""The jaxlib whose LAPACK calls no longer wait for the pool's threads."""


def thread_pool_size(jaxlib_version: str, num_cores: int, num_host_devices: int) -> int | None:
    """The fewest threads with which XLA's pool is fast and cannot deadlock; None: XLA's own choice, one per core.

    Before jaxlib 0.11.1, a LAPACK call on a large batch (Cholesky, triangular solve, ...) gives its matrices to the
    pool's threads and waits for them, often on one of these threads. If all threads wait, nothing computes, for ever.
    One thread more than there are calls in flight always computes. Threads beyond that cost speed.

    Args:
        jaxlib_version: As in `0.10.2`.
        num_cores: Cores that the process may use.
        num_host_devices: Devices that its CPU is given.
    """
    if tuple(int(part) for part in re.findall(r"\d+", jaxlib_version)[:3]) >= _FIRST_WITHOUT_WAITING:
        return None
    return max(num_cores, _CALLS_PER_DEVICE * num_host_devices + 1)


def size_thread_pool(num_cpu_devices: int) -> None:
    """Sets PJRT_NPROC where the user has not. JAX reads it when its backend starts.

    Args:
        num_cpu_devices: The value of `jax_num_cpu_devices`; XLA_FLAGS may ask for more.
    """
    if os.environ.get(_SIZE) != os.environ.get(_OWN_SIZE):
        return
    flags = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    size = thread_pool_size(JAXLIB_VERSION, num_cores(), max(1, num_cpu_devices, *map(int, flags)))
    for name in (_SIZE, _OWN_SIZE):
        os.environ.pop(name, None)
        if size is not None:
            os.environ[name] = str(size)


def expected_pool_size() -> int:
    """Threads that XLA's pool will have on one device, read from the variables that XLA reads."""
    sizes = [os.environ.get(name, "") for name in (_SIZE, "NPROC")]
    return next((int(size) for size in sizes if size.isdecimal()), num_cores())


def num_pool_threads() -> int | None:
    """Threads of XLA's pool in this process, counted; None without /proc, or before JAX's backend has started."""
    names = [_read(path) for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("tf_XLAEigen") or None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the thread has ended
        return ""
