"""The training loop: collect and learn, log, check, report, save, until a limit or a request to stop."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ksim._process import STARTED_S
from ksim.checkpoint.dump import NanDump
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.saver import Saver
from ksim.checkpoint.snapshot import host_state, run_document
from ksim.errors import RunError
from ksim.evaluate.reports import Reports
from ksim.host.signals import StopRequest
from ksim.host.terminal import Failures, warn_user
from ksim.learn.guards import MAX_NOT_FINITE
from ksim.log.logger import Loggers
from ksim.parallel.multihost import gather_rows, is_main_process, num_processes, wait_for_all
from ksim.parallel.placement import copy_of
from ksim.parallel.replicas import ReplicasDivergedError
from ksim.preflight.hooks import check_curricula
from ksim.rollout.unroll import NON_FINITE
from ksim.task.distributed import make_replica_guard
from ksim.task.rl import RLTask
from ksim.train.callbacks import CallbackError, Callbacks
from ksim.train.start import Start, started_state
from ksim.train.timing import HostTimers, TimedStep, device_times, scalars, time_synchronisation
from ksim.train.watchdog import Watchdog
from ksim.types import LearnerState, TrainState
from ksim.viewer.live import LiveViewer


class RunState:
    """The only reference to a run's state, so that donating it frees its memory.

    Attributes:
        placed: The state on the devices after the last iteration; None once it was donated, discarded or released.
    """

    def __init__(self, task: RLTask[Any], start: Start) -> None:
        """Builds the state that a run starts from, and places it on the devices.

        Raises:
            ConfigError: The checkpoint does not fit the task, or a curriculum goes by a metric that does not exist.
        """
        self._layout, self._keeps, self._is_over = task.layout, task.config.dump_on_nan, False
        state = started_state(task, start, task.initial_state())
        check_curricula(task, state)
        self.placed: TrainState | None = task.layout.place(state)

    def get(self) -> TrainState:
        """The state on the devices.

        Raises:
            RunError: A failed training step had already donated its memory, or the run is over.
        """
        if self._is_over:
            raise RunError("The run is over, and its state released. Load its policy with ksim.load_policy.")
        if self.placed is None:
            raise RunError("The training step that failed has taken the learner's memory; dump_on_nan=true keeps it.")
        return self.placed

    def take(self) -> TrainState:
        """The state for a training step, which donates its memory unless `dump_on_nan` is set.

        Raises:
            RunError: As `get`.
        """
        state = self.get()
        if not self._keeps:
            # If the step fails, its donated state cannot be saved.
            self.placed = None
        return state

    def learner(self) -> LearnerState:
        """A copy of the learner on the host.

        Raises:
            RunError: As `get`.
        """
        return copy_of(self._layout.first(self.get().learner))

    def release(self) -> None:
        """Frees the state's memory."""
        self.placed, self._is_over = None, True


class Agreement(NamedTuple):
    """The common decision of all processes before the next iteration.

    Attributes:
        must_stop: Whether any process was asked to stop.
        is_save_due: Whether a checkpoint is due; process 0 decides.
        has_failed: Whether a hook failed.
    """

    must_stop: bool
    is_save_due: bool
    has_failed: bool


class Stopping:
    """Requests to stop the run: a signal, `max_runtime`, or a failed hook."""

    def __init__(self, request: StopRequest, progress: Progress, max_runtime_s: float | None) -> None:
        self._request, self._progress, self._max_runtime_s = request, progress, max_runtime_s
        # Counted from the first launch: a restart by the launcher does not extend `max_runtime`.
        self._started_s = float(os.environ.get("KSIM_LAUNCHED_S", STARTED_S))

    def is_asked(self) -> bool:
        """Whether this process knows of a reason to stop. Evaluations are cut short by it as well."""
        self._request.is_out_of_time |= self._is_out_of_time()
        return self._request.is_made

    def agree(self, *, is_save_due: bool) -> Agreement:
        """The common decision of all processes, so that all stop after the same iteration. All must call this.

        Args:
            is_save_due: Whether a checkpoint is due, as far as this process knows.
        """
        self.is_asked()
        request = self._request
        own = np.asarray([request.signal or 0, request.is_out_of_time, is_save_due, request.has_failed], np.int32)
        signal, is_out_of_time, is_due, has_failed = gather_rows(own).max(axis=0)
        # Never reset: a signal may have arrived since `own` was built.
        if signal:
            request.signal = int(signal)
        if is_out_of_time:
            request.is_out_of_time = True
        return Agreement(bool(signal or is_out_of_time), bool(is_due), bool(has_failed))

    def _is_out_of_time(self) -> bool:
        # Always do one iteration: a requeued job must make progress.
        if self._max_runtime_s is None or not is_main_process() or not self._progress.num_done_here:
            return False
        return time.monotonic() - self._started_s + self._progress.pace_s >= self._max_runtime_s


class Saving:
    """Saving of the state: all processes gather it together, or none does, and process 0 writes it.

    Attributes:
        saver: The writer of checkpoints; None in processes other than 0.
    """

    def __init__(
        self,
        task: RLTask[Any],
        state: RunState,
        progress: Progress,
        *,
        saved_iteration: int | None,
        callbacks: Callbacks,
        timers: HostTimers,
        watchdog: Watchdog,
        failures: Failures,
    ) -> None:
        """Stores the parts; there is no saver yet.

        Args:
            saved_iteration: The iteration whose state is in the run's directory already; None if none is.
            failures: Records failures to save while an error ends the run.
        """
        self._task, self._state, self._progress = task, state, progress
        self._callbacks, self._timers, self._watchdog, self._failures = callbacks, timers, watchdog, failures
        # All processes know this number; only process 0 has the saver.
        self._saved_iteration = saved_iteration
        self.saver: Saver | None = None

    def is_due(self) -> bool:
        """Whether a checkpoint is due; only process 0 knows."""
        return self.saver is not None and self.saver.is_due(self._progress.iteration)

    def save(self) -> None:
        """Starts to save the state after the last iteration, unless it is saved already. All processes must call this.

        The decision is the same in all processes, because gathering the state is collective.
        """
        progress, placed = self._progress, self._state.get()
        if progress.iteration in (0, self._saved_iteration):
            return
        self._callbacks.before_save()
        with self._timers.timed("saving"), self._watchdog.watching("saving"):
            state = host_state(self._task, placed)
            if self.saver is not None:
                document = run_document(
                    self._task,
                    iteration=progress.iteration,
                    progress=progress.record(),
                    last_episodes=progress.last_episodes,
                )
                self.saver.save(progress.iteration, state, document)
        # Not before: if an error interrupts the block above, the state is still unsaved.
        self._saved_iteration = progress.iteration

    def save_after(self, error: Exception) -> None:
        """Saves the last state, unless that needs other processes that may be gone.

        If the error ends all processes, the others wait for process 0 to write: once one has ended, a launcher gives
        the rest little time.
        """
        of_all = TrainingDivergedError, ReplicasDivergedError, CallbackError
        is_alike = num_processes() == 1 or isinstance(error, of_all)
        with self._failures.tolerate("saving after the error"):
            if self._state.placed is not None and is_alike:
                self.save()
            if self.saver is not None:
                with self._watchdog.watching("writing the last checkpoint"):
                    self.saver.wait()
                self._callbacks.after_save()
            self._callbacks.training_end(error)
            if is_alike:
                wait_for_all()

    def close(self) -> None:
        """Waits for the last checkpoint.

        Raises:
            RunError: It could not be written.
        """
        if self.saver is not None:
            with self._watchdog.watching("writing the last checkpoint"):
                self.saver.close(self._progress.iteration)
        self._callbacks.after_save()


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
        share = metrics.get(NON_FINITE, 0.0)
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
        ends |= {NON_FINITE: metrics[NON_FINITE]} if metrics.get(NON_FINITE) else {}
        failed = np.nan_to_num(metrics["episode/count"] * metrics["episode/terminated_fraction"]) / self._steps
        failed += metrics.get(NON_FINITE, 0.0)
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
