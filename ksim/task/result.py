"""The result of a run, as returned by `task.run()`."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ksim.errors import ConfigError
from ksim.host.files import data_url
from ksim.log.jsonl import find_films, read_evaluations, read_metrics
from ksim.task.config import imported


@dataclass(frozen=True)
class Artifact:
    """A plot or a video of a run; notebooks display it.

    Attributes:
        path: The PNG or MP4 file.
    """

    path: Path

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix == ".png" else None

    def _repr_html_(self) -> str | None:
        if self.path.suffix != ".mp4":
            return None
        return f'<video controls loop muted autoplay src="{data_url(self.path.read_bytes(), "video/mp4")}"></video>'


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of `task.run()`. Files of the run are read from its directory on first access.

    Attributes:
        exit_code: 0; 75 if `max_runtime` stopped the run, to be resumed; 128 + n if signal n stopped it.
        run_dir: The run's directory; in run modes other than train, the directory of the checkpoint's run.
        checkpoint: The checkpoint that was read; None in `run_mode=train`.
        evaluation: Result of `run_mode=eval`, as in evaluation.json; None in other run modes.
        output_dir: The directory of plots and videos, if it is not the run's.
    """

    exit_code: int
    run_dir: Path
    checkpoint: Path | None = None
    evaluation: Mapping[str, Any] | None = None
    output_dir: Path | None = None

    @functools.cached_property
    def metrics(self) -> dict[str, Float[np.ndarray, " iterations"] | Int[np.ndarray, " iterations"]]:
        """The lines of metrics.jsonl as columns, one row per iteration, including those before the run was resumed.

        NaN where a line has null or lacks the metric. Empty in run modes other than train, and without a
        `JsonlLogger`.

        Raises:
            OSError: The file cannot be read.
        """
        rows = [] if self.checkpoint is not None else read_metrics(self.run_dir)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _column([row.get(name) for row in rows]) for name in names}

    @functools.cached_property
    def evaluations(self) -> Sequence[Mapping[str, Any]]:
        """The lines of evaluations.jsonl, in order; in `run_mode=eval`, only its evaluation.

        Raises:
            OSError: The file cannot be read.
        """
        if self.evaluation is not None:
            return [self.evaluation]
        return [] if self.checkpoint is not None else read_evaluations(self.run_dir)

    @functools.cached_property
    def policy(self) -> Any:
        """The deterministic policy, a `ksim.Policy`, of `checkpoint`, or in `run_mode=train` of the newest checkpoint.

        Raises:
            ConfigError: There is no checkpoint, or `ksim.load_policy` needs the task's class for it.
        """
        return imported("ksim.policy.load:load_policy")(self.checkpoint or self.run_dir)

    def plot(self, name: str = "learning") -> Artifact:
        """A plot of the run: `learning`; or of its newest recorded episode, `velocity`, `gait` or `rewards`.

        Raises:
            ConfigError: There is no such plot.
        """
        directory = (self.output_dir or self.run_dir) / "plots"
        path = directory / f"{name}.png"
        if not path.is_file():
            there = ", ".join(sorted(found.stem for found in directory.glob("*.png"))) or "none"
            raise ConfigError(
                f"There is no plot {name!r} in {directory} (plots there: {there}). A run draws its plots at its end, "
                "with plots=true; an evaluation draws velocity, gait and rewards."
            )
        return Artifact(path)

    def video(self) -> Artifact:
        """The newest video of the run.

        Raises:
            ConfigError: There is none.
        """
        directory = self.output_dir or self.run_dir
        films = find_films(directory)
        if not films:
            raise ConfigError(
                f"There is no video in {directory / 'videos'}. A run films an episode at its end with video=true, "
                "where MuJoCo can render: python -m ksim.doctor tells."
            )
        return Artifact(films[-1])


def _column(values: Sequence[float | None]) -> np.ndarray:
    if all(isinstance(value, int) for value in values):
        return np.asarray(values, np.int64)
    return np.asarray([np.nan if value is None else value for value in values], float)
