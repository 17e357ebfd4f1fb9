"""Where metrics go: metrics.jsonl, evaluations.jsonl and TensorBoard. None of them ever ends a run."""

import collections
import contextlib
import errno
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from ksim.host.failures import Failures
from ksim.host.files import whole_file

METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
_MAX_PENDING = 10_000
_FLUSH_S = 30.0
_RETRY_S = 60.0


class JsonLines:
    """A file of one JSON object per line, each written whole or not at all.

    What cannot be written, as on a full disk, is kept and written before the next line; so much of it that the oldest
    is given up in the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: collections.deque[bytes] = collections.deque(maxlen=_MAX_PENDING)

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a line, and those before it that could not be written.

        Raises:
            OSError: It could not be written; the file ends with the last whole line.
        """
        self._pending.append(json.dumps(record).encode() + b"\n")
        # Opened anew, so that a directory that was removed or mounted elsewhere is noticed.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            while self._pending:
                _append_whole(file, self._pending[0])
                self._pending.popleft()
        finally:
            os.close(file)


def _append_whole(file: int, line: bytes) -> None:
    """Writes a line to the end of an open file, or leaves the file as it was."""
    end, num_written = os.fstat(file).st_size, 0
    try:
        num_written = os.write(file, line)
        if num_written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        if num_written < len(line):
            os.ftruncate(file, end)


class TensorBoard:
    """TensorBoard events, written in the caller's thread, so that a failure is seen where it can be dealt with."""

    def __init__(self, run_dir: Path, *, first_step: int) -> None:
        """Makes a writer whose file is opened at the first event.

        Args:
            run_dir: The run's directory.
            first_step: Events of this step and later ones, which a run before this one may have written, are void.
        """
        self._run_dir, self._first_step = run_dir, first_step
        self._writer: EventsWriter | None = None
        self._next_flush_s = 0.0
        self._retry_s = 0.0

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Writes scalars.

        Raises:
            OSError: They could not be written. Those of the next minute are left out; then a new file is tried.
        """
        if time.monotonic() < self._retry_s:
            return
        try:
            if self._writer is None:
                self._writer = self._open()
            summary = Summary(value=[Summary.Value(tag=name, simple_value=x) for name, x in values.items()])
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
            # Once: a file that is opened after a failure goes on with this run's own events.
            self._first_step = 0
        return writer


class MetricsWriter:
    """Writes a line of metrics.jsonl per iteration, one of evaluations.jsonl per evaluation, and TensorBoard events.

    Every line is on its way to the disk when it is written, so that a run that is killed keeps all of them. A metric
    that is not finite (the mean return while no episode has ended) is null in the line and left out of TensorBoard.
    """

    def __init__(self, run_dir: Path, failures: Failures, *, tensorboard: bool, first_step: int = 0) -> None:
        """Makes a writer.

        Args:
            run_dir: The run's directory.
            failures: Told of what cannot be written.
            tensorboard: Whether to write TensorBoard events.
            first_step: Environment steps from which on earlier events are void.
        """
        self._failures = failures
        self._metrics, self._evaluations = JsonLines(run_dir / METRICS), JsonLines(run_dir / EVALUATIONS)
        self._tensorboard = TensorBoard(run_dir, first_step=first_step) if tensorboard else None

    def write(self, metrics: dict[str, float], *, env_steps: int) -> None:
        """Writes the metrics of one iteration; TensorBoard's step is the number of environment steps."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with self._failures.absorbed("writing of metrics"):
            self._metrics.append(finite)
        self._write_events({name: value for name, value in finite.items() if value is not None}, env_steps)

    def write_evaluation(self, record: dict[str, Any]) -> None:
        """Writes what `Evaluation.record` says, with its `iteration` and `env_steps`."""
        with self._failures.absorbed("writing of evaluations"):
            self._evaluations.append(record)
        estimates = record["figures"] | {"return_gap": record["return_gap"] or {}}
        values = {}
        for name, estimate in estimates.items():
            for part, value in estimate.items():
                if value is not None:
                    values[f"eval/{name}" + ("" if part == "mean" else f"_{part}")] = value
        self._write_events(values, record["env_steps"])

    def _write_events(self, values: Mapping[str, float], step: int) -> None:
        if self._tensorboard is not None:
            with self._failures.absorbed("writing of TensorBoard events"):
                self._tensorboard.write(values, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._tensorboard is not None:
            with self._failures.absorbed("writing of TensorBoard events"):
                self._tensorboard.close()


def set_lines_aside(run_dir: Path) -> int:
    """Renames the files of lines to `<name>.before`, unless what an earlier call has kept there is longer.

    Returns:
        Lines of metrics that there were.

    Raises:
        OSError: A file cannot be read or renamed.
    """
    paths = run_dir / METRICS, run_dir / f"{METRICS}.before"
    num_lines, num_kept = (path.read_bytes().count(b"\n") if path.is_file() else 0 for path in paths)
    if num_lines > num_kept:
        # Metrics last: until they are there, the next attempt does the same.
        for name in (EVALUATIONS, METRICS):
            if (run_dir / name).is_file():
                (run_dir / name).replace(run_dir / f"{name}.before")
    return num_lines


def cut_lines(run_dir: Path, iteration: int) -> None:
    """Removes the lines of iterations that a run which goes on after `iteration` will do again.

    Raises:
        OSError: A file cannot be written anew; it is left as it is.
    """
    for path in (run_dir / METRICS, run_dir / EVALUATIONS):
        if not path.is_file():
            continue
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _is_up_to(line, iteration)]
        if kept != lines:
            with whole_file(path) as temporary:
                temporary.write_bytes(b"".join(kept))


def _is_up_to(line: bytes, iteration: int) -> bool:
    try:
        return line.endswith(b"\n") and json.loads(line)["iteration"] <= iteration
    except (ValueError, KeyError, TypeError, RecursionError):  # half a line of a process that was killed, or damage
        return False
