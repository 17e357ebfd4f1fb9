"""Learning curves, read back from a run's directory."""

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ksim.errors import ConfigError
from ksim.evaluate.estimates import Estimate

_LARGEST = 1e300


@dataclasses.dataclass(frozen=True)
class Curves:
    """A run's metrics by iteration, and its evaluations.

    Attributes:
        name: The run's name.
        metrics: By name, a value per iteration; NaN where a line has none.
        evaluations: Lines of evaluations.jsonl.
    """

    name: str
    metrics: dict[str, np.ndarray]
    evaluations: list[dict[str, Any]]

    @property
    def env_steps(self) -> np.ndarray:
        """Control steps over all environments, by iteration."""
        return self.metrics["env_steps"]

    def evaluated(self, figure: str) -> tuple[np.ndarray, list[Estimate]]:
        """Control steps, and what evaluations found of a figure then."""
        found = [e for e in self.evaluations if e["figures"].get(figure, {}).get("mean") is not None]
        nan = lambda x: float("nan") if x is None else x
        estimates = [Estimate(**{k: nan(v) for k, v in e["figures"][figure].items()}) for e in found]
        return np.array([e["env_steps"] for e in found], float), estimates

    def record(self, max_points: int = 100) -> dict[str, Any]:
        """The curves for JSON, each averaged down to so many points, and the evaluations."""
        steps = thinned(self.env_steps, max_points)
        metrics = {name: thinned(x, max_points) for name, x in self.metrics.items() if name != "env_steps"}
        as_list = lambda x: [float(f"{v:.5g}") if np.isfinite(v) else None for v in x]
        curves = {name: as_list(x) for name, x in metrics.items()}
        return {"env_steps": [round(x) for x in steps], "metrics": curves, "evaluations": self.evaluations}


def read_curves(run_dir: Path, name: str | None = None) -> Curves:
    """The curves of a run's directory.

    Raises:
        ConfigError: It holds no metrics, or cannot be read.
    """
    path = run_dir / "metrics.jsonl"
    try:
        rows, evaluations = _read_lines(path, _is_metrics), read_evaluations(run_dir)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}. Set its permissions.") from error
    if not rows:
        raise ConfigError(f"There are no metrics in {path}. Give the directory of a run.")
    names = dict.fromkeys(name for row in rows for name in row)
    metrics = {name: np.array([np.nan if row.get(name) is None else row[name] for row in rows]) for name in names}
    return Curves(name or run_dir.name, metrics, evaluations)


def read_evaluations(run_dir: Path) -> list[dict[str, Any]]:
    """What the evaluations of a run found, in their order; lines that are none are left out, with a warning.

    Raises:
        OSError: Their file cannot be read.
    """
    return _read_lines(run_dir / "evaluations.jsonl", _is_evaluation)


def thinned(values: np.ndarray, max_points: int) -> np.ndarray:
    """Values averaged over equal stretches, at most so many; a stretch without a number stays without one."""
    if len(values) <= max_points:
        return values
    stretches = np.array_split(np.asarray(values, float), max_points)
    return np.array([x[np.isfinite(x)].mean() if np.isfinite(x).any() else np.nan for x in stretches])


def _read_lines(path: Path, fits: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none where there is no file.

    Warns:
        UserWarning: A line is no such record, and left out.

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
        elif line.endswith(b"\n"):  # not the last of a run that was killed while it wrote
            warnings.warn(f"{path}: line {number} is not what a run writes, and is left out.", stacklevel=2)
    return rows


def _is_metrics(row: Any) -> bool:
    """Whether a line of metrics.jsonl is what a run writes."""
    return isinstance(row, dict) and _is_place(row) and all(map(_is_figure, row.values()))


def _is_evaluation(row: Any) -> bool:
    """Whether a line of evaluations.jsonl is what a run writes."""
    if not (isinstance(row, dict) and _is_place(row) and isinstance(row.get("figures"), dict)):
        return False
    names = {field.name for field in dataclasses.fields(Estimate)}
    is_estimate = lambda x: isinstance(x, dict) and x.keys() == names and all(map(_is_figure, x.values()))
    return "return" in row["figures"] and all(map(is_estimate, row["figures"].values()))


def _is_place(row: dict[str, Any]) -> bool:
    iteration, env_steps = row.get("iteration"), row.get("env_steps")
    return type(iteration) is int and 0 <= iteration < 2**63 and _is_figure(env_steps) and env_steps is not None


def _is_figure(x: Any) -> bool:
    return x is None or (type(x) in (int, float) and abs(x) < _LARGEST)
