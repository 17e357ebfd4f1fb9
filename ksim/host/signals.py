"""Stopping a run before it is done."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

OUT_OF_TIME_EXIT_CODE = 75
"""The exit code of a run that `max_runtime` stopped: EX_TEMPFAIL of sysexits.h, so a script knows to queue it again."""
STOPPING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
"""What asks a run to stop; the last is what Slurm can be told to send some time before the end of a job."""
_REPEAT_S = 1.0
"""For so long another SIGTERM is the first one again, by another way: a process manager's, and a launcher's."""


class StopRequest:
    """Whether the run has been asked to stop.

    Attributes:
        signal: The number of the signal that asked; None while none has.
        is_out_of_time: Whether `max_runtime` is over.
        has_failed: Whether something failed whose error is raised once all processes know.
    """

    signal: int | None = None
    is_out_of_time: bool = False
    has_failed: bool = False

    @property
    def is_made(self) -> bool:
        """Whether the run is to stop, for whatever reason."""
        return self.signal is not None or self.is_out_of_time or self.has_failed

    @property
    def reason(self) -> str | None:
        """Why, in words."""
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
    """Turns the first signal into a request to stop after the iteration; SIGINT or SIGTERM then stop at once.

    But for a SIGTERM within a second of the first one, which is the same request.
    """
    request = StopRequest()
    previous: dict[int, object] = {}

    def handle(number: int, _: FrameType | None) -> None:
        request.signal = number
        for caught in previous:
            # A warning that comes twice, from a queue and a launcher, is no more than a warning.
            ends_at_once = caught == signal.SIGINT or (caught == signal.SIGTERM and number != signal.SIGTERM)
            signal.signal(caught, signal.SIG_DFL if ends_at_once else signal.SIG_IGN)
        # Not by sys.stderr: the signal may have come while that was being written to, and whatever fails here would be
        # raised wherever the run happens to be.
        with contextlib.suppress(OSError):
            os.write(2, b"Stopping as soon as what is running is done; once more to stop at once.\n")
        if number == signal.SIGTERM:
            # By waiting: later only the default action can end the process while it is in a library's code.
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
    """Ignores SIGTERM from here on, in a process that is about to end by itself. Only SIGKILL ends it sooner."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
