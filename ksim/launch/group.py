"""The processes of a node, started together and stopped together if one fails."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ksim.host.machine import process_state
from ksim.host.signals import OUT_OF_TIME_EXIT_CODE
from ksim.launch.devices import DeviceShares
from ksim.launch.events import PASSED_ON, Ended, Events
from ksim.launch.options import LaunchOptions
from ksim.launch.output import AbstractOutput, FileOutput, PrefixedOutput, Pump, prefix_of, say

_CHILD = Path(__file__).parent / "child.py"


@dataclass
class Member:
    """One process of a group, by its global id.

    `was_stopped` is whether it was stopped, as by SIGSTOP, when the group was ended, `was_killed` whether the launcher
    sent SIGKILL.
    """

    process_id: int
    output: AbstractOutput
    process: subprocess.Popen[bytes] | None = None
    running: bool = False
    was_stopped: bool = False
    was_killed: bool = False

    @property
    def popen(self) -> subprocess.Popen[bytes]:
        """The started process."""
        assert self.process is not None
        return self.process

    @property
    def return_code(self) -> int:
        """The exit code, or -n for signal n, of a process that has ended."""
        return self.popen.returncode

    def start(self, program: Sequence[str], environment: Mapping[str, str], cores: Sequence[int]) -> None:
        """Starts it in a separate session, so that Ctrl-C in a terminal reaches it once, from the launcher.

        `program` is the interpreter's arguments, `environment` is complete, and without `cores` it is left unbound.
        """
        # -I -S: starts fast, and imports nothing that the program might not want.
        tie = [sys.executable, "-I", "-S", str(_CHILD), str(os.getpid()), ",".join(map(str, cores))]
        stdout, stderr = self.output.targets()
        self.process = process = subprocess.Popen(
            [*tie, sys.executable, *program],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            stdout=stdout,
            stderr=stderr,
        )
        self.running = True
        self.output.started(process)

    def is_stopped(self) -> bool:
        """Whether it is stopped; always False without /proc."""
        return process_state(self.popen.pid) in ("T", "t")

    def kill_group(self) -> None:
        """Kills it and everything in its process group."""
        with contextlib.suppress(OSError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def has_leftovers(self) -> bool:
        """Whether its process group still has members after its own end."""
        try:
            os.killpg(self.popen.pid, 0)
        except OSError:
            return False
        return True


_HERE = Path(__file__).parent
_DRAIN_S = 1.0
_LEFTOVERS_S = 2.0


class Group:
    """The processes of this node. `was_signaled`: the launcher received a stop or warning signal while they ran."""

    def __init__(self, options: LaunchOptions, device_shares: DeviceShares, variables: Mapping[str, str]):
        """Makes a group that is not running yet, with `variables` added to the launcher's environment.

        Raises:
            ConfigError: A log cannot be written.
        """
        self._options, self._shares, self._variables = options, device_shares, variables
        self._pump = Pump()
        first = options.first_process_id
        self._members = [Member(i, self._make_output(i)) for i in range(first, first + options.nproc_per_node)]
        self._ended: list[Member] = []
        self._stop_signal: int | None = None
        self.first_failure: Member | None = None
        self.was_signaled = False
        # Exit codes at max_runtime and after a queue's warning, to this node or another. Stop signals add theirs.
        self._planned_codes = {OUT_OF_TIME_EXIT_CODE, 128 + signal.SIGUSR1}
        self._kill_at: float | None = None

    def run(self, events: Events, guard: subprocess.Popen[bytes]) -> int:
        """Starts all processes, waits for their ends, and returns the launcher's exit code."""
        self._guard = guard
        say(f"{describe_start(self._options)} {self._shares.describe()}")
        try:
            for index in range(len(self._members)):
                self._start(index, events)
            self._pump.start()
            while any(member.running for member in self._members):
                self._step(events)
        finally:
            for member in self._members:
                if member.running:
                    member.kill_group()
        self._pump.finish(_DRAIN_S)
        if self.first_failure is not None:
            say(describe_failure(self.first_failure, self._ended, self._options))
            return exit_code(self.first_failure.return_code)
        if self._stop_signal is not None and any(member.return_code for member in self._members):
            return 128 + self._stop_signal
        return max(exit_code(member.return_code) for member in self._members)

    def lost_index(self) -> int:
        """Index of the process to drop: a stopped process, else the first that failed."""
        assert self.first_failure is not None
        stopped = [member for member in self._members if member.was_stopped]
        return self._members.index((stopped or [self.first_failure])[0])

    def wait_for_leftovers(self) -> None:
        """Waits, at most `_LEFTOVERS_S` seconds, until the processes' own children are gone."""
        deadline_s = time.monotonic() + _LEFTOVERS_S
        while any(member.has_leftovers() for member in self._members) and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def _make_output(self, process_id: int) -> AbstractOutput:
        if self._options.log_dir is None:
            return PrefixedOutput(process_id, self._pump)
        return FileOutput(self._options.log_dir / f"process_{process_id}.out")

    def _start(self, index: int, events: Events) -> None:
        member = self._members[index]
        cores = self._shares.cores[index] if self._shares.cores is not None else []
        member.start(self._options.program, self._environment(index), cores)
        self._tell_guard(f"+{member.popen.pid}")
        events.watch(index, member.popen)

    def _environment(self, index: int) -> dict[str, str]:
        options = self._options
        environment = {
            **os.environ,
            **self._variables,
            "KSIM_COORDINATOR_ADDRESS": options.coordinator_address,
            "KSIM_NUM_PROCESSES": str(options.num_processes),
            "KSIM_PROCESS_ID": str(self._members[index].process_id),
            "KSIM_NUM_LOCAL_PROCESSES": str(options.nproc_per_node),
            "KSIM_LOCAL_PROCESS_ID": str(index),
            "PYTHONUNBUFFERED": "1",
        }
        if options.log_dir is None and sys.stdout.isatty():  # tables of a process fit beside the prefix
            columns = shutil.get_terminal_size().columns - len(prefix_of(self._members[index].process_id))
            environment["KSIM_COLUMNS"] = str(columns)
        if self._shares.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._shares.gpus[index])
        return environment

    def _step(self, events: Events) -> None:
        """Waits for the next event, and handles it."""
        event = events.next(None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic()))
        if isinstance(event, Ended):
            self._on_end(self._members[event.place])
        elif event is not None:
            self._on_signal(event.number)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()

    def _on_end(self, member: Member) -> None:
        member.running = False
        # The id of a process group is not reused while the group has members.
        member.kill_group()
        code = member.popen.wait()
        self._tell_guard(f"-{member.popen.pid}")
        self._ended.append(member)
        if self.first_failure is None and not member.was_killed and exit_code(code) not in {0, *self._planned_codes}:
            self.first_failure = member
            self._end_group()

    def _end_group(self) -> None:
        """Sends SIGTERM to the other processes, and schedules SIGKILL after the grace period."""
        others = [member for member in self._members if member.running]
        if others and self.first_failure is not None:
            first = f"Process {self.first_failure.process_id} {describe_end(self.first_failure.return_code)}"
            say(f"{first}; the others have {self._options.grace_s:g} s to end as well.")
        for member in others:
            member.was_stopped = member.is_stopped()
        for member in others:
            member.popen.send_signal(signal.SIGTERM)
            # A stopped process would not receive SIGTERM.
            member.popen.send_signal(signal.SIGCONT)
        self._kill_at = time.monotonic() + self._options.grace_s

    def _on_signal(self, number: int) -> None:
        self.was_signaled = True
        running = [member for member in self._members if member.running]
        if number == signal.SIGUSR1:
            for member in running:
                member.popen.send_signal(number)
        elif self._stop_signal is None and self.first_failure is None:
            self._stop_signal = number
            self._planned_codes.add(128 + PASSED_ON[signal.Signals(number)])
            say(f"{signal_name(number)} is passed on to {len(running)} of the processes; a second one kills them.")
            for member in running:
                member.popen.send_signal(PASSED_ON[signal.Signals(number)])
        else:
            self._kill()

    def _kill(self) -> None:
        self._kill_at = None
        for member in self._members:
            if member.running:
                member.was_killed = True
                member.kill_group()

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()


@contextlib.contextmanager
def start_guard() -> Iterator[subprocess.Popen[bytes]]:
    """Starts the program that kills the processes' own children if the launcher is killed; see `guard.py`."""
    command = [sys.executable, "-I", "-S", str(_HERE / "guard.py")]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield guard
    finally:
        guard.communicate()


def signal_name(number: int) -> str:
    """The name of a signal, as in SIGTERM for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(return_code: int) -> int:
    """The exit code as shells report it: 128 + n for a return code of -n (signal n)."""
    return return_code if return_code >= 0 else 128 - return_code


def describe_end(return_code: int) -> str:
    """The end of a process in words, as in 'was killed by SIGKILL'."""
    if return_code < 0:
        return f"was killed by {signal_name(-return_code)}"
    if return_code > 128 and return_code - 128 in set(signal.Signals):
        return f"ended with exit code {return_code} (128 + {signal_name(return_code - 128)})"
    return f"ended with exit code {return_code}"


def describe_start(options: LaunchOptions) -> str:
    """A line about the started processes."""
    first, num_local, total = options.first_process_id, options.nproc_per_node, options.num_processes
    here = f"process {first}" if num_local == 1 else f"processes {first} to {first + num_local - 1}"
    log = "" if options.log_dir is None else f" Their output: {options.log_dir}{os.sep}process_N.out."
    return (
        f"Node {options.node_rank} of {options.nnodes} starts {here} of {total}, coordinator "
        f"{options.coordinator_address}.{log}"
    )


def describe_failure(first: Member, ended: Sequence[Member], options: LaunchOptions) -> str:
    """A report of the first failure: the process, its exit, its last lines, and the ends of the others.

    `ended` holds all processes, in the order of their ends.
    """
    stopped = [member for member in ended if member.was_stopped]
    where = "" if options.nnodes == 1 else f" of node {options.node_rank}"
    parts = [f"Process {first.process_id} failed first{where}: it {describe_end(first.return_code)}."]
    if first.return_code == -signal.SIGKILL:
        parts.append("Linux does that to a process when memory runs out: see dmesg.")
    for member in stopped:
        parts.append(
            f"Process {member.process_id} was stopped then (by SIGSTOP or a debugger), and processes that wait for it "
            "fail: look there first."
        )
    if options.nnodes > 1:
        parts.append("Check the launchers of the other nodes too: one failed process ends all.")
    lines = [" ".join(parts)]
    lines += [_describe_rest(member, options.grace_s) for member in ended if member is not first]
    last = first.output.last_lines()
    lines.append(f"Last lines of process {first.process_id}:" if last else f"Process {first.process_id} wrote nothing.")
    lines += [f"    {line}" for line in last]
    if first.output.path is not None:
        lines.append(f"All of them are in {first.output.path}.")
    return "\n".join(lines)


def _describe_rest(member: Member, grace_s: float) -> str:
    if member.was_killed:
        return f"Process {member.process_id} had not ended {grace_s:g} s after SIGTERM, and was killed."
    if exit_code(member.return_code) == 128 + signal.SIGTERM:
        return f"Process {member.process_id} ended at SIGTERM."
    return f"Process {member.process_id} {describe_end(member.return_code)}."
