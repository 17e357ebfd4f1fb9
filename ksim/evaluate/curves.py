"""Learning curves, read from a run directory."""

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ksim.errors import ConfigError
from ksim.evaluate.evaluator import Estimate
from ksim.log.jsonl import read_evaluations, read_metrics


@dataclasses.dataclass(frozen=True)
class Curves:
    """A run's metrics by iteration (NaN if a line has none) and its evaluations (lines of evaluations.jsonl).

    `date` is the time of the last write to the metrics, as in `2026-11-20 14:05`; empty if unknown.
    """

    name: str
    metrics: dict[str, np.ndarray]
    evaluations: list[dict[str, Any]]
    date: str = ""

    @property
    def env_steps(self) -> np.ndarray:
        """Steps of all environments, by iteration."""
        return self.metrics["env_steps"]

    def evaluated(self, figure: str) -> tuple[np.ndarray, list[Estimate]]:
        """The environment steps and estimates of one quantity, of all evaluations that have it."""
        found = [e for e in self.evaluations if e["figures"].get(figure, {}).get("mean") is not None]
        estimates = [Estimate.of_record(e["figures"][figure]) for e in found]
        return np.array([e["env_steps"] for e in found], float), estimates

    def record(self, max_points: int = 100) -> dict[str, Any]:
        """The curves for JSON, each averaged down to at most `max_points` points, and the evaluations."""
        steps = thinned(self.env_steps, max_points)
        metrics = {name: thinned(x, max_points) for name, x in self.metrics.items() if name != "env_steps"}
        as_list = lambda x: [float(f"{v:.5g}") if np.isfinite(v) else None for v in x]
        curves = {name: as_list(x) for name, x in metrics.items()}
        return {"env_steps": [round(x) for x in steps], "metrics": curves, "evaluations": self.evaluations}


def read_curves(run_dir: Path, name: str | None = None) -> Curves:
    """The curves of a run's directory; raises ConfigError if it holds no metrics, or cannot be read."""
    path = run_dir / "metrics.jsonl"
    try:
        rows, evaluations = read_metrics(run_dir), read_evaluations(run_dir)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}. Set its permissions.") from error
    if not rows:
        raise ConfigError(f"There are no metrics in {path}. Give the directory of a run.")
    names = dict.fromkeys(name for row in rows for name in row)
    metrics = {
        name: np.array([np.nan if row.get(name) is None else row[name] for row in rows], float) for name in names
    }
    written = datetime.datetime.fromtimestamp(path.stat().st_mtime)
    return Curves(name or run_dir.name, metrics, evaluations, f"{written:%Y-%m-%d %H:%M}")


def run_names(paths: Sequence[Path], num_parts: int = 1) -> list[str]:
    """Distinct names of runs: the last parts of their directories' paths, and as many more as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    names = ["/".join(each[-num_parts:]) for each in parts]
    if len(set(names)) < len(set(parts)):
        return run_names(paths, num_parts + 1)
    return [name.encode(errors="replace").decode() for name in names]  # bytes that are not Unicode cannot be plotted


def thinned(values: np.ndarray, max_points: int) -> np.ndarray:
    """Values averaged over at most `max_points` equal intervals; NaN for an interval without finite values."""
    if len(values) <= max_points:
        return values
    stretches = np.array_split(np.asarray(values, float), max_points)
    return np.array([x[np.isfinite(x)].mean() if np.isfinite(x).any() else np.nan for x in stretches])
