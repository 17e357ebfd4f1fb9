"""What a run did, for the program that ran it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ksim.errors import ConfigError
from ksim.host.files import data_url
from ksim.log.records import find_films, read_evaluations, read_metrics
from ksim.task.commands import command


@dataclass(frozen=True)
class Picture:
    """A plot of a run; a notebook shows it.

    Attributes:
        path: The PNG file.
    """

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Film:
    """A video of an episode; a notebook plays it.

    Attributes:
        path: The MP4 file.
    """

    path: Path

    def _repr_html_(self) -> str:
        return f'<video controls loop muted autoplay src="{data_url(self.path)}"></video>'


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What `task.run()` did. What the run wrote is read from its directory when it is first asked for.

    Attributes:
        exit_code: 0; 75 if `max_runtime` stopped the run, to be resumed; 128 + n if signal n stopped it.
        run_dir: The run's directory; in other run modes, of the run whose checkpoint was read.
        checkpoint: The checkpoint that was read; None in `run_mode=train`.
        evaluation: What `run_mode=eval` found, as in evaluation.json; None in other run modes.
        output_dir: The directory of plots and videos, if that is not the run's.
    """

    exit_code: int
    run_dir: Path
    checkpoint: Path | None = None
    evaluation: Mapping[str, Any] | None = None
    output_dir: Path | None = None

    @functools.cached_property
    def metrics(self) -> dict[str, Float[np.ndarray, " iterations"] | Int[np.ndarray, " iterations"]]:
        """The lines of metrics.jsonl as columns, one row per iteration, those before the run was resumed included.

        NaN where a line has null or no such metric. Empty in other run modes than train, and without a `JsonlLogger`.

        Raises:
            OSError: The file cannot be read.
        """
        rows = [] if self.checkpoint is not None else read_metrics(self.run_dir)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _column([row.get(name) for row in rows]) for name in names}

    @functools.cached_property
    def evaluations(self) -> Sequence[Mapping[str, Any]]:
        """The lines of evaluations.jsonl, in their order; in `run_mode=eval`, its evaluation alone.

        Raises:
            OSError: The file cannot be read.
        """
        if self.evaluation is not None:
            return [self.evaluation]
        return [] if self.checkpoint is not None else read_evaluations(self.run_dir)

    @functools.cached_property
    def policy(self) -> Any:
        """The deterministic policy of the run's newest checkpoint, or of the one that was read: a `ksim.Policy`.

        Raises:
            ConfigError: There is no checkpoint, or `ksim.load_policy` needs the task's class for it.
        """
        return command("load_policy")(self.checkpoint or self.run_dir)

    def plot(self, name: str = "learning") -> Picture:
        """A plot that the run has drawn: `learning`, or of the episode shown last `velocity`, `gait` or `rewards`.

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
        return Picture(path)

    def video(self) -> Film:
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
        return Film(films[-1])


def _column(values: Sequence[float | None]) -> np.ndarray:
    if all(isinstance(value, int) for value in values):
        return np.asarray(values, np.int64)
    return np.asarray([np.nan if value is None else value for value in values], float)
