"""Restarts after a failure, from the run's newest checkpoint."""

import contextlib
import dataclasses
import signal
import tempfile
import time
from pathlib import Path
from typing import IO

from ksim.errors import ConfigError, as_number
from ksim.launch.devices import DeviceShares
from ksim.launch.events import Events
from ksim.launch.group import Group, exit_code, start_guard
from ksim.launch.options import LaunchOptions, free_address
from ksim.launch.output import say

_INVALID_INPUT = 2
_ASKED_TO_STOP = 128 + signal.SIGINT, 128 + signal.SIGTERM


def run_to_the_end(options: LaunchOptions, shares: DeviceShares) -> int:
    """Runs the processes, and restarts them as the options say; returns the launcher's exit code.

    Raises:
        ConfigError: A log or a temporary file cannot be written.
    """
    if options.max_restarts == 0:
        group = Group(options, shares, {})
        with Events() as events, start_guard() as guard:
            return group.run(events, guard)
    try:
        note = tempfile.NamedTemporaryFile(prefix="ksim-run-dir-")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"--max-restarts needs a directory for temporary files: {error}. Set TMPDIR.") from error
    try:
        return _Restarts(options, shares, note).run()
    finally:
        with contextlib.suppress(OSError):  # removed by a cleaner of temporary files
            note.close()


class _Restarts:
    """Successive groups of processes, each of the same size as the one before or smaller.

    Process 0 writes the run's directory in the temporary file `note`, which stays open: its name may be removed.
    """

    def __init__(self, options: LaunchOptions, shares: DeviceShares, note: IO[bytes]):
        self._options, self._shares, self._note = options, shares, note
        self._variables = {"KSIM_RUN_DIR_FILE": note.name, "KSIM_LAUNCHED_S": str(time.monotonic())}
        self._num_restarts = 0
        self._num_fitting: int | None = None

    def run(self) -> int:
        """See `run_to_the_end`."""
        options, shares = self._options, self._shares
        group = Group(options, shares, self._variables)
        with Events() as events, start_guard() as guard:
            while True:
                code = group.run(events, guard)
                left = None if group.first_failure is None else self._left(group, options.nproc_per_node, events)
                if left is None:
                    return code
                group.wait_for_leftovers()
                options, shares = self._options_of(len(left)), shares.of(left)
                group = Group(options, shares, self._variables)

    def _left(self, group: Group, num: int, events: Events) -> list[int] | None:
        """Indices of the processes that the next group keeps; None if there is no next group."""
        assert group.first_failure is not None
        code, least = exit_code(group.first_failure.return_code), self._options.min_nproc or num
        if self._is_asked_to_stop(group, events, code):
            say("There is no restart, because the launcher or the process was asked to stop.")
            return None
        if code == _INVALID_INPUT:
            # Fewer processes may not fit the program. If a number that fitted before is refused, that is not the cause.
            if self._num_fitting is not None and least < num < self._num_fitting:
                say(f"The program refused to go on in {num} processes; the next attempt is with {num - 1}.")
                return list(range(num - 1))
            say("There is no restart after exit code 2: the same input would be invalid again.")
            return None
        self._num_fitting = num
        if self._num_restarts == self._options.max_restarts:
            say(f"There is no restart left of {self._num_restarts} (--max-restarts).")
            return None
        self._num_restarts += 1
        left = [i for i in range(num) if num == least or i != group.lost_index()]
        count, most = self._num_restarts, self._options.max_restarts
        processes = "1 process" if len(left) == 1 else f"{len(left)} processes"
        say(f"Restart {count} of {most} in {processes}, from {self._origin()}.")
        return left

    @staticmethod
    def _is_asked_to_stop(group: Group, events: Events, code: int) -> bool:
        # With nothing running, the only events are signals.
        return group.was_signaled or code in _ASKED_TO_STOP or events.next(0.0) is not None

    def _options_of(self, num: int) -> LaunchOptions:
        """The options of a restart with `num` processes."""
        options, run_dir = self._options, self._run_dir()
        program, resumed = options.program, ()
        if run_dir is not None:
            resumed = (f"run_dir={run_dir}", "resume=auto")
            program = tuple(argument for argument in program if not argument.startswith(("run_dir=", "resume=")))
        return dataclasses.replace(
            options,
            nproc_per_node=num,
            coordinator_address=free_address() if options.picks_port else options.coordinator_address,
            program=(*program, *resumed),
        )

    def _run_dir(self) -> str | None:
        """The run's directory; None if it had none yet."""
        self._note.seek(0)
        return self._note.read().decode() or None

    def _origin(self) -> str:
        """The starting point of a restart, in words."""
        run_dir = self._run_dir()
        if run_dir is None:
            return "the beginning: the run had no directory yet"
        try:
            saved = [as_number(path.name) for path in (Path(run_dir) / "checkpoints").iterdir()]
        except OSError:
            saved = []
        newest = max((number for number in saved if number is not None), default=None)
        if newest is None:
            return f"the beginning: there is no checkpoint yet in {run_dir}"
        return f"the checkpoint of iteration {newest} in {run_dir}"
