"""Joining a multi-process job, through `jax.distributed`.

Untried: Kubernetes, TPU pods, GPUs and several machines.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping

import jax

from ksim.errors import ConfigError
from ksim.host.machine import visible_gpus
from ksim.host.notices import warn_user
from ksim.parallel.environment import Job as Job, find_job as find_job

_REMIND_AFTER_S = 10.0


def join_job(job: Job, *, connect_timeout_s: int, heartbeat_timeout_s: int) -> None:
    """Connects to the other processes; does nothing if they are connected already.

    Args:
        job: The job to join.
        connect_timeout_s: Seconds to wait for the other processes.
        heartbeat_timeout_s: Seconds without a heartbeat after which a process counts as dead.

    Raises:
        ConfigError: JAX's backend has started already, or the others cannot be reached.
    """
    if jax.distributed.is_initialized():
        return
    address = job.coordinator_address
    if address is not None and job.process_id != 0:
        # JAX would abort the process, with a stack trace.
        _wait_for_coordinator(address, connect_timeout_s)
    where = address or f"the coordinator that {job.source} names"
    waiting = f"Waiting for {job.num_processes or 'all'} processes at {where}"
    watch = _ConnectionWatch(waiting, connect_timeout_s)
    # Otherwise it would swallow every SIGTERM before the training loop installs its handler.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        # Without an address, the cluster provides coordinator, process id and count. With one, all three are passed.
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=None if address is None else job.num_processes,
            process_id=None if address is None else job.process_id,
            local_device_ids=local_gpu_ids(job, os.environ),
            # Otherwise a surrounding cluster would give every process one GPU.
            cluster_detection_method=None if None in (address, job.num_processes, job.process_id) else "deactivate",
            initialization_timeout=connect_timeout_s + 60,  # longer than the watch's timeout, which reports better
            # By default JAX listens on all interfaces, even if the whole job runs on this machine.
            coordinator_bind_address=address if address is not None and _is_loopback(address) else None,
            heartbeat_timeout_seconds=heartbeat_timeout_s,
            shutdown_timeout_seconds=heartbeat_timeout_s,
        )
    except (RuntimeError, ValueError) as error:
        raise _not_connected(str(error), where) from error
    finally:
        watch.end()


def _not_connected(reason: str, where: str) -> ConfigError:
    if "before any JAX" in reason:
        return ConfigError(
            "JAX's backend had started before the processes were connected. Make the task before anything else "
            "uses JAX: no jnp arrays and no jax.devices() at the top of a module."
        )
    return ConfigError(
        f"The job's processes could not be connected at {where}: {reason.splitlines()[0]} Add coordinator_address="
        "HOST:PORT, a free port of the first process's machine."
    )


class _ConnectionWatch:
    """A timer that prints a reminder while the process waits for the others, and exits with code 2 at the timeout.

    JAX itself would abort with a stack trace that does not say what it waited for.
    """

    def __init__(self, waiting: str, timeout_s: float) -> None:
        def remind() -> None:
            self._say(f"{waiting}, for at most {timeout_s} s (connect_timeout_s).")

        def give_up() -> None:
            self._say(
                f"Error: {waiting} for {timeout_s} s (connect_timeout_s) timed out. Is every one of them running, "
                "with the same address, and can it reach that port?"
            )
            os._exit(2)

        self._timers = [threading.Timer(_REMIND_AFTER_S, remind), threading.Timer(timeout_s, give_up)]
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        """Stops the reminders."""
        for timer in self._timers:
            timer.cancel()

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _wait_for_coordinator(address: str, timeout_s: float) -> None:
    """Waits until process 0 listens; raises ConfigError at the timeout."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"Process 0 was not reached at {address} within {timeout_s} s (connect_timeout_s): "
                    f"{error.strerror or error}. Is it running there, and is the port open?"
                ) from error
            time.sleep(0.1)
        else:
            return


def local_gpu_ids(job: Job, environ: Mapping[str, str]) -> list[int] | None:
    """Indices of this process's GPUs among those that it sees; None to leave the choice to JAX.

    Under Slurm or Open MPI, JAX by default gives a process the one GPU whose index is its rank on the machine, even if
    it is the only process there, or sees only its own GPU.

    Raises:
        ConfigError: The GPUs cannot be divided evenly among the machine's processes.
    """
    if job.source in ("Kubernetes", "TPU pod") or environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    place, num_gpus = job.local_process_id, len(visible_gpus(environ, warn_user))
    # If a script has set LOCAL_RANK alone, the number of local processes is unknown; by convention it is a GPU index.
    num_local = num_gpus if job.num_local_processes is None and place is not None else job.num_local_processes or 1
    # In these cases the GPUs are divided already, by CUDA_VISIBLE_DEVICES.
    is_divided = job.source == "ksim.launch" or "SLURM_GPUS_PER_TASK" in environ or num_gpus < num_local
    if place is None or is_divided or place >= num_local:
        return list(range(num_gpus))
    if num_gpus % num_local:
        raise ConfigError(
            f"Number of GPUs ({num_gpus}) must be divisible by the processes on this machine ({num_local}), or be "
            "divided by CUDA_VISIBLE_DEVICES. Start one process per GPU, or one per machine."
        )
    share = num_gpus // num_local
    return list(range(place * share, (place + 1) * share))


def _is_loopback(address: str) -> bool:
    """Whether an address, such as 127.0.0.1:8476, can be reached only from this machine."""
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")
