"""Displays for a session, and the loop that keeps it in real time. Imports nothing of viser, which is optional."""

import errno
import importlib.util
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from ksim.errors import ConfigError
from ksim.host.machine import install_command
from ksim.host.signals import StopRequest
from ksim.host.terminal import print_line, print_warning
from ksim.viewer.controls import CommandNumber
from ksim.viewer.session import ViewSession

KEYS_HELP = "Hold W S, A D, Q E to drive · space: zero · R: reset · P: push · K: pause · or the stick, or a gamepad"


def check_viser() -> None:
    """Raises ConfigError if the viewer in the browser is not installed."""
    if importlib.util.find_spec("viser") is None:
        raise ConfigError(f"The viewer in the browser needs viser. Run {install_command('viewer')}.")


def free_port(host: str, port: int) -> int:
    """The first free port, starting at `port`.

    Raises:
        ConfigError: There is none, or the host is not an address of this machine.
    """
    for candidate in range(port, 2**16):
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As in servers: a port that was in use a moment ago counts as free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, candidate))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"viewer_host ({host}) must be an address of this machine: {error.strerror}. "
                    "127.0.0.1 is this machine alone, 0.0.0.0 is every network that it is in."
                ) from error
            continue
        return candidate
    raise ConfigError(f"viewer_port ({port}): no port from there on is free. Choose a lower one.")


class Driver:
    """Handler of messages from keyboards, sticks, gamepads and buttons; may be called from any thread.

    Attributes:
        numbers: The steered numbers, at most three: forward, leftward and yaw rate of the first velocity command;
            without one, the first three numbers of all commands.
    """

    def __init__(self, session: ViewSession) -> None:
        self._session = session
        name = session.velocity_command
        self.numbers = [number for number in session.numbers if name in (None, number.command)][:3]

    def __call__(self, message: Mapping[str, Any]) -> None:
        """Handles a message that has passed the gate; unknown indices and names have no effect.

        `{"axes": [a, b, c]}` sets the numbers by deflections from -1 to 1; 0 is a key or stick that was released, and
        None leaves a number as it is. `{"press": name}` is a button: zero, reset, push or pause.
        """
        match message:
            case {"axes": axes}:
                for number, x in zip(self.numbers, axes, strict=False):
                    if x is not None:
                        self._session.set(number, deflected(number, float(x)))
            case {"press": "zero"}:
                self._session.set_to_start()
            case {"press": "reset"}:
                self._session.ask_reset()
            case {"press": "push"}:
                self._session.ask_push()
            case {"press": "pause"}:
                self._session.paused = not self._session.paused


def deflected(number: CommandNumber, x: float) -> float:
    """The value of a number for a stick's deflection, from -1 to 1: its range's end in that direction.

    Without a range, the deflection itself; 0, or the nearest value in the range, for a stick that is let go.
    """
    if number.range is None:
        return x
    low, high = number.range
    return number.clip(x * (high if x > 0 else -low) + 0.0)  # not -0.0


MAX_LAG_S = 0.1
"""Lag in s beyond which the session does not catch up."""

BURST_S = 0.1
"""Largest unused processor time that a budget keeps, in s."""

START_S = 2.0
"""Initial processor time of a budget, in s. Without it the first page takes minutes on a busy machine."""

EARN_S = 0.02
"""Seconds between two checks of the earned time."""

MAX_FAILED_FRAMES = 100
"""Consecutive failed frames after which a session ends with the error."""


class AbstractFrontend(ABC):
    """Displays a session and passes user input to it.

    `frame_s` is the shortest time between two frames, and `note` says which policy is shown; empty for none.
    """

    frame_s: float = 1 / 60
    note: str = ""

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
    """A clock that slows steps down to real time.

    `real_time_factor` is simulated seconds per second, over the last second; 1 before that.
    """

    def __init__(
        self, step_s: float, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._step_s, self._clock, self._sleep = step_s, clock, sleep
        self._due = self._since = clock()
        self._num_steps = 0
        self.real_time_factor = 1.0

    def wait(self) -> None:
        """Waits until the last step is due to end."""
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


class Budget:
    """A limit on the processor time of this process, over all its threads: the earned time."""

    def __init__(
        self,
        earned_s: Callable[[], float],
        *,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begins to count; `earned_s` and `cpu_clock` return the processor time earned and used so far, in s."""
        self._earned_s, self._cpu_clock, self._sleep = earned_s, cpu_clock, sleep
        self._last_s = earned_s() - cpu_clock()
        self._left_s = START_S

    def wait(self) -> None:
        """Sleeps until the used time has been earned. At most `BURST_S` of unused time are kept."""
        self._count()
        while self._left_s < 0:
            self._sleep(EARN_S)
            self._count()

    def _count(self) -> None:
        now_s = self._earned_s() - self._cpu_clock()
        self._left_s = min(self._left_s + now_s - self._last_s, max(self._left_s, BURST_S))
        self._last_s = now_s


def run_session(
    session: ViewSession,
    frontend: AbstractFrontend,
    stop: StopRequest,
    *,
    before_step: Callable[[], None] = lambda: None,
    budget: Budget | None = None,
) -> None:
    """Steps and shows a session in real time until it is closed or stopped.

    `before_step` may wait. Without a budget of processor time, a line is printed if the machine is too slow.

    Raises:
        Exception: The error of a frame, after `MAX_FAILED_FRAMES` failures in a row. A single failure is reported, and
            the next frame is shown.
    """
    pacer, show = Pacer(session.ctrl_dt), _Display(frontend)
    next_frame, said_slow = 0.0, budget is not None
    while frontend.is_open and stop.signal is None:
        before_step()
        session.advance()
        start = time.perf_counter()
        if start >= next_frame:
            show(pacer.real_time_factor)
            # Where drawing is slow, half of the time is left for the steps.
            end = time.perf_counter()
            next_frame = max(start + 0.99 * frontend.frame_s, end + (end - start))
        if budget is not None:
            budget.wait()
        pacer.wait()
        if pacer.real_time_factor < 0.9 and not said_slow:
            said_slow = True
            print_line(f"This machine is too slow for real time. It runs at {pacer.real_time_factor:.2f} of it.")


class _Display:
    """A display that tolerates failed frames, since viser races with pages that open and close."""

    def __init__(self, frontend: AbstractFrontend) -> None:
        self._frontend, self._num_failed, self._said = frontend, 0, ""

    def __call__(self, real_time_factor: float) -> None:
        try:
            self._frontend.show(real_time_factor)
            self._num_failed = 0
        except Exception as error:
            self._num_failed += 1
            if self._num_failed >= MAX_FAILED_FRAMES:
                raise
            said = f"{type(error).__name__}: {error!s:.300}"
            if said != self._said:
                self._said = said
                print_warning(f"A frame of the viewer could not be shown, the viewer continues: {said}")
