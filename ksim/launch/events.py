"""Events of a group, in order: ends of processes and signals to the launcher."""

import os
import queue
import select
import signal
import subprocess
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

PASSED_ON = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,  # the terminal went away: time to save
    signal.SIGUSR1: signal.SIGUSR1,
}


class Ended(NamedTuple):
    """A process ended.

    Attributes:
        place: Its index in the group.
    """

    place: int


class Signaled(NamedTuple):
    """A signal reached the launcher.

    Attributes:
        number: The signal.
    """

    number: int


class Events:
    """Waits for ends of processes and for signals; a context in which `PASSED_ON` are caught.

    The kernel puts pidfds into an epoll's list as their processes end, so that the first to end comes out first even if
    both ended while the launcher slept. Without pidfds (macOS, old kernels) one thread waits per process, and ends
    that are less than milliseconds apart may be taken for each other.
    """

    def __init__(self) -> None:
        self._epoll = _make_epoll()
        self._pidfds: dict[int, int] = {}
        self._queue: queue.SimpleQueue[Ended | Signaled] = queue.SimpleQueue()
        self._previous: Mapping[int, Any] = {}

    def __enter__(self) -> "Events":
        self._wake_read, self._wake_write = os.pipe()
        if self._epoll is not None:
            self._epoll.register(self._wake_read, select.EPOLLIN)
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()  # nohup
        self._previous = {number: signal.signal(number, self._handle) for number in set(PASSED_ON) - ignored}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        for descriptor in (self._wake_read, self._wake_write, *self._pidfds):
            os.close(descriptor)
        if self._epoll is not None:
            self._epoll.close()

    def watch(self, place: int, process: subprocess.Popen[bytes]) -> None:
        """Also waits for the end of this process."""
        if self._epoll is not None:
            descriptor = os.pidfd_open(process.pid)
            self._pidfds[descriptor] = place
            self._epoll.register(descriptor, select.EPOLLIN)
        else:
            threading.Thread(target=self._wait_for, args=(place, process), daemon=True).start()

    def next(self, timeout_s: float | None) -> Ended | Signaled | None:
        """The next event; None after the timeout.

        Args:
            timeout_s: Seconds to wait; None: no limit.
        """
        if self._epoll is None:
            try:
                return self._queue.get(timeout=timeout_s)
            except queue.Empty:
                return None
        for descriptor, _ in self._epoll.poll(timeout_s, maxevents=1):
            if descriptor == self._wake_read:
                return Signaled(os.read(descriptor, 1)[0])
            self._epoll.unregister(descriptor)
            os.close(descriptor)
            return Ended(self._pidfds.pop(descriptor))
        return None

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._epoll is None:
            self._queue.put(Signaled(number))
        else:
            os.write(self._wake_write, bytes([number]))

    def _wait_for(self, place: int, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._queue.put(Ended(place))


def _make_epoll() -> Any:
    """An epoll if the kernel has pidfds as well, else None."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        return select.epoll()
    except (AttributeError, OSError):
        return None
