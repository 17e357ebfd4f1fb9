"""The line that a run prints for each iteration."""

import math
from collections.abc import Mapping

from ksim.host.terminal import format_seconds


def iteration_line(
    metrics: dict[str, float],
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
