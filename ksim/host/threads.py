"""The size of XLA's thread pool on a CPU; see "Threads" in docs/internals.md."""

import os
import re
from pathlib import Path

import jaxlib.version

from ksim.host.machine import num_cores

JAXLIB_VERSION = jaxlib.version.__version__
_SIZE = "PJRT_NPROC"
_OWN_SIZE = "KSIM_PJRT_NPROC"
"""The size that ksim set. A child process with other devices thereby knows that it was not set by the user."""
_CALLS_PER_DEVICE = 3
"""Batched LAPACK calls in flight per device: two in MJX's step, and one in a reset or a term."""
_FIRST_WITHOUT_WAITING = (0, 11, 1)
"""First jaxlib version whose LAPACK calls do not wait for the pool's threads."""


def thread_pool_size(jaxlib_version: str, num_cores: int, num_host_devices: int) -> int | None:
    """Smallest size of XLA's pool that is fast and cannot deadlock; None for XLA's default, one thread per core.

    Before jaxlib 0.11.1, a LAPACK call on a large batch (Cholesky, triangular solve, ...) gives its matrices to the
    pool's threads and waits for them, often on one of these threads. If all threads wait, the program hangs. With one
    thread more than there are calls in flight, one thread is always free to compute. More threads cost speed.

    `num_cores` are those that the process may use; `num_host_devices` are JAX's devices on the CPU.
    """
    if tuple(int(part) for part in re.findall(r"\d+", jaxlib_version)[:3]) >= _FIRST_WITHOUT_WAITING:
        return None
    return max(num_cores, _CALLS_PER_DEVICE * num_host_devices + 1)


def size_thread_pool(num_cpu_devices: int) -> None:
    """Sets PJRT_NPROC, which JAX's backend reads when it starts, unless the user has set it.

    `num_cpu_devices` is the value of `jax_num_cpu_devices`; XLA_FLAGS may set a larger number.
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
    """Number of threads that XLA's pool will have with one device, from the environment variables that XLA reads."""
    sizes = [os.environ.get(name, "") for name in (_SIZE, "NPROC")]
    return next((int(size) for size in sizes if size.isdecimal()), num_cores())


def num_pool_threads() -> int | None:
    """Number of running pool threads in this process; None without /proc, or before JAX's backend has started."""
    names = [_read(path) for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("tf_XLAEigen") or None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the thread has ended
        return ""
