"""Displays for a session, and the loop that keeps it in real time."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from ksim.host.signals import StopRequest
from ksim.host.terminal import print_line
from ksim.viewer.session import ViewSession

MAX_LAG_S = 0.1
"""Lag beyond this is dropped: the session does not catch up."""

FRAME_S = 1 / 60
"""Shortest time between two frames."""


class AbstractFrontend(ABC):
    """Displays a session and passes user input to it."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the display is open."""

    @abstractmethod
    def show(self, real_time_factor: float) -> None:
        """Shows the state of the session and the real-time factor."""

    @abstractmethod
    def close(self) -> None:
        """Closes the display."""


class Pacer:
    """Makes steps take as long as they simulate, if the machine is fast enough.

    Attributes:
        real_time_factor: Simulated seconds per second, over the last second; 1 before that.
    """

    def __init__(
        self,
        step_s: float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step_s, self._clock, self._sleep = step_s, clock, sleep
        self._due = self._since = clock()
        self._num_steps = 0
        self.real_time_factor = 1.0

    def wait(self) -> None:
        """Returns when the last step should be over."""
        self._due += self._step_s
        early = self._due - self._clock()
        if early > 0:
            self._sleep(early)
        elif early < -MAX_LAG_S:
            self._due = self._clock()
        self._num_steps += 1
        elapsed = self._clock() - self._since
        if elapsed >= 1:
            self.real_time_factor = self._num_steps * self._step_s / elapsed
            self._since, self._num_steps = self._clock(), 0


def run_session(session: ViewSession, frontend: AbstractFrontend, stop: StopRequest) -> None:
    """Steps and shows a session in real time until it is closed or stopped."""
    pacer = Pacer(session.ctrl_dt)
    next_frame, said_slow = 0.0, False
    while frontend.is_open and stop.signal is None:
        session.advance()
        start = time.perf_counter()
        if start >= next_frame:
            frontend.show(pacer.real_time_factor)
            # Where drawing is slow, half of the time is left for the steps.
            end = time.perf_counter()
            next_frame = max(start + 0.99 * FRAME_S, end + (end - start))
        pacer.wait()
        if pacer.real_time_factor < 0.9 and not said_slow:
            said_slow = True
            print_line(f"This machine is too slow for real time. It runs at {pacer.real_time_factor:.2f} of it.")
