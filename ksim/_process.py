"""Settings of the process that must be in place before a JAX backend starts.

Applied by `import ksim`, never over a value that the user has set. Each setting prevents an observed failure: a thread
pool that deadlocks in batched LAPACK calls, a collective that aborts while one device still computes, and a compilation
repeated at every start.
"""

import os
import time
import warnings
from pathlib import Path

import jax

from ksim.host.threads import expected_pool_size, size_thread_pool

STARTED_S = time.monotonic()
"""When this process imported ksim, on the monotonic clock."""
_XLA_FLAGS = {
    # Devices of one CPU may reach a collective minutes apart; XLA's default aborts the process after one.
    "xla_cpu_collective_call_terminate_timeout_seconds": "1200",
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": "600",
}


def prepare_process() -> None:
    """Sets environment variables, the compilation cache and warning filters where the user has not."""
    size_thread_pool(jax.config.values["jax_num_cpu_devices"])
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"--{name}={value}" for name, value in _XLA_FLAGS.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()
    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache_home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
        # A program is compiled for a number of threads, which is not part of JAX's cache keys.
        directory = cache_home / "ksim" / "programs" / f"{expected_pool_size()}_threads"
        jax.config.update("jax_compilation_cache_dir", str(directory))
    shortest_s = "jax_persistent_cache_min_compile_time_secs"
    if shortest_s.upper() not in os.environ and jax.config.values[shortest_s] == 1.0:
        # JAX's default, a second, leaves out several programs of every start.
        jax.config.update(shortest_s, 0.1)
    warnings.filterwarnings("ignore", module=r"omegaconf\.")
    warnings.filterwarnings("ignore", message=r".*omegaconf.*", category=DeprecationWarning)


prepare_process()
