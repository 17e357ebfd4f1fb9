"""Console output of a run's iterations: a live view in a terminal or a notebook, lines elsewhere."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ksim.host.terminal import console, format_seconds, print_line
from ksim.log.live import LiveView, faults, number, shares
from ksim.log.logger import AbstractLogger, RunInfo

MODES = ("auto", "live", "plain")


class ConsoleLogger(AbstractLogger):
    """Shows a live view in a terminal or a notebook, and prints a line for each iteration elsewhere.

    mode: `live` or `plain`; `auto`, the default, is live in a terminal and in a notebook.
    """

    def __init__(self, mode: str = "auto") -> None:
        self._is_live = mode == "live" or (mode == "auto" and (console.is_terminal or console.is_jupyter))
        self._view: LiveView | None = None
        self._ended_at: int | None = None

    def open(self, run: RunInfo) -> None:
        self._run = run
        if self._is_live:
            self._view = LiveView(run)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        if not math.isnan(metrics.get("episode/return", math.nan)):
            self._ended_at = iteration
        # In many iterations no episode ends. The metrics of the last ended episodes are shown, with their age.
        age = 0 if self._ended_at is None else iteration - self._ended_at
        if self._view is not None:
            self._view.log(metrics, age)
            return
        shown = {**metrics, **self._run.last_episodes}
        width = console.width if console.is_terminal else None
        run = self._run
        print_line(iteration_line(shown, run.max_iterations, run.eta_s(), run.line, age=age, width=width))

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        if self._view is not None:
            self._view.log_evaluation(record)

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None


def iteration_line(
    metrics: Mapping[str, float],
    max_iterations: int | None,
    eta_s: float | None,
    of_learner: Mapping[str, str] | None = None,
    *,
    age: int = 0,
    width: int | None = None,
) -> str:
    """The line of one iteration: progress, time left, speed, where the time goes, return, episode length.

    Args:
        metrics: Metrics of the iteration, and of the last episodes that ended.
        max_iterations: The last iteration; None without a limit.
        eta_s: Seconds to the limit; None without one.
        of_learner: Names of additional metrics of the algorithm, by their labels.
        age: Iterations since the last episode ended.
        width: Columns that the line may take: the least important parts are left out. None for no limit.
    """
    of = f"/{max_iterations}" if max_iterations else ""
    ago = f" ({age} ago)" if age else ""
    speed = f"{metrics['time/env_steps_per_s']:,.0f} env steps/s"
    parts = [
        (0, f"iteration {metrics['iteration']:.0f}{of}"),
        (4, f"ETA {format_seconds(eta_s)}" if eta_s is not None else ""),
        (3, speed),
        (6, shares(metrics)),
        (1, f"return {number(metrics['episode/return'])}{ago}"),
        (2, f"length {number(metrics['episode/length'])}"),
        (5, f"reward/step {number(metrics['rollout/reward'], 4)}"),
        *((7, f"{words} {number(metrics[name], 4)}") for words, name in (of_learner or {}).items()),
        (0, faults(metrics)),
    ]
    for least in range(7, 0, -1):
        if width is None or len(_joined(parts)) <= width:
            break
        parts = [(rank, text) for rank, text in parts if rank != least]
    return _joined(parts)


def _joined(parts: Sequence[tuple[int, str]]) -> str:
    return " · ".join(text for _, text in parts if text)
