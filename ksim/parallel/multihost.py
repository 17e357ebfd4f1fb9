"""Host-side communication between the processes of a job.

Nothing here is traced. Functions that gather or wait must be called by all processes.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ksim.errors import ConfigError, RunError
from ksim.host.machine import process_state
from ksim.host.signals import ignore_termination
from ksim.types import Device

_ENDING_S = 2.0
"""Seconds that a process may take to end after its connection broke."""


class PeerFailedError(RunError):
    """Another process of the job has failed, so this one cannot continue."""


def num_processes() -> int:
    """Number of processes of the job; 1 without a job. Does not start JAX's backend."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def process_index() -> int:
    """This process's rank in the job; 0 without a job. Does not start JAX's backend."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_main_process() -> bool:
    """Whether this is process 0, which alone prints and writes the run's files."""
    return process_index() == 0


def gather_rows(row: np.ndarray) -> np.ndarray:
    """The rows of all processes, of shape (processes, *row.shape)."""
    if num_processes() == 1:
        return row[None]
    # One device of each process: jax.experimental.multihost_utils wants as many of all, and takes them all.
    first_of: dict[int, Device] = {}
    for device in jax.devices():
        first_of.setdefault(device.process_index, device)
    mesh = Mesh(np.asarray([first_of[i] for i in range(num_processes())]), ("process",))
    own = jax.device_put(row[None], first_of[process_index()])
    rows = jax.make_array_from_single_device_arrays(
        (num_processes(), *row.shape), NamedSharding(mesh, PartitionSpec("process")), [own]
    )
    replicated = jax.jit(_identity, out_shardings=NamedSharding(mesh, PartitionSpec()))(rows)
    return np.asarray(replicated.addressable_shards[0].data)


def _identity(x: jax.Array) -> jax.Array:
    return x


def gather_texts(text: str) -> list[str]:
    """The texts of all processes, in their order."""
    if num_processes() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    lengths = gather_rows(np.asarray(len(data), np.int32))
    padded = gather_rows(np.pad(data, (0, int(lengths.max()) - len(data))))
    return [bytes(row[:length]).decode() for row, length in zip(padded, lengths, strict=True)]


def wait_for_all() -> None:
    """A barrier over all processes."""
    gather_rows(np.zeros((), np.int32))


@dataclass(frozen=True)
class Peers:
    """Machines and process ids of the job, to name a lost process."""

    hosts: tuple[str, ...]
    pids: tuple[int, ...]

    def describe_lost(self) -> str:
        """Processes of this machine that have ended or hang, as text; if none, the other machines."""
        # A killed process's connections close a moment before it counts as ended.
        deadline_s = time.monotonic() + _ENDING_S
        while not (found := self._find_lost()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if found:
            return "; ".join(found)
        elsewhere = sorted({host for host in self.hosts if host != self.hosts[process_index()]})
        return f"one on {' or '.join(elsewhere)}" if elsewhere else "none on this machine has ended"

    def _find_lost(self) -> list[str]:
        own, found = self.hosts[process_index()], []
        for process, (host, pid) in enumerate(zip(self.hosts, self.pids, strict=True)):
            if host == own and process != process_index() and (condition := _condition(pid)) is not None:
                found.append(f"process {process} (pid {pid} on {host}) {condition}")
        return found


def meet_peers() -> Peers:
    """Gathers the machine and process id of every process."""
    said = [text.rsplit(" ", 1) for text in gather_texts(f"{socket.gethostname()} {os.getpid()}")]
    return Peers(tuple(host for host, _ in said), tuple(int(pid) for _, pid in said))


def _condition(pid: int) -> str | None:
    """The fault of a process on this machine, as text; None if there is none, or no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    conditions = {"Z": "has ended", "X": "has ended", "T": "is stopped (SIGSTOP)", "t": "is held by a debugger"}
    state = process_state(pid)
    return "has ended" if state is None else conditions.get(state)


@contextlib.contextmanager
def name_lost_peers(peers: Peers, doing: Callable[[], str]) -> Iterator[None]:
    """Names the lost process if a collective of the block fails, and what this one was doing, as in `in iteration 7`.

    Raises:
        PeerFailedError: Another process could not be reached.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        words = ("gloo", "nccl", "coordination service", "heartbeat")
        is_told = isinstance(error, ConfigError | RunError)
        if num_processes() == 1 or is_told or not any(word in str(error).lower() for word in words):
            raise
        raise PeerFailedError(
            f"Process {process_index()} of {num_processes()} lost the others {doing()}: {peers.describe_lost()}. "
            f"Its own output and log say why. ({str(error).splitlines()[0][:200]})"
        ) from error


@contextlib.contextmanager
def fail_together() -> Iterator[None]:
    """Runs a block in every process. If it fails in one, it fails in all, and the error names the process.

    Without it the others would wait forever in their next collective. The block must hold no collective itself.

    Raises:
        ConfigError: Invalid input, here or in another process.
        PeerFailedError: Another process failed with another error.
    """
    failure: Exception | SystemExit | None = None
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again below, after the others have been notified
        failure = error
        if num_processes() > 1:
            # The notified processes may end first, and a launcher would then stop this one before it reports its error.
            ignore_termination()
    kind = "" if failure is None else "ConfigError" if isinstance(failure, ConfigError) else type(failure).__name__
    try:
        told = gather_texts("" if failure is None else f"{kind}\n{failure}")
    except Exception as error:
        # Another process is gone. If this one failed too, its own error is more useful.
        raise error if failure is None else failure from error
    if failure is not None:
        raise failure
    for process, text in enumerate(told):
        if text:
            kind, _, message = text.partition("\n")
            said = f"Process {process}: {message}"
            raise ConfigError(said) if kind == "ConfigError" else PeerFailedError(f"{said} ({kind})")
