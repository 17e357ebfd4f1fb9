"""Readers of a run's output: the lines of metrics.jsonl and evaluations.jsonl, and its videos."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
