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
    """A file of TensorBoard events, written in the caller's thread, so that the caller can handle a failure."""

    def __init__(self, run_dir: Path, *, first_step: int, header: Sequence[Summary] = ()) -> None:
        """Makes a writer whose file is opened at the first event.

        Args:
            first_step: Events of an earlier run at this step or later are void.
            header: Summaries at the beginning of each file.
        """
        self._run_dir, self._first_step, self._header = run_dir, first_step, header
        self._writer: EventsWriter | None = None
        self._next_flush_s = 0.0
        self._retry_s = 0.0

    def write(self, summary: Summary, step: int) -> None:
        """Writes an event.

        Raises:
            OSError: The event could not be written. Events of the next minute are dropped; then a new file is tried.
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
        """Writes buffered events and closes the file.

        Raises:
            OSError: They could not be written.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> EventsWriter:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        # The file's name has a resolution of one second. The suffix separates runs in the same directory.
        writer = EventsWriter(str(self._run_dir / "events"), f".{os.getpid()}.{time.monotonic_ns()}")
        if self._first_step:
            session = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=time.time(), step=self._first_step, session_log=session))
            # Once: a file that is opened after a failure continues with this run's events.
            self._first_step = 0
        for summary in self._header:
            # At step 0, so that no later run declares it void.
            writer.write_event(Event(wall_time=time.time(), step=0, summary=summary))
        return writer
