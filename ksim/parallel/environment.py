"""Detection of this process's multi-process job, from options and environment variables.

Untried: Kubernetes, TPU pods, GPUs and several machines.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ksim.checks import check_rule, is_host
from ksim.errors import ConfigError, as_number, shown
from ksim.host.notices import warn_user

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

    Args:
        coordinator_address: The option of that name. It also replaces the address that a cluster provides.
        num_processes: The option of that name; 1 means no job, whatever the environment.
        process_id: The option of that name.

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
        raise ConfigError(f"To join a job by hand, {' and '.join(missing)} must be set as well.")
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
    host, colon, port = address.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and len(port) <= 5 and 0 < int(port) < 2**16
    is_met = is_host(host.strip("[]")) and bool(colon) and is_port
    check_rule(f"{name} ({shown(address, 200)})", is_met, "of the form HOST:PORT, as in node0:12345")


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
    check_rule(f"{name} ({shown(environ[name])})", is_met, f"a whole number. {_UNSET_IT}")
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
