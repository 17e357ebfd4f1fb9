"""Signals and limits that stop a run early."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ksim.host.terminal import Activity, release_terminal

OUT_OF_TIME_EXIT_CODE = 75
"""Exit code of a run stopped by `max_runtime`: EX_TEMPFAIL of sysexits.h, so that scripts can requeue it."""
STOPPING_NOTICE = "Stopping as soon as what is running is done; once more to stop at once."
STOPPING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
"""Signals that stop a run. Slurm can be set to send SIGUSR1 some time before a job's time limit."""
_REPEAT_S = 1.0
"""Seconds in which a second SIGTERM counts as a copy of the first: process managers and launchers both send one."""


class StopRequest:
    """A request to stop the run, and its reason: a signal, the end of `max_runtime`, or an error.

    An error is raised once all processes know of it.
    """

    signal: int | None = None
    is_out_of_time: bool = False
    has_failed: bool = False

    @property
    def is_made(self) -> bool:
        """Whether the run is to stop, for any reason."""
        return self.signal is not None or self.is_out_of_time or self.has_failed

    @property
    def reason(self) -> str | None:
        """The signal or `max_runtime`, as text; None for other reasons."""
        if self.signal is not None:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        return "max_runtime" if self.is_out_of_time else None

    @property
    def exit_code(self) -> int:
        """0, 128 + the signal's number, as shells report it, or `OUT_OF_TIME_EXIT_CODE`."""
        if self.signal is not None:
            return 128 + self.signal
        return OUT_OF_TIME_EXIT_CODE if self.is_out_of_time else 0


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turns the first signal into a request to stop after the iteration. A later SIGINT or SIGTERM stops at once.

    A SIGTERM within a second of a first SIGTERM is ignored: it is the same request, sent twice.
    """
    request = StopRequest()
    previous: dict[int, object] = {}

    def handle(number: int, _: FrameType | None) -> None:
        request.signal = number
        for caught in previous:
            # SIGUSR1 never stops at once: a queue and a launcher may both send the same warning.
            ends_at_once = caught == signal.SIGINT or (caught == signal.SIGTERM and number != signal.SIGTERM)
            signal.signal(caught, signal.SIG_DFL if ends_at_once else signal.SIG_IGN)
        if Activity.show is not None:
            Activity.notice = STOPPING_NOTICE
            release_terminal()
        else:
            # Not through sys.stderr: the signal may interrupt a write to it, and an error here would be raised at an
            # arbitrary point of the run.
            with contextlib.suppress(OSError):
                os.write(2, f"{STOPPING_NOTICE}\n".encode())
        if number == signal.SIGTERM:
            # Wait here: only the default action, set below, can end the process while it runs a library's native code.
            time.sleep(_REPEAT_S)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    try:
        for number in STOPPING:
            previous[number] = signal.signal(number, handle)
    except ValueError:  # only the main thread may set handlers
        pass
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def ignore_termination() -> None:
    """Ignores SIGTERM from now on, in a process that is about to end anyway. SIGKILL still ends it."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
