"""The line that a run prints for each iteration."""

import math
from collections.abc import Mapping

from ksim.host.terminal import format_seconds, print_line
from ksim.log.logger import AbstractLogger, RunInfo


class ConsoleLogger(AbstractLogger):
    """Prints a line for each iteration."""

    def open(self, run: RunInfo) -> None:
        self._run = run

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        # In many iterations no episode ends; the line shows the last that did.
        shown = {**metrics, **self._run.last_episodes}
        print_line(iteration_line(shown, self._run.max_iterations, self._run.eta_s(), self._run.line))


def iteration_line(
    metrics: Mapping[str, float],
    max_iterations: int | None,
    eta_s: float | None,
    of_learner: Mapping[str, str] | None = None,
) -> str:
    """The line of one iteration: progress, time left, speed, where the time goes, return, episode length.

    `of_learner` are metrics of the algorithm to show as well, by the words before them.
    """
    of = f"/{max_iterations}" if max_iterations else ""
    parts = [f"iteration {metrics['iteration']:.0f}{of}"]
    if eta_s is not None:
        parts.append(f"ETA {format_seconds(eta_s)}")
    parts.append(f"{metrics['time/env_steps_per_s']:,.0f} env steps/s")
    rollout_s, update_s = metrics["time/rollout_s"], metrics["time/update_s"]
    update_share = update_s / (rollout_s + update_s)
    parts.append(f"rollout {1 - update_share:.0%} update {update_share:.0%}")
    parts.append(f"return {_number(metrics['episode/return'])}")
    parts.append(f"length {_number(metrics['episode/length'])}")
    parts.append(f"reward/step {_number(metrics['rollout/reward'], 4)}")
    parts += [f"{words} {_number(metrics[name], 4)}" for words, name in (of_learner or {}).items()]
    if metrics["policy/bad_updates"]:
        parts.append(f"{metrics['policy/bad_updates']:.0f} non-finite updates skipped")
    return " · ".join(parts)


def _number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
