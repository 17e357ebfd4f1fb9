"""Metrics and evaluations as lines of JSON: metrics.jsonl and evaluations.jsonl."""

import collections
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksim.host.files import whole_file
from ksim.log.logger import AbstractLogger, RunInfo

METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
_MAX_PENDING = 10_000


class JsonlLogger(AbstractLogger):
    """Writes a line of metrics.jsonl per iteration and one of evaluations.jsonl per evaluation.

    Each line is on its way to the disk when it is written, so that a run that is killed keeps all of them. A metric
    that is not finite is null.
    """

    def open(self, run: RunInfo) -> None:
        self._metrics, self._evaluations = JsonLines(run.run_dir / METRICS), JsonLines(run.run_dir / EVALUATIONS)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._metrics.append({name: value if math.isfinite(value) else None for name, value in metrics.items()})

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._evaluations.append(record)


class JsonLines:
    """A file of one JSON object per line, each written whole or not at all.

    Linux cuts the write of a process that is killed at the end of a page of 4,096 bytes, so its last line may have no
    end: such a line was not written. `ksim.log.records` passes over it, and `cut_lines` removes it.

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
    """Writes a line to the end of an open file, or leaves the file as it was."""
    end, num_written = os.fstat(file).st_size, 0
    try:
        num_written = os.write(file, line)
        if num_written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        if num_written < len(line):
            os.ftruncate(file, end)


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
    """Removes the lines after `iteration`, whose iterations a resumed run repeats.

    Raises:
        OSError: A file cannot be rewritten; it is left unchanged.
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
