"""Checks after each iteration: non-finite updates, episodes that fail at once, and diverging replicas."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ksim.checkpoint.dump import NanDump
from ksim.errors import RunError
from ksim.host.notices import warn_user
from ksim.learn.finite import MAX_NOT_FINITE
from ksim.parallel.multihost import is_main_process
from ksim.parallel.replica_guard import ReplicasDivergedError
from ksim.rollout.unroll import NOT_FINITE
from ksim.task.distributed_rl import make_replica_guard
from ksim.task.rl import RLTask
from ksim.train.state import RunState

HOPELESS_STEPS = 5
"""Control steps. An episode that fails within them is too short to learn from."""
HOPELESS_ITERATIONS = 10


class TrainingDivergedError(RunError):
    """Too many updates in a row were non-finite."""


class Checks:
    """Checks of the state after each iteration, in all processes alike.

    Attributes:
        nan_dump: Dumps the state before an iteration with non-finite numbers.
    """

    def __init__(self, task: RLTask[Any], state: RunState, run_dir: Path) -> None:
        self._task, self._state = task, state
        self.nan_dump = NanDump(task, run_dir)
        self._steps = task.config.num_envs * task.config.rollout_length
        self._num_hopeless = 0
        self._guard = make_replica_guard(task.config, task.layout, state.get().learner)

    def check_finite(self, metrics: Mapping[str, float]) -> None:
        """Raises TrainingDivergedError if `max_bad_updates` updates in a row were skipped."""
        limit = self._task.config.max_bad_updates
        num_bad_updates = int(self._task.layout.first(self._state.get().learner.num_bad_updates))
        if num_bad_updates < limit:
            return
        suspects = [name for name, value in metrics.items() if name.startswith("reward/") and not np.isfinite(value)]
        cause = f" Not finite: {', '.join(suspects)}." if suspects else ""
        share = metrics.get(NOT_FINITE, 0.0)
        if share > MAX_NOT_FINITE:
            cause += f" {share:.0%} of the environments' steps were not, so that there was nothing to learn from."
        raise TrainingDivergedError(
            f"{num_bad_updates} updates in a row were skipped because a loss or gradient was not finite "
            f"(max_bad_updates={limit}).{cause} Look for a division by zero in a reward or observation, "
            f"or lower learning_rate.{self.nan_dump.hint()}"
        )

    def check_episodes(self, metrics: Mapping[str, float]) -> None:
        """Warns once if episodes have failed within a few steps for many iterations, so that nothing can be learned."""
        if self._num_hopeless == HOPELESS_ITERATIONS:  # warned already
            return
        ends = {name: share for name, share in metrics.items() if name.startswith("termination/")}
        ends |= {NOT_FINITE: metrics[NOT_FINITE]} if metrics.get(NOT_FINITE) else {}
        failed = np.nan_to_num(metrics["episode/count"] * metrics["episode/terminated_fraction"]) / self._steps
        failed += metrics.get(NOT_FINITE, 0.0)
        self._num_hopeless = self._num_hopeless + 1 if failed * HOPELESS_STEPS >= 1 else 0
        if self._num_hopeless < HOPELESS_ITERATIONS or not is_main_process():
            return
        cause = ""
        if ends:
            name = max(ends, key=lambda name: ends[name])
            cause = f" {min(ends[name] / failed, 1):.0%} of them end by {name}."
        advice = (
            "The simulation blows up: try a smaller dt, and check masses, gains and start states."
            if cause.endswith("not_finite.")
            else "Compare the limits of the termination with the start states."
        )
        warn_user(
            f"For {HOPELESS_ITERATIONS} iterations, episodes have failed after {1 / failed:.1f} steps on average, and "
            f"nothing can be learned.{cause} {advice} run_mode=view shows them."
        )

    def check_replicas(self, iteration: int) -> None:
        """Compares the devices' copies of the learner, if that is due; may replace them.

        Raises:
            ReplicasDivergedError: They differ, and the options say that the run then stops.
        """
        if self._guard is None or not self._guard.is_due(iteration):
            return
        state = self._state.get()
        try:
            learner = self._guard(state.learner, iteration)
        except ReplicasDivergedError as error:
            # The majority's copy is saved. Without a majority nothing is saved.
            learner = error.learner
            self._state.placed = None if learner is None else dataclasses.replace(state, learner=learner)
            raise
        self._state.placed = dataclasses.replace(state, learner=learner)
