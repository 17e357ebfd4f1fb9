"""Joining a multi-process job, through `jax.distributed`.

docs/tested.md lists tested setups: several machines, GPUs, Kubernetes and TPU pods are not among them yet.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import jax

from ksim.checks import check_rule, is_address
from ksim.errors import ConfigError, as_number, quoted
from ksim.host.machine import visible_gpus
from ksim.host.terminal import warn_user

_START = "python -m ksim.launch --nproc-per-node N -m MODULE"
_GPUS = "Here it is CUDA_VISIBLE_DEVICES=0,1 before the command; every process gets its share of them."

_HINTS = {
    "nproc_per_node nprocs np ntasks_per_node": (
        f"Processes are started by {_START}.",
        "Here it is --nproc-per-node N.",
    ),
    "nnodes num_nodes num_machines nodes": (
        "Machines are counted by python -m ksim.launch --nnodes N, run on each of them.",
        "Here it is --nnodes N.",
    ),
    "node_rank machine_rank": (
        "Machines are numbered by python -m ksim.launch --node-rank N, processes by process_id=N.",
        "Here it is --node-rank N.",
    ),
    "master_addr master_address master_port main_process_ip main_process_port rdzv_endpoint dist_url": (
        "Here it is coordinator_address=HOST:PORT, where process 0 listens.",
        "Here it is --coordinator-address HOST:PORT, where process 0 listens.",
    ),
    "world_size num_procs": (
        "Here it is num_processes=N, for a job that is joined by hand.",
        "Here it is --nnodes N and --nproc-per-node M, for N times M processes.",
    ),
    "rank global_rank local_rank": (
        "Here it is process_id=N, for a job that is joined by hand.",
        "Here machines have a --node-rank N, and processes are numbered by the launcher.",
    ),
    "gpu_ids gpus gpu gpu_id device_ids device cuda": (
        "Here it is devices=all, devices=cpu, or devices=[0,1], by index.",
        f"{_GPUS} For none, add devices=cpu after the program's name.",
    ),
    "num_gpus n_gpus ngpus n_gpu gpus_per_node": ("Here it is num_devices=N, of each process.", _GPUS),
    "distributed multi_gpu ddp data_parallel": (
        f"A DistributedPPOTask needs none to train on all devices; several processes are started by {_START}.",
        "Here it needs none: all processes that it starts train together.",
    ),
}
"""By foreign option names: hints for the command lines of a task and of the launcher."""


def hint(name: str, *, to_launcher: bool = False) -> str:
    """A sentence with ksim's own name for an option of another launcher or framework; empty for any other name.

    `name` may have dashes. With `to_launcher`, the option was passed to `ksim.launch` instead of a task.
    """
    plain = name.lstrip("-").replace("-", "_").lower()
    return next((hints[to_launcher] for names, hints in _HINTS.items() if plain in names.split()), "")


_JAX_VARIABLES = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS")
_JAX_LAUNCHER = "a launcher (JAX_NUM_PROCESSES)"
_TORCHRUN_VARIABLES = ("WORLD_SIZE", "RANK", "MASTER_ADDR")
_TORCHRUN_PORT = "29500"
_OTHER_LAUNCHERS = {
    "PMI_SIZE": ("PMI_RANK", "MPICH or Intel MPI"),
    "MV2_COMM_WORLD_SIZE": ("MV2_COMM_WORLD_RANK", "MVAPICH"),
}
"""By the variable with the number of processes: the variable with this process's rank, and the launcher."""
_UNSET_IT = "To run alone, unset it or add num_processes=1"
_RUNS_ALONE = "This process runs alone. If that is intended, add num_processes=1."


@dataclass(frozen=True)
class Job:
    """This process's place in a multi-process job.

    Attributes:
        source: Launcher of the job: `ksim.launch`, `options`, `torchrun`, `Slurm`, `Open MPI`, `Kubernetes`,
            `TPU pod`, or an unnamed launcher that sets JAX's variables.
        coordinator_address: `host:port` of process 0; None if JAX detects it.
        num_processes: Processes of the job; None if JAX detects it.
        process_id: Rank of this process; None if JAX detects it.
        local_process_id: Rank of this process on its machine; None if unknown.
        num_local_processes: Processes on this machine; None if unknown.
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
    """The job that this process belongs to, from its options or its environment; None if it runs alone.

    A `coordinator_address` also replaces the address that a cluster provides. One process (`num_processes`) means no
    job, whatever the environment.

    Warns:
        UserWarning: The environment describes several processes, but lacks variables needed to join them.

    Raises:
        ConfigError: The options contradict each other, or an environment variable is malformed.
    """
    if num_processes == 1:
        return None
    if num_processes is None and process_id is None:
        found = _from_environment(environ)
        if found is not None and coordinator_address is not None:
            return _replace_address(found, coordinator_address)
        if coordinator_address is not None:
            raise ConfigError(
                f"coordinator_address ({coordinator_address:.200}) needs num_processes and process_id, unless Slurm, "
                "Open MPI, torchrun or Kubernetes sets them."
            )
        return found
    return _from_options(coordinator_address, num_processes, process_id, environ)


def _from_options(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None, environ: Mapping[str, str]
) -> Job:
    """The job described by the three options, all of which are required."""
    given = {"coordinator_address": coordinator_address, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        has = ", ".join(f"{name} ({value!r:.200})" for name, value in given.items() if value is not None)
        raise ConfigError(f"{has}: to join a job by hand, {' and '.join(missing)} must be set as well.")
    assert coordinator_address is not None
    assert num_processes is not None
    assert process_id is not None
    _check_address("coordinator_address", coordinator_address)
    is_met = 0 <= process_id < num_processes
    check_rule(f"process_id ({process_id})", is_met, f"from 0 to num_processes - 1 ({num_processes - 1})")
    with contextlib.suppress(ConfigError):  # these variables do not matter here
        found = _from_environment(environ, quiet=True)
        if found is not None and found.source != "ksim.launch":  # ksim.launch has divided the GPUs already
            local = found.local_process_id, found.num_local_processes
            return Job("options", coordinator_address, num_processes, process_id, *local)
    return Job("options", coordinator_address, num_processes, process_id)


def _replace_address(job: Job, address: str, name: str = "coordinator_address") -> Job:
    _check_address(name, address)
    return dataclasses.replace(job, coordinator_address=address)


def _check_address(name: str, address: str) -> None:
    check_rule(f"{name} ({quoted(address, 200)})", is_address(address), "of the form HOST:PORT, as in node0:12345")


def _from_environment(environ: Mapping[str, str], *, quiet: bool = False) -> Job | None:
    number = lambda name: as_number(environ.get(name, ""))
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
    if environ.get("JAX_NUM_PROCESSES") == "1":
        return None
    own = _from_jax_variables(environ)
    started = _from_torchrun(environ) or _from_cluster(environ, number, quiet=quiet)
    if own is not None:
        local = (None, None) if started is None else (started.local_process_id, started.num_local_processes)
        return dataclasses.replace(own, local_process_id=local[0], num_local_processes=local[1])
    address = environ.get("JAX_COORDINATOR_ADDRESS")
    if started is not None and address:
        return _replace_address(started, address, "JAX_COORDINATOR_ADDRESS")  # as JAX itself would
    if started is None and not quiet and (missed := missed_job(environ)):
        warn_user(missed)
    return started


def _from_jax_variables(environ: Mapping[str, str]) -> Job | None:
    """The job described by three variables, set by launchers and scripts. JAX itself reads only the address."""
    if not all(environ.get(name) for name in _JAX_VARIABLES):
        return None
    address = environ["JAX_COORDINATOR_ADDRESS"]
    _check_address("JAX_COORDINATOR_ADDRESS", address)
    count, place = _place(environ, "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    return Job(_JAX_LAUNCHER, address, count, place)


def _from_torchrun(environ: Mapping[str, str]) -> Job | None:
    """The job described by torchrun's variables, which other PyTorch launchers set as well."""
    if not all(environ.get(name) for name in _TORCHRUN_VARIABLES):
        return None
    count, place = _place(environ, "WORLD_SIZE", "RANK")
    if count == 1:
        return None
    host, port = environ["MASTER_ADDR"], environ.get("MASTER_PORT") or _TORCHRUN_PORT
    address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    _check_address("MASTER_ADDR and MASTER_PORT", address)
    # torchrun's own store listens on that port. It is free if the variables were set by hand.
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        head, _, port = address.rpartition(":")
        address = f"{head}:{int(port) + 1 if int(port) < 2**16 - 1 else int(port) - 1}"
    local_count = local_place = None
    if environ.get("LOCAL_RANK"):
        local_place = _whole_number(environ, "LOCAL_RANK")
        if environ.get("LOCAL_WORLD_SIZE"):
            local_count, local_place = _place(environ, "LOCAL_WORLD_SIZE", "LOCAL_RANK")
    return Job("torchrun", address, count, place, local_place, local_count)


def _place(environ: Mapping[str, str], count_name: str, place_name: str) -> tuple[int, int]:
    """The number of processes and this process's rank, checked."""
    count, place = _whole_number(environ, count_name), _whole_number(environ, place_name)
    rule = f"from 0 to {count_name} - 1 ({count - 1}). {_UNSET_IT}"
    check_rule(f"{place_name} ({place})", place < count, rule)
    return count, place


def _whole_number(environ: Mapping[str, str], name: str) -> int:
    value = environ[name].strip()
    is_met = value.isascii() and value.isdecimal() and len(value) < 10
    check_rule(f"{name} ({quoted(environ[name])})", is_met, f"a whole number. {_UNSET_IT}")
    return int(value)


def missed_job(environ: Mapping[str, str] = os.environ) -> str:
    """A warning about a job that the variables describe incompletely; empty if there is none."""
    for names in (_JAX_VARIABLES, _TORCHRUN_VARIABLES):
        given = [name for name in names if environ.get(name)]
        missing = [name for name in names if name not in given]
        size = environ.get(names[0], "")
        # A job gives each process its rank. MASTER_ADDR or WORLD_SIZE=1 may be set permanently on a machine.
        is_sign = size not in ("", "1") if names is _TORCHRUN_VARIABLES else bool(given)
        if missing and is_sign:
            return (
                f"{' and '.join(f'{name}={environ[name]}' for name in given)} describe a job of several processes, but "
                f"{' and '.join(missing)} must be set as well to join it. {_RUNS_ALONE}"
            )
    for count, (place, launcher) in _OTHER_LAUNCHERS.items():
        if (as_number(environ.get(count, "")) or 1) > 1:
            return (
                f"{launcher} has started {environ[count]} processes ({count}), but does not say where the first one "
                f"listens. To join them: coordinator_address=HOST:PORT num_processes={environ[count]} process_id=N, "
                f"which is {place} ({environ.get(place, 'unset')}) here. {_RUNS_ALONE}"
            )
    return ""


def _from_cluster(environ: Mapping[str, str], number: Callable[[str], int | None], *, quiet: bool) -> Job | None:
    """The job of a cluster that JAX supports."""
    # Before Slurm: mpirun starts its helpers by srun on Slurm nodes, so its processes inherit Slurm's variables.
    if (number("OMPI_COMM_WORLD_SIZE") or 1) > 1:
        return Job(
            "Open MPI",
            _open_mpi_address(environ),
            num_processes=number("OMPI_COMM_WORLD_SIZE"),
            process_id=number("OMPI_COMM_WORLD_RANK"),
            local_process_id=number("OMPI_COMM_WORLD_LOCAL_RANK"),
            num_local_processes=number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        )
    # srun sets the STEP variables for its tasks. A batch script sees only the job's variables, and is one process.
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
        if not quiet:
            warn_user(
                "This is a pod of an indexed Kubernetes job, but without the package that would find the others it "
                "runs alone. To join them: pip install 'jax[k8s]', or give coordinator_address, num_processes and "
                "process_id. To run alone, add num_processes=1."
            )
    if "," in environ.get("TPU_WORKER_HOSTNAMES", ""):
        return Job("TPU pod")
    return None


def _open_mpi_address(environ: Mapping[str, str]) -> str | None:
    """Address of process 0, for jobs on one machine under Open MPI 5, which does not provide it to JAX; else None."""
    if "OMPI_MCA_orte_hnp_uri" in environ or environ["OMPI_COMM_WORLD_SIZE"] != environ.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE"
    ):
        return None
    # The same port for all processes of a job, and very likely another one for another job.
    number = zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode()) % 2**12
    return f"127.0.0.1:{2**16 - 2**12 + number}"


def _first_number(text: str) -> int | None:
    """The first number of Slurm's "2", "2(x3)" or "2,1". It holds for all nodes if tasks are spread evenly."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None


_REMIND_AFTER_S = 10.0


def join_job(job: Job, *, connect_timeout_s: int, heartbeat_timeout_s: int) -> None:
    """Connects to the other processes; does nothing if they are connected already.

    A process counts as dead after `heartbeat_timeout_s` without a heartbeat.

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
    # Otherwise it would swallow every SIGTERM before the training loop installs its handler.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with _watched(waiting, connect_timeout_s):
            # Without an address, the cluster provides coordinator, process id and count. With one, all are passed.
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


@contextlib.contextmanager
def _watched(waiting: str, timeout_s: float) -> Iterator[None]:
    """Prints a reminder while the block waits for the other processes, and exits with code 2 at the timeout.

    JAX itself would abort with a stack trace that does not say what it waited for.
    """
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: T201

    def give_up() -> None:
        say(
            f"Error: {waiting} for {timeout_s} s (connect_timeout_s) timed out. Is every one of them running, with the "
            "same address, and can it reach that port?"
        )
        os._exit(2)

    reminder = f"{waiting}, for at most {timeout_s} s (connect_timeout_s)."
    with contextlib.ExitStack() as stack:
        for timer in (threading.Timer(_REMIND_AFTER_S, say, [reminder]), threading.Timer(timeout_s, give_up)):
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)
        yield


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
