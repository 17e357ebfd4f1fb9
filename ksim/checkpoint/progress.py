"""Counters of a run, kept on the host."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ksim.rollout.unroll import NON_FINITE


@dataclasses.dataclass
class Progress:
    """The progress of a run: counters, which outgrow 32 bits, and the pace.

    Attributes:
        steps_per_iteration: Steps of all environments in one iteration, each repetition of an action counted.
        max_iterations: Iterations after which the run stops; None for no limit.
        max_env_steps: Steps of all environments after which the run stops; None for no limit.
        iteration: Iterations done, including those before the run was resumed.
        env_steps: Steps of all environments so far.
        elapsed_s: Total seconds of these iterations.
        bad_updates: Updates skipped because of a non-finite gradient.
        not_finite_steps: Non-finite steps among `env_steps`, which were masked.
        pace_s: Seconds per iteration, smoothed over the last ten or so.
        num_done_here: Iterations done by this process.
        last_episodes: Episode metrics of the last iteration in which an episode ended.
    """

    steps_per_iteration: int
    max_iterations: int | None
    max_env_steps: int | None
    iteration: int = 0
    env_steps: int = 0
    elapsed_s: float = 0.0
    bad_updates: int = 0
    not_finite_steps: int = 0
    pace_s: float = 0.0
    num_done_here: int = 0
    last_episodes: dict[str, float] = dataclasses.field(default_factory=dict)

    def advance(self, iteration_s: float) -> dict[str, float]:
        """Counts an iteration; returns its metrics of progress and time."""
        self.iteration += 1
        self.env_steps += self.steps_per_iteration
        self.elapsed_s += iteration_s
        self.num_done_here += 1
        # The first iteration warms up, so its time is not averaged in.
        self.pace_s = iteration_s if self.num_done_here <= 2 else 0.9 * self.pace_s + 0.1 * iteration_s
        return {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "time/iteration_s": iteration_s,
            "time/env_steps_per_s": self.steps_per_iteration / iteration_s,
        }

    def note(self, metrics: Mapping[str, float]) -> None:
        """Counts non-finite updates and steps of an iteration, and keeps its episode metrics.

        Metrics that are NaN are not kept: in many iterations no episode ends.
        """
        self.bad_updates += round(metrics["policy/bad_updates"])
        self.not_finite_steps += round(metrics.get(NON_FINITE, 0.0) * self.steps_per_iteration)
        self.last_episodes |= {k: x for k, x in metrics.items() if k.startswith("episode/") and not math.isnan(x)}

    @property
    def iterations_to(self) -> dict[str, int]:
        """Iterations to each limit that is set, by its option; 0 once it is reached."""
        left = {}
        if self.max_iterations is not None:
            left["max_iterations"] = self.max_iterations - self.iteration
        if self.max_env_steps is not None:
            left["max_env_steps"] = -(-(self.max_env_steps - self.env_steps) // self.steps_per_iteration)
        return {limit: max(iterations, 0) for limit, iterations in left.items()}

    @property
    def iterations_left(self) -> int | None:
        """Iterations to the nearer limit; None without a limit."""
        return min(self.iterations_to.values(), default=None)

    @property
    def last_iteration(self) -> int | None:
        """The iteration at which the run ends; None without a limit."""
        return None if self.iterations_left is None else self.iteration + self.iterations_left

    @property
    def eta_s(self) -> float | None:
        """Estimated seconds to the nearer limit; None without a limit."""
        return None if self.iterations_left is None else self.iterations_left * self.pace_s

    def record(self) -> dict[str, Any]:
        """The progress as JSON, for a resumed run."""
        return {name: getattr(self, name) for name in KEPT}

    def resume(self, record: dict[str, Any]) -> None:
        """Restores the progress from a `record`."""
        for name in KEPT:
            setattr(self, name, record[name])


KEPT = {"iteration": int, "env_steps": int, "elapsed_s": float, "bad_updates": int, "not_finite_steps": int}
"""Fields of `Progress.record` and their types."""
