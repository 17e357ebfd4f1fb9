"""Stopping a run from outside."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether a signal has asked the run to stop.

    Attributes:
        signal: The signal's number; None while nothing was asked.
    """

    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal's number, as shells report it."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turns the first SIGINT or SIGTERM into a request to stop after the iteration; a second one stops at once."""
    request = StopRequest()
    previous: dict[int, object] = {}

    def handle(number: int, _: FrameType | None) -> None:
        request.signal = number
        print("Stopping as soon as what is running is done; once more to stop at once.", file=sys.stderr, flush=True)
        for caught in previous:
            signal.signal(caught, signal.SIG_DFL)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handle)
    except ValueError:  # only the main thread may set handlers
        pass
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
