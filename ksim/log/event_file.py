"""A file of TensorBoard events."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

_FLUSH_S = 30.0
_RETRY_S = 60.0


class EventFile:
    """TensorBoard events, written in the caller's thread: a failure is raised where it can be handled."""

    def __init__(self, run_dir: Path, *, first_step: int, header: Sequence[Summary] = ()) -> None:
        """Makes a writer whose file is opened at the first event.

        Args:
            run_dir: The run's directory.
            first_step: Events of this step and later ones, which a run before this one may have written, are void.
            header: What each file begins with.
        """
        self._run_dir, self._first_step, self._header = run_dir, first_step, header
        self._writer: EventsWriter | None = None
        self._next_flush_s = 0.0
        self._retry_s = 0.0

    def write(self, summary: Summary, step: int) -> None:
        """Writes an event.

        Raises:
            OSError: It could not be written. Those of the next minute are left out; then a new file is tried.
        """
        if time.monotonic() < self._retry_s:
            return
        try:
            if self._writer is None:
                self._writer = self._open()
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            if time.monotonic() >= self._next_flush_s:
                self._writer.flush()
                self._next_flush_s = time.monotonic() + _FLUSH_S
        except OSError:
            self._retry_s = time.monotonic() + _RETRY_S
            with contextlib.suppress(OSError):
                self.close()
            raise

    def close(self) -> None:
        """Writes what is left.

        Raises:
            OSError: It could not be written.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> EventsWriter:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        # Named by the second, which two runs in the same directory may share.
        writer = EventsWriter(str(self._run_dir / "events"), f".{os.getpid()}.{time.monotonic_ns()}")
        if self._first_step:
            session = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=time.time(), step=self._first_step, session_log=session))
            # Once: a file that is opened after a failure continues with this run's events.
            self._first_step = 0
        for summary in self._header:
            # Of the very first step, so that no later run declares it void.
            writer.write_event(Event(wall_time=time.time(), step=0, summary=summary))
        return writer
