"""The training loop: collect and learn, log, check, report, save, until a limit or a request to stop."""

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ksim.checkpoint.progress import Progress
from ksim.evaluate.reports import Reports
from ksim.log.logger import Loggers
from ksim.parallel.multihost import gather_rows
from ksim.task.rl import RLTask
from ksim.train.callbacks import Callbacks
from ksim.train.checks import Checks
from ksim.train.saving import Saving
from ksim.train.state import RunState
from ksim.train.stopping import Stopping
from ksim.train.timing import HostTimers, TimedStep, device_times, scalars, time_synchronisation
from ksim.train.watchdog import Watchdog
from ksim.viewer.live import LiveViewer


@dataclass(kw_only=True)
class Loop:
    """The training loop with all its parts. All processes of a job run it alike.

    Attributes:
        viewer: The live viewer of the newest policy; None without one, and in processes other than 0.
    """

    task: RLTask[Any]
    state: RunState
    progress: Progress
    loggers: Loggers
    checks: Checks
    reports: Reports
    saving: Saving
    stopping: Stopping
    callbacks: Callbacks
    viewer: LiveViewer | None
    watchdog: Watchdog
    timers: HostTimers
    _sync_s: float | None = None

    def run(self, step: TimedStep) -> None:
        """Iterates to a limit or a request to stop, then saves and reports.

        If an error ends the run, the state after the last iteration is saved, if it still exists.
        """
        try:
            while self.progress.iterations_left != 0 and not self._must_stop():
                self._iterate(step)
                self._report()
            self.callbacks.raise_together()
        except Exception as error:
            self.saving.save_after(error)
            raise
        self.saving.save()
        self._report_at_end()
        self.saving.close()
        self.callbacks.training_end()

    def _must_stop(self) -> bool:
        """Whether all processes stop here; saves a checkpoint if one is due."""
        self.callbacks.after_save()
        agreed = self.stopping.agree(is_save_due=self.saving.is_due())
        if agreed.has_failed:
            self.callbacks.raise_together()
        if agreed.is_save_due:
            self.saving.save()
        return agreed.must_stop

    def _iterate(self, step: TimedStep) -> None:
        """Runs an iteration: collects and learns, then logs and checks the result."""
        self.callbacks.step_start()
        number = self.progress.iteration + 1
        before, record_before = self.state.get(), self.progress.record()
        metrics = self._collect_and_learn(step, number)
        with self.watchdog.watching(f"what follows the training step of iteration {number}"):
            with self.timers.timed("logging"):
                self.loggers.log(metrics, number, self.progress.env_steps)
            self.checks.nan_dump.after_iteration(number, before, record_before, metrics)
            del before
            self.checks.check_finite(metrics)
            self.checks.check_episodes(metrics)
            self.checks.check_replicas(number)
        self.callbacks.step_end(metrics)
        if self.viewer is not None:
            self.viewer.after_iteration(number, lambda: self.reports.model(self.state.learner()))
        if self.progress.num_done_here == 1 and self.progress.iterations_left != 0:
            self._sync_s = time_synchronisation(self.task, self.state.get())

    def _collect_and_learn(self, step: TimedStep, number: int) -> dict[str, float]:
        """Runs the training step of an iteration and returns its metrics."""
        start_s = time.perf_counter()
        with self.watchdog.watching(f"the training step of iteration {number}"):
            state, device_metrics, times_s = step(self.state.take())
            metrics = scalars(self.task.layout.first(device_metrics))
            metrics |= device_times(gather_rows(times_s.astype(np.float32)).reshape(-1, 2))
        # Not before the metrics are read: dispatch is asynchronous, so an error of the step may surface only there.
        self.state.placed = state
        metrics |= self.progress.advance(time.perf_counter() - start_s)
        self.progress.note(metrics)
        if self._sync_s is not None:
            metrics["time/sync_s"] = self._sync_s
        return metrics | self.timers.take()

    def _report(self) -> None:
        """Evaluates, if an evaluation is due."""
        if self.reports.is_due(self.progress.iteration):
            with self.timers.timed("evaluation"), self._watching_reports():
                self.reports.after_iteration(self.progress, self.state.learner())

    def _report_at_end(self) -> None:
        """Evaluates the final policy and plots the learning curves."""
        if self.progress.iteration:
            with self._watching_reports():
                self.reports.at_end(self.progress, self.state.learner())

    def _watching_reports(self) -> contextlib.AbstractContextManager[None]:
        # The first evaluation compiles, which may take long, so it is not watched.
        return self.watchdog.watching("an evaluation") if self.reports.is_warm else contextlib.nullcontext()
