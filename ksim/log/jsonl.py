"""Metrics and evaluations as lines of JSON: metrics.jsonl and evaluations.jsonl."""

import collections
import errno
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ksim.host.files import write_whole
from ksim.log.logger import AbstractLogger, RunInfo

_LARGEST = 1e300
_ESTIMATE = {"mean", "low", "high"}


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of a run's iterations, in order. Invalid lines are left out, with a warning.

    Raises:
        OSError: Their file cannot be read.
    """
    return _read_lines(run_dir / "metrics.jsonl", _is_metrics)


def read_evaluations(run_dir: Path) -> list[dict[str, Any]]:
    """The records of a run's evaluations, in order. Invalid lines are left out, with a warning.

    Raises:
        OSError: Their file cannot be read.
    """
    return _read_lines(run_dir / "evaluations.jsonl", _is_evaluation)


def find_films(run_dir: Path) -> list[Path]:
    """The MP4 videos of a run or an evaluation, the newest last."""
    return sorted((run_dir / "videos").glob("*.mp4"), key=lambda film: film.stat().st_mtime)


def _read_lines(path: Path, fits: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; an empty list if there is no file.

    Warns:
        UserWarning: A line is not a valid record, and is left out.

    Raises:
        OSError: The file cannot be read.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if fits(row):
            rows.append(row)
        elif line.endswith(b"\n"):  # complete: not the last line of a run that was killed while writing
            warnings.warn(f"{path}: line {number} is not what a run writes, and is left out.", stacklevel=2)
    return rows


def _is_metrics(row: Any) -> bool:
    """Whether a line of metrics.jsonl is a valid record."""
    return isinstance(row, dict) and _is_place(row) and all(map(_is_figure, row.values()))


def _is_evaluation(row: Any) -> bool:
    """Whether a line of evaluations.jsonl is a valid record."""
    if not (isinstance(row, dict) and _is_place(row) and isinstance(row.get("figures"), dict)):
        return False
    is_estimate = lambda x: isinstance(x, dict) and x.keys() >= _ESTIMATE and all(map(_is_figure, x.values()))
    return "return" in row["figures"] and all(map(is_estimate, row["figures"].values()))


def _is_place(row: dict[str, Any]) -> bool:
    iteration, env_steps = row.get("iteration"), row.get("env_steps")
    return type(iteration) is int and 0 <= iteration < 2**63 and _is_figure(env_steps) and env_steps is not None


def _is_figure(x: Any) -> bool:
    return x is None or (type(x) in (int, float) and abs(x) < _LARGEST)


METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
_MAX_PENDING = 10_000


class JsonlLogger(AbstractLogger):
    """Writes a line of metrics.jsonl per iteration and one of evaluations.jsonl per evaluation.

    Lines are not buffered in the process, so a run that is killed keeps all of them. A non-finite metric is null.
    """

    def open(self, run: RunInfo) -> None:
        self._metrics, self._evaluations = JsonLines(run.run_dir / METRICS), JsonLines(run.run_dir / EVALUATIONS)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._metrics.append({name: value if math.isfinite(value) else None for name, value in metrics.items()})

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._evaluations.append(record)


class JsonLines:
    """A file of one JSON object per line, each written whole or not at all.

    If a process is killed, Linux cuts its write at a page boundary (4,096 bytes), so the last line may be incomplete.
    Such a line counts as not written: `ksim.log.jsonl` skips it, and `cut_lines` removes it.

    Lines that cannot be written, for example on a full disk, are kept and written before the next line. At most 10,000
    lines are kept; then the oldest is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: collections.deque[bytes] = collections.deque(maxlen=_MAX_PENDING)

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a line, after the earlier lines that could not be written.

        Raises:
            OSError: The line could not be written. The file ends with the last whole line.
        """
        self._pending.append(json.dumps(record).encode() + b"\n")
        # Opened for every line, so that a directory that was removed or mounted elsewhere is noticed.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            while self._pending:
                _append_whole(file, self._pending[0])
                self._pending.popleft()
        finally:
            os.close(file)


def _append_whole(file: int, line: bytes) -> None:
    """Appends a line to an open file, or leaves the file unchanged."""
    end, num_written = os.fstat(file).st_size, 0
    try:
        num_written = os.write(file, line)
        if num_written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        if num_written < len(line):
            os.ftruncate(file, end)


def set_lines_aside(run_dir: Path) -> int:
    """Renames metrics.jsonl and evaluations.jsonl to `<name>.before`; returns the number of lines in the first.

    Files that an earlier call has kept there are not replaced by files with fewer lines of metrics.

    Raises:
        OSError: A file cannot be read or renamed.
    """
    paths = run_dir / METRICS, run_dir / f"{METRICS}.before"
    num_lines, num_kept = (path.read_bytes().count(b"\n") if path.is_file() else 0 for path in paths)
    if num_lines > num_kept:
        # Metrics last: if this fails before, the next attempt repeats all of it.
        for name in (EVALUATIONS, METRICS):
            if (run_dir / name).is_file():
                (run_dir / name).replace(run_dir / f"{name}.before")
    return num_lines


def cut_lines(run_dir: Path, iteration: int) -> None:
    """Removes the lines of iterations after `iteration`, which a resumed run repeats.

    Raises:
        OSError: A file cannot be rewritten; it is left unchanged.
    """
    for path in (run_dir / METRICS, run_dir / EVALUATIONS):
        if not path.is_file():
            continue
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _is_up_to(line, iteration)]
        if kept != lines:
            write_whole(path, b"".join(kept))


def _is_up_to(line: bytes, iteration: int) -> bool:
    try:
        return line.endswith(b"\n") and json.loads(line)["iteration"] <= iteration
    except (ValueError, KeyError, TypeError, RecursionError):  # an incomplete line of a killed process, or damage
        return False
