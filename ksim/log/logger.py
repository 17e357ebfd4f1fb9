"""The interface of loggers, and the group of a task's loggers."""

import abc
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ksim.checks import check_choice
from ksim.host.terminal import Failures

_UNITS = {"_m_s": "m/s", "_rad_s": "rad/s", "_rad": "rad", "_m": "m", "_n": "N", "_s": "s"}
_QUANTITIES = {"lin_vel": "velocity"}


def quantity_and_unit(name: str) -> tuple[str, str]:
    """Quantity and unit of a metric `error/<command>/<quantity>_<unit>`, such as `yaw rate` and `rad/s`.

    The unit is empty if it is unknown.
    """
    last = name.rpartition("/")[2]
    suffix = next((suffix for suffix in _UNITS if last.endswith(suffix)), "")
    quantity = last.removesuffix(suffix)
    return _QUANTITIES.get(quantity, quantity.replace("_", " ")), _UNITS.get(suffix, "")


def error_names(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Error names and units by metric, such as `velocity error` and `m/s`. Equal names get the command appended."""
    said = {name: quantity_and_unit(name) for name in names}
    alike = list(said.values())
    return {
        name: (f"{said[name][0]} error" + (f" ({name.split('/')[1]})" if alike.count(said[name]) > 1 else ""), unit)
        for name, (_, unit) in said.items()
    }


def error_labels(names: Iterable[str]) -> dict[str, str]:
    """Error labels by metric, such as `velocity error, m/s`."""
    return {name: ", ".join(filter(None, parts)) for name, parts in error_names(names).items()}


def most_telling_first(figures: Iterable[str]) -> list[str]:
    """The names of an evaluation's figures: errors, survival, return, then the others."""
    lead = ("survival", "return")
    rank = lambda name: -1 if name.startswith("error/") else lead.index(name) if name in lead else len(lead)
    return sorted(figures, key=rank)


CHOICES = ("last", "all", "none")


class CheckpointUploads:
    """Uploads of a run's checkpoints: the last one when the run ends, all as they are written, or none."""

    def __init__(self, which: str, upload: Callable[[Path, int], None]) -> None:
        """Makes uploads by `upload`, which takes a checkpoint's directory and iteration.

        Raises:
            ConfigError: `which` is none of `CHOICES`.
        """
        check_choice("checkpoints", which, CHOICES)
        self._which, self._upload = which, upload
        self._last: tuple[Path, int] | None = None

    def add(self, path: Path, iteration: int) -> None:
        """Uploads a written checkpoint, now or at the end of the run."""
        if self._which == "all":
            self._upload(path, iteration)
        elif self._which == "last":
            self._last = path, iteration

    def finish(self) -> None:
        """Uploads the last checkpoint, if it is still to be uploaded."""
        last, self._last = self._last, None
        if last is not None:
            self._upload(*last)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The run that a logger is opened for.

    Attributes:
        task_name: The task's name, as in `runs/<task>/`.
        config: The options by name, as JSON values.
        hyperparameters: Names of the options that affect learning.
        changed: Those of them that differ from their defaults.
        is_resumed: Whether the directory holds an earlier part of this run.
        iteration: Iterations already done, if the run starts from a checkpoint; else 0.
        env_steps: Steps of all envs so far, each repetition of an action counted.
        max_iterations: The iteration at which the run ends; None without a limit.
        last_episodes: Metrics of the last iteration in which episodes ended; updated during the run.
        eta_s: Returns the current estimate of the seconds to the nearest limit; None without one.
        devices: The devices, as text.
        line: Names of the algorithm's metrics in the line of an iteration, by their labels.
    """

    run_dir: Path
    task_name: str
    config: Mapping[str, Any]
    hyperparameters: Sequence[str] = ()
    changed: Sequence[str] = ()
    is_resumed: bool = False
    iteration: int = 0
    env_steps: int = 0
    max_iterations: int | None = None
    last_episodes: Mapping[str, float] = field(default_factory=dict)
    eta_s: Callable[[], float | None] = lambda: None
    devices: str = ""
    line: Mapping[str, str] = field(default_factory=dict)


class AbstractLogger(abc.ABC):
    """A destination of a run's metrics and evaluations. Only process 0 has loggers, and training waits for them.

    An error in a logger never ends a run: it is reported once and counted.
    """

    def open(self, run: RunInfo) -> None:  # noqa: B027 - a logger may need nothing
        """Called once, before the first iteration. A logger that fails here is closed and left out of the run."""

    @abc.abstractmethod
    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        """Logs the metrics of one iteration.

        Args:
            metrics: Metrics by name. NaN if there is no value, such as the mean return while no episode has ended.
            iteration: Iterations done, including those before the run was resumed.
            env_steps: Steps of all environments so far, each repetition of an action counted.
        """

    def log_evaluation(self, record: Mapping[str, Any]) -> None:  # noqa: B027
        """Logs an evaluation: a line of evaluations.jsonl, with its `iteration` and `env_steps`."""

    def log_files(self, files: Mapping[str, Path], iteration: int, env_steps: int) -> None:  # noqa: B027
        """Logs the video and plots of an evaluation.

        Args:
            files: Paths by name, which are the same at every evaluation: `video.mp4`, `video.gif`, `velocity.png`,
                `gait.png`, `rewards.png` and, at the end of the run, `learning.png`. A later evaluation may replace
                the files.
            iteration: Iterations done.
            env_steps: Steps of all environments so far, each repetition of an action counted.
        """

    def log_samples(self, samples: Mapping[str, np.ndarray], iteration: int, env_steps: int) -> None:  # noqa: B027
        """Logs distributions, for histograms.

        Args:
            samples: Arrays with one axis, by name: `action/<actuator>`, the actions of the recorded episode of the
                evaluation, one per control step.
            iteration: Iterations done.
            env_steps: Steps of all environments so far, each repetition of an action counted.
        """

    def log_checkpoint(self, path: Path, iteration: int) -> None:  # noqa: B027
        """Logs a checkpoint that was written.

        Args:
            path: Its directory. It may be removed once a later checkpoint is written; see `max_to_keep`.
            iteration: Iterations done.
        """

    def dashboards(self) -> Mapping[str, str]:
        """Commands or addresses that open the run's dashboards, by name. Called once, after `open`."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Called once, when the run ends for any reason, or when `open` failed."""


class Loggers:
    """The loggers of a run, called in turn. A failure is reported once and counted; the run continues.

    Attributes:
        dashboards: Commands or addresses by name; see `AbstractLogger.dashboards`.
    """

    def __init__(self, loggers: Sequence[AbstractLogger], failures: Failures) -> None:
        self._loggers, self._failures = list(loggers), failures
        self.dashboards: dict[str, str] = {}

    def open(self, run: RunInfo) -> None:
        """Opens all loggers. Loggers that fail are closed and left out."""
        opened = []
        for logger in self._loggers:
            if self._succeeds(logger, "open", run):
                opened.append(logger)
            else:
                self._succeeds(logger, "close")
        self._loggers = opened
        for logger in opened:
            with self._failures.tolerate(f"{type(logger).__name__}.dashboards"):
                self.dashboards |= logger.dashboards()

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        """Logs the metrics of one iteration."""
        self._call_all("log", types.MappingProxyType(metrics), iteration, env_steps)

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        """Logs an evaluation."""
        self._call_all("log_evaluation", record)

    def log_files(self, files: Mapping[str, Path], iteration: int, env_steps: int) -> None:
        """Logs the video and plots of an evaluation."""
        self._call_all("log_files", types.MappingProxyType(files), iteration, env_steps)

    def log_samples(self, samples: Mapping[str, np.ndarray], iteration: int, env_steps: int) -> None:
        """Logs distributions."""
        self._call_all("log_samples", types.MappingProxyType(samples), iteration, env_steps)

    def log_checkpoint(self, path: Path, iteration: int) -> None:
        """Logs a checkpoint that was written."""
        self._call_all("log_checkpoint", path, iteration)

    def close(self) -> None:
        """Closes all open loggers."""
        self._call_all("close")
        self._loggers = []

    def _call_all(self, method: str, *arguments: Any) -> None:
        for logger in self._loggers:
            self._succeeds(logger, method, *arguments)

    def _succeeds(self, logger: AbstractLogger, method: str, *arguments: Any) -> bool:
        with self._failures.tolerate(f"{type(logger).__name__}.{method}"):
            getattr(logger, method)(*arguments)
            return True
        return False


def resumed_id(run: RunInfo, path: Path) -> str | None:
    """A service's id of the resumed run, from a file in the run's directory; None for a new run.

    A run that was stopped before its first checkpoint starts again as a new run.
    """
    is_there = run.is_resumed and run.iteration and path.is_file()
    return (path.read_text() or None) if is_there else None


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite metrics."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def evaluation_scalars(record: Mapping[str, Any], *, bounds: str = "eval") -> dict[str, float]:
    """The figures of an evaluation by name: `eval/return`, `eval/return_low`, `eval/return_high`, ...

    Args:
        record: A line of evaluations.jsonl.
        bounds: Group of the bounds, before the slash of their names.
    """
    estimates = record["figures"] | {"return_gap": record["return_gap"] or {}}
    return {
        f"eval/{name}" if part == "mean" else f"{bounds}/{name}_{part}": value
        for name, estimate in estimates.items()
        for part, value in estimate.items()
        if value is not None
    }
