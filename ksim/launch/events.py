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
    signal.SIGHUP: signal.SIGTERM,  # the terminal was closed: time to save
    signal.SIGUSR1: signal.SIGUSR1,
}


class Ended(NamedTuple):
    """The process at index `place` of the group ended."""

    place: int


class Signaled(NamedTuple):
    """A signal reached the launcher."""

    number: int


class Events:
    """A queue of process ends and signals. As a context manager, it catches the signals in `PASSED_ON`.

    The kernel queues pidfds in an epoll as their processes end, so the order of ends is kept even if several end while
    the launcher sleeps. Without pidfds (macOS, old kernels) one thread waits per process, and ends within
    milliseconds of each other may be reordered.
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
        """Adds a process whose end is an event."""
        if self._epoll is not None:
            descriptor = os.pidfd_open(process.pid)
            self._pidfds[descriptor] = place
            self._epoll.register(descriptor, select.EPOLLIN)
        else:
            threading.Thread(target=self._wait_for, args=(place, process), daemon=True).start()

    def next(self, timeout_s: float | None) -> Ended | Signaled | None:
        """The next event; None after `timeout_s` seconds. A `timeout_s` of None means no limit."""
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
