"""The watchdog, which ends a hanging run and writes the stacks of its threads."""

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ksim.host.terminal import release_terminal
from ksim.parallel.multihost import is_main_process, num_processes, process_index

logger = logging.getLogger(__name__)

HANG_EXIT_CODE = 70
"""The exit code of a process that the watchdog ended: EX_SOFTWARE of sysexits.h."""
_GRACE_S = 15.0
"""Seconds after the limit until the timer outside the interpreter ends the process, if the thread has not."""
_LAST_S = 4.0
"""Seconds by which process 0 ends after the others. It runs the coordinator, without which JAX aborts them before they
have written their stacks. Less than the time that `ksim.launch` gives it once another process has ended."""


class Watchdog:
    """A limit on the time of watched blocks: past it, the stacks of all threads are written and the process ends.

    A Python thread reports the phase and the stacks. If a library holds the GIL, no Python thread can run; a timer
    outside the interpreter then writes the stacks alone, a little later.
    """

    def __init__(self, limit_s: float | None, log_path: Path) -> None:
        """Watches nothing yet. `limit_s` is None for no limit; stacks are printed and appended to `log_path`."""
        self._limit_s, self._log_path = limit_s, log_path
        self._phase: str | None = None
        self._deadline_s = 0.0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ksim watchdog", daemon=True)
        self._log: TextIO | None = None
        self._linger_s = _LAST_S if num_processes() > 1 and is_main_process() else 0.0

    def __enter__(self) -> "Watchdog":
        if self._limit_s is not None:
            with contextlib.suppress(OSError):  # a full disk
                self._log = self._log_path.open("a")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._limit_s is None:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        if self._log is not None:
            self._log.close()

    @contextlib.contextmanager
    def watching(self, phase: str) -> Iterator[None]:
        """Watches a block. Code that may compile for long should not be watched."""
        if self._limit_s is None:
            yield
            return
        with self._changed:
            self._phase, self._deadline_s = phase, time.monotonic() + self._limit_s
            self._changed.notify()
        faulthandler.dump_traceback_later(
            self._limit_s + _GRACE_S + self._linger_s, exit=True, file=self._log or sys.stderr
        )
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            with self._changed:
                self._phase = None

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                left_s = None if self._phase is None else self._deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    self._end(self._phase)
                self._changed.wait(left_s)

    def _end(self, phase: str | None) -> None:
        message = (
            f"Process {process_index()} hangs: {phase} has taken longer than hang_timeout_s ({self._limit_s:g}). "
            "The stacks of all threads follow; the run ends here, and can be resumed from its last checkpoint."
        )
        for stream in (sys.stderr, self._log):
            # The process ends even if the message cannot be written.
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    print(f"Error: {message}", file=stream, flush=True)
                    faulthandler.dump_traceback(stream, all_threads=True)
        release_terminal()
        time.sleep(self._linger_s)
        os._exit(HANG_EXIT_CODE)
