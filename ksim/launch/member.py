"""One process of a group."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ksim.host.machine import process_state
from ksim.launch.output import AbstractOutput

_CHILD = Path(__file__).parent / "child.py"


@dataclass
class Member:
    """One process of a group.

    Attributes:
        process_id: Its global id.
        process: The process; None before the start.
        was_stopped: Whether it was stopped, as by SIGSTOP, when the group was ended.
        was_killed: Whether the launcher sent SIGKILL.
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

        Args:
            program: Arguments of the interpreter.
            environment: Its complete environment.
            cores: The CPU cores to bind it to; empty to leave it unbound.
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
