"""The job of several processes that this one belongs to: finding it, and joining it.

`jax.distributed` does the work. Untried are Kubernetes, TPU pods, GPUs and several machines.
"""

import dataclasses
import importlib.util
import os
import re
import socket
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from ksim.machine import visible_gpus
from ksim.types import ConfigError

_REMIND_AFTER_S = 10.0


@dataclass(frozen=True)
class Job:
    """This process's place in a job of several.

    Attributes:
        source: Who started the job: `ksim.launch`, `options`, `Slurm`, `Open MPI`, `Kubernetes` or `TPU pod`.
        coordinator_address: `host:port` of process 0; None where JAX finds it.
        num_processes: Processes of the job; None where JAX finds it.
        process_id: This one's number; None where JAX finds it.
        local_process_id: Its number on its machine; None where that is not known.
        num_local_processes: Processes on its machine; None where that is not known.
    """

    source: str
    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_process_id: int | None = None
    num_local_processes: int | None = None


def find_job(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Job | None:
    """The job that this process belongs to, by its options or its environment; None where it is on its own.

    Args:
        coordinator_address: Option of that name; it also helps where a cluster does not say it.
        num_processes: Option of that name; 1 says that there is no job, whatever the environment.
        process_id: Option of that name.
        environ: Environment variables.

    Raises:
        ConfigError: The options do not fit each other.
    """
    if num_processes == 1:
        return None
    found = _from_environment(environ)
    if num_processes is None and process_id is None:
        if found is not None and coordinator_address is not None:
            return _replace_address(found, coordinator_address)
        if coordinator_address is not None:
            raise ConfigError(
                f"coordinator_address ({coordinator_address:.200}) needs num_processes and process_id, unless Slurm, "
                "Open MPI or Kubernetes tells them."
            )
        return found
    given = {"coordinator_address": coordinator_address, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ConfigError(
            f"Of coordinator_address, num_processes and process_id, {' and '.join(missing)} must be set as well."
        )
    assert coordinator_address is not None
    assert num_processes is not None
    assert process_id is not None
    _check_address("coordinator_address", coordinator_address)
    if not 0 <= process_id < num_processes:
        raise ConfigError(f"process_id ({process_id}) must be from 0 to num_processes - 1 ({num_processes - 1}).")
    local = (None, None)
    if found is not None and found.source != "ksim.launch":  # which has divided the GPUs
        local = found.local_process_id, found.num_local_processes
    return Job("options", coordinator_address, num_processes, process_id, *local)


def _replace_address(job: Job, address: str) -> Job:
    _check_address("coordinator_address", address)
    return dataclasses.replace(job, coordinator_address=address)


def _check_address(name: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and port.isascii() and len(port) <= 5 and 0 < int(port) < 2**16):
        raise ConfigError(f"{name} ({address!r:.200}) must be of the form HOST:PORT, as in node0:12345.")


def _from_environment(environ: Mapping[str, str]) -> Job | None:
    number = lambda name: int(environ[name]) if environ.get(name, "").isdigit() else None
    if "KSIM_COORDINATOR_ADDRESS" in environ:
        job = Job(
            "ksim.launch",
            environ["KSIM_COORDINATOR_ADDRESS"],
            number("KSIM_NUM_PROCESSES"),
            number("KSIM_PROCESS_ID"),
            number("KSIM_LOCAL_PROCESS_ID"),
            number("KSIM_NUM_LOCAL_PROCESSES"),
        )
        return job if job.num_processes != 1 else None
    # Before Slurm, on whose nodes mpirun starts its own helpers by srun: processes inherit what that sets.
    if (number("OMPI_COMM_WORLD_SIZE") or 1) > 1:
        return Job(
            "Open MPI",
            _open_mpi_address(environ),
            num_processes=number("OMPI_COMM_WORLD_SIZE"),
            process_id=number("OMPI_COMM_WORLD_RANK"),
            local_process_id=number("OMPI_COMM_WORLD_LOCAL_RANK"),
            num_local_processes=number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        )
    # Set by srun for the tasks of a step; a batch script sees those of the job, and is one process.
    if (number("SLURM_STEP_NUM_TASKS") or 1) > 1:
        return Job(
            "Slurm",
            num_processes=number("SLURM_STEP_NUM_TASKS"),
            process_id=number("SLURM_PROCID"),
            local_process_id=number("SLURM_LOCALID"),
            num_local_processes=_first_number(environ.get("SLURM_STEP_TASKS_PER_NODE", "")),
        )
    if "KUBERNETES_SERVICE_HOST" in environ and "JOB_COMPLETION_INDEX" in environ:
        if importlib.util.find_spec("kubernetes") is not None:
            return Job("Kubernetes", process_id=number("JOB_COMPLETION_INDEX"))
        warnings.warn(
            "This is a pod of an indexed Kubernetes job, but without the package that would find the others it runs "
            "alone. To join them: pip install 'jax[k8s]', or give coordinator_address, num_processes and process_id. "
            "If it is to run alone: num_processes=1.",
            stacklevel=2,
        )
    if "," in environ.get("TPU_WORKER_HOSTNAMES", ""):
        return Job("TPU pod")
    return None


def _open_mpi_address(environ: Mapping[str, str]) -> str | None:
    """Where process 0 listens, if Open MPI does not tell JAX: version 5 does not, which matters on one machine only."""
    if "OMPI_MCA_orte_hnp_uri" in environ or environ["OMPI_COMM_WORLD_SIZE"] != environ.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE"
    ):
        return None
    # The same number for all processes of a job, and hardly for another job.
    number = zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode()) % 2**12
    return f"127.0.0.1:{2**16 - 2**12 + number}"


def _first_number(text: str) -> int | None:
    """Of Slurm's "2", "2(x3)" or "2,1" the first number, which is right wherever tasks are spread evenly."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None


def join_job(job: Job, *, connect_timeout_s: int, heartbeat_timeout_s: int) -> None:
    """Connects to the other processes; does nothing where that was done before.

    Args:
        job: This process's place.
        connect_timeout_s: Seconds to wait for the others.
        heartbeat_timeout_s: Seconds after which a process that is not heard of counts as dead.

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
    # Left on, it would swallow every SIGTERM that comes before the training loop catches it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        # A cluster's process id and count go with its own coordinator; with another one all three are given.
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=None if address is None else job.num_processes,
            process_id=None if address is None else job.process_id,
            local_device_ids=local_gpu_ids(job, os.environ),
            # Else a cluster around a job of its own would give every process one GPU.
            cluster_detection_method=None if None in (address, job.num_processes, job.process_id) else "deactivate",
            initialization_timeout=connect_timeout_s + 60,  # the watch is to be first
            # JAX would listen on all interfaces, also where no other machine has any business with the job.
            coordinator_bind_address=address if address is not None and _is_loopback(address) else None,
            heartbeat_timeout_seconds=heartbeat_timeout_s,
            shutdown_timeout_seconds=heartbeat_timeout_s,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error)
        if "before any JAX" in reason:
            raise ConfigError(
                "JAX's backend had started before the processes were connected. Make the task before anything else "
                "uses JAX: no jnp arrays and no jax.devices() at the top of a module."
            ) from error
        raise ConfigError(
            f"The job's processes could not be connected at {where}: {reason.splitlines()[0]} Add coordinator_address="
            "HOST:PORT, a free port of the first process's machine."
        ) from error
    finally:
        watch.end()


class _ConnectionWatch:
    """Says where the process waits for the others, and ends it with exit code 2 when they do not come.

    JAX itself would abort it, with a stack trace and no word of what was waited for.
    """

    def __init__(self, waiting: str, timeout_s: float) -> None:
        def remind() -> None:
            self._say(f"{waiting}, for at most {timeout_s} s (connect_timeout_s).")

        def give_up() -> None:
            self._say(
                f"Error: {waiting} for {timeout_s} s (connect_timeout_s) was in vain. Is every one of them running, "
                "with the same address, and can it reach that port?"
            )
            os._exit(2)

        self._timers = [threading.Timer(_REMIND_AFTER_S, remind), threading.Timer(timeout_s, give_up)]
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        """The others are there, or will not come."""
        for timer in self._timers:
            timer.cancel()

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _wait_for_coordinator(address: str, timeout_s: float) -> None:
    """Returns once process 0 listens; raises ConfigError where it does not within the time."""
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
    """Which of the GPUs that this process sees are its own; None where JAX knows best.

    Left to itself, JAX gives a process under Slurm or Open MPI one GPU, that of its number on its machine, even where
    it is alone there, or sees no other than its own.

    Raises:
        ConfigError: They cannot be divided evenly among the machine's processes.
    """
    if job.source in ("Kubernetes", "TPU pod"):
        return None
    num_gpus, num_local = len(visible_gpus(environ, warnings.warn)), job.num_local_processes or 1
    # Whoever divided them has done so through CUDA_VISIBLE_DEVICES.
    is_divided = job.source == "ksim.launch" or "SLURM_GPUS_PER_TASK" in environ or num_gpus < num_local
    if job.local_process_id is None or is_divided:
        return list(range(num_gpus))
    if num_gpus % num_local:
        raise ConfigError(
            f"Number of GPUs ({num_gpus}) must be divisible by the processes on this machine ({num_local}), or be "
            "divided by CUDA_VISIBLE_DEVICES. Start one process per GPU, or one per machine."
        )
    share = num_gpus // num_local
    return list(range(job.local_process_id * share, (job.local_process_id + 1) * share))


def _is_loopback(address: str) -> bool:
    """Whether an address, as in 127.0.0.1:8476, can be reached from this machine alone."""
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")
