"""The training loop."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ksim._process import STARTED_S
from ksim.checkpoint.dump import NanDump
from ksim.checkpoint.orbax_log import log_orbax
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.run_dir import locked, save_config, shared_run_dir
from ksim.checkpoint.saver import Saver
from ksim.checkpoint.snapshot import host_state, run_document, versions
from ksim.config import seconds_of
from ksim.errors import RunError
from ksim.evaluate.reports import Reports
from ksim.host.failures import Failures
from ksim.host.signals import StopRequest, stop_on_signal
from ksim.host.terminal import console, print_line
from ksim.learn.finite import BAD_UPDATES, MAX_NOT_FINITE
from ksim.log.console import iteration_line
from ksim.log.loggers import MetricsWriter
from ksim.log.run_log import RunLog, log_path, run_log
from ksim.parallel.multihost import (
    Peers,
    gather_rows,
    is_main_process,
    meet_peers,
    naming_lost,
    num_processes,
    together,
    wait_for_all,
)
from ksim.parallel.placement import copy_of
from ksim.parallel.replica_guard import ReplicasDivergedError
from ksim.policy.load import PolicyExport
from ksim.preflight.diagnosis import log_setup
from ksim.preflight.hooks import check_curricula
from ksim.preflight.start import inspect_start
from ksim.preflight.tables import print_start
from ksim.rollout.unroll import NOT_FINITE
from ksim.task.distributed_rl import DistributedRLTask, make_replica_guard
from ksim.task.rl import RLTask
from ksim.train.callbacks import CallbackError, Callbacks, added_handlers
from ksim.train.start import Start, find_start, log_resumed, prepare_run_dir, print_resumed, started_state
from ksim.train.summary import print_summary
from ksim.train.timing import HostTimers, TimedStep, device_times, scalars, time_synchronisation
from ksim.train.watchdog import Watchdog
from ksim.types import LearnerState, TrainState

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TrainingDivergedError(RunError):
    """Too many updates in a row were not finite."""


def train(task: RLTask[Any]) -> int:
    """Trains a task until a limit or a signal; see `RLTask.run`.

    Raises:
        ConfigError: Something is known to be wrong; nothing has been compiled or written.
        RunError: Too many updates in a row were not finite, the devices' copies of the learner differ, or another
            process of the job failed.
    """
    console.quiet = not is_main_process()
    peers = meet_peers()
    with run_log(task.config.log_level) as log, naming_lost(peers, lambda: "before the first iteration"):
        return _prepare_and_train(task, peers, log)


def _prepare_and_train(task: RLTask[Any], peers: Peers, log: RunLog) -> int:
    start = find_start(task.config, task.task_name)
    with together():
        task.check()
    if isinstance(task, DistributedRLTask):
        task.verify_distributed_setup()
    print_start(inspect_start(task))
    print_resumed(task, start)
    with together():
        prepare_s, state = _timed(task.initial_state)
        state = started_state(task, start, state)
        check_curricula(task, state)
        # In place of the first one, which would take as much memory throughout the run.
        state = task.layout.place(state)
    start = start.without_arrays()
    run_dir = shared_run_dir(start.run_dir, task.config.run_dir, task.task_name)
    with contextlib.ExitStack() as stack:
        with together():
            if is_main_process():
                stack.enter_context(locked(run_dir))
            log.open(run_dir)
            if is_main_process():
                stack.enter_context(added_handlers(task))
        log_resumed(task, start)
        try:
            return _train_in(task, state, start, run_dir, prepare_s=prepare_s, peers=peers)
        except BaseException:
            logger.exception("The run ended with an error.")
            raise


def _train_in(
    task: RLTask[Any], state: TrainState, start: Start, run_dir: Path, *, prepare_s: float, peers: Peers
) -> int:
    with stop_on_signal() as stop, contextlib.ExitStack() as stack:
        loop = _Loop(task, start, run_dir, state, stop)
        with together():
            if is_main_process():
                prepare_run_dir(run_dir, start)
                save_config(task.config, run_dir)
                loop.open_files(stack)
            stack.enter_context(loop.watchdog)
            print_line(f"Run directory: {run_dir}")
            stack.enter_context(loop.callbacks)
        print_line(f"First states: {prepare_s:.1f} s. Compiling the training step ...")
        step = task.make_train_step(task.layout.axis_name)
        log_setup(task, step, state, peers)
        # The state before a step that is not finite is what is dumped, and so outlives the step.
        compile_s, timed_step = _timed(lambda: TimedStep(task.layout, step, state, donate=not task.config.dump_on_nan))
        print_line(f"Compiled in {compile_s:.1f} s.")
        logger.info("First states in %.1f s, training step compiled in %.1f s.", prepare_s, compile_s)
        with naming_lost(peers, lambda: f"in iteration {loop.progress.iteration + 1}"):
            loop.run(timed_step)
            # Those that have nothing to evaluate wait here: a process that ends without the others fails them.
            loop.callbacks.raise_together()
    print_summary(
        loop.progress, run_dir, compile_s=prepare_s + compile_s, stop=stop, saver=loop.saver, reports=loop.reports
    )
    return stop.exit_code


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    start_s = time.perf_counter()
    result = function()
    return time.perf_counter() - start_s, result


class _Loop:
    """Iterations, and what is written and printed after each.

    Attributes:
        progress: Where the run stands.
        failures: What failed without ending the run.
        reports: Evaluations, films and plots.
        saver: What writes checkpoints; of process 0 alone.
        callbacks: What calls the task's hooks.
        watchdog: What ends the process when an iteration hangs.
    """

    def __init__(self, task: RLTask[Any], start: Start, run_dir: Path, state: TrainState, stop: StopRequest) -> None:
        self._task, self._start, self._run_dir, self._stop = task, start, run_dir, stop
        self._state: TrainState | None = state
        config = task.config
        self.progress = Progress(config.num_envs * config.rollout_length, config.max_iterations, config.max_env_steps)
        self._last_episodes: dict[str, float] = {}
        # Known to all processes, which save together or not at all.
        self._saved_iteration: int | None = None
        if start.resumed is not None:
            self.progress.resume(start.resumed.document["progress"])
            self._last_episodes = dict(start.resumed.document.get("last_episodes", {}))  # a dump has none
            if start.run_dir is not None:
                self._saved_iteration = start.resumed.iteration
        self.failures = Failures()
        self.reports = Reports(task, run_dir, failures=self.failures, should_stop=self._should_stop)
        self.saver: Saver | None = None
        self._writer: MetricsWriter | None = None
        self._max_runtime_s = seconds_of("max_runtime", config.max_runtime)
        self.watchdog = Watchdog(config.hang_timeout_s, log_path(run_dir))
        self._timers = HostTimers()
        read_model = lambda: self.reports.model(self._learner)
        self.callbacks = Callbacks(
            task, run_dir, self.progress, self._timers, watchdog=self.watchdog, stop=stop, read_model=read_model
        )
        self._sync_s: float | None = None

    def open_files(self, stack: contextlib.ExitStack) -> None:
        """Opens what process 0 writes until the stack is closed."""
        config, resumed = self._task.config, self._start.resumed
        versions()  # before anybody installs others
        # Of a run in the same place that was stopped before its first checkpoint, all events are void.
        first_step = 0 if self._start.run_dir is None else self.progress.env_steps + 1
        self._writer = MetricsWriter(
            self._run_dir, self.failures, tensorboard=config.tensorboard, first_step=first_step
        )
        stack.enter_context(self._writer)
        log_orbax()
        policy = PolicyExport(self.reports.model(self._task.initial_learner()[0]), self._task.obs_sizes)
        self.saver = Saver(self._run_dir, config, self.failures, policy.arrays())
        if self._start.run_dir is not None and resumed is not None:
            self.saver.resume(resumed.iteration, resumed.path.absolute())
        self.reports.open(self._writer, self.saver)
        self.callbacks.open(self.saver)

    def run(self, step: TimedStep) -> None:
        """Iterates to a limit or a request to stop, then saves and reports.

        Where an error ends the run, the state after the last iteration is saved if there still is one.
        """
        assert self._state is not None
        self._step = step
        self._guard = make_replica_guard(self._task.config, self._task.layout, self._state.learner)
        self._dump = NanDump(self._task, self._run_dir)
        try:
            while self.progress.iterations_left != 0 and not self._must_stop():
                self._iterate()
                self._report()
            self.callbacks.raise_together()
        except Exception as error:
            self._save_after(error)
            raise
        assert self._state is not None
        self._save()
        if self.progress.iteration:
            with self._watching_reports():
                self.reports.at_end(self.progress, self._learner)
        if self.saver is not None:
            with self.watchdog.watching("writing the last checkpoint"):
                self.saver.close(self.progress.iteration)
        self.callbacks.after_save()
        self.callbacks.training_end()

    def _must_stop(self) -> bool:
        """Whether any process was asked to stop: all stop after the same iteration. Saves where that is due."""
        self.callbacks.after_save()
        has_failed = self.callbacks.failure is not None
        is_due = self.saver is not None and self.saver.is_due(self.progress.iteration)
        self._should_stop()
        own = np.asarray([self._stop.signal or 0, self._stop.is_out_of_time, is_due, has_failed], np.int32)
        signal, is_out_of_time, is_due, has_failed = gather_rows(own).max(axis=0)
        if has_failed:
            self.callbacks.raise_together()
        # Only ever set: a signal may have come since this process was asked.
        if signal:
            self._stop.signal = int(signal)
        if is_out_of_time:
            self._stop.is_out_of_time = True
        if is_due:
            self._save()
        return bool(signal or is_out_of_time)

    def _should_stop(self) -> bool:
        """Whether this process knows of a reason to stop; cuts evaluations short, too."""
        self._stop.is_out_of_time |= self._is_out_of_time()
        return self._stop.is_made or self.callbacks.failure is not None

    def _is_out_of_time(self) -> bool:
        # At least one iteration, or a job that is queued again and again would never get on.
        if self._max_runtime_s is None or not is_main_process() or not self.progress.num_done_here:
            return False
        return time.monotonic() - STARTED_S + self.progress.pace_s >= self._max_runtime_s

    def _iterate(self) -> None:
        self.callbacks.step_start()
        start_s = time.perf_counter()
        task, layout, progress, before = self._task, self._task.layout, self.progress, self._state
        assert before is not None
        record_before = progress.record()
        if not task.config.dump_on_nan:
            # The step takes its memory; if it fails half-way there is nothing to save.
            self._state = None
        number = progress.iteration + 1
        with self.watchdog.watching(f"the training step of iteration {number}"):
            state, device_metrics, times_s = self._step(before)
            metrics = scalars(layout.first(device_metrics))
            metrics |= device_times(gather_rows(times_s.astype(np.float32)).reshape(-1, 2))
        self._state = state
        iteration_s = time.perf_counter() - start_s
        progress.advance(iteration_s)
        progress.bad_updates += round(metrics[BAD_UPDATES])
        progress.not_finite_steps += round(metrics.get(NOT_FINITE, 0.0) * progress.steps_per_iteration)
        metrics |= {
            "iteration": progress.iteration,
            "env_steps": progress.env_steps,
            "time/iteration_s": iteration_s,
            "time/env_steps_per_s": progress.steps_per_iteration / iteration_s,
        }
        if self._sync_s is not None:
            metrics["time/sync_s"] = self._sync_s
        metrics |= self._timers.take()
        with self.watchdog.watching(f"what follows the training step of iteration {number}"):
            self._tell(metrics)
            if task.config.dump_on_nan:
                self._dump.after_iteration(number, before, record_before, metrics)
            del before
            self._check_finite(metrics)
            self._check_replicas()
        self.callbacks.step_end(metrics)
        if progress.num_done_here == 1 and progress.iterations_left != 0:
            self._sync_s = time_synchronisation(task, state)

    def _tell(self, metrics: dict[str, float]) -> None:
        """Writes and prints the metrics of an iteration."""
        progress = self.progress
        with self._timers.timed("logging"):
            if self._writer is not None:
                self._writer.write(metrics, env_steps=progress.env_steps)
            # In many iterations no episode ends, and the line goes on showing the last that did.
            self._last_episodes |= {k: v for k, v in metrics.items() if k.startswith("episode/") and not np.isnan(v)}
            line = metrics | self._last_episodes
            print_line(iteration_line(line, progress.max_iterations, progress.eta_s, self._step.figures.line))

    def _report(self) -> None:
        if not self.reports.is_due(self.progress.iteration):
            return
        with self._timers.timed("evaluation"), self._watching_reports():
            self.reports.after_iteration(self.progress, self._learner)

    def _watching_reports(self) -> contextlib.AbstractContextManager[None]:
        # The first one compiles.
        return self.watchdog.watching("an evaluation") if self.reports.is_warm else contextlib.nullcontext()

    @property
    def _learner(self) -> LearnerState:
        if self._state is None:
            raise RunError("The training step that failed has taken the learner's memory; dump_on_nan=true keeps it.")
        return copy_of(self._task.layout.first(self._state.learner))

    def _check_replicas(self) -> None:
        if self._guard is None or not self._guard.is_due(self.progress.iteration):
            return
        assert self._state is not None
        try:
            learner = self._guard(self._state.learner, self.progress.iteration)
        except ReplicasDivergedError as error:
            # What is saved is what most hold; where nobody knows which copy is right, nothing.
            learner = error.learner
            self._state = None if learner is None else dataclasses.replace(self._state, learner=learner)
            raise
        self._state = dataclasses.replace(self._state, learner=learner)

    def _check_finite(self, metrics: dict[str, float]) -> None:
        assert self._state is not None
        limit = self._task.config.max_bad_updates
        num_bad_updates = int(self._task.layout.first(self._state.learner.num_bad_updates))
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
            f"or lower learning_rate.{self._dump.hint()}"
        )

    def _save(self) -> None:
        """Starts to save the state after the last iteration, if that was not done; to be called by all processes alike.

        What decides is the same in all of them: gathering the state is collective.
        """
        assert self._state is not None
        progress = self.progress
        if progress.iteration in (0, self._saved_iteration):
            return
        self.callbacks.before_save()
        with self._timers.timed("saving"), self.watchdog.watching("saving"):
            state = host_state(self._task, self._state)
            if self.saver is not None:
                document = run_document(
                    self._task,
                    iteration=progress.iteration,
                    progress=progress.record(),
                    last_episodes=self._last_episodes,
                )
                self.saver.save(progress.iteration, state, document)
        # Not before: where an error ended it half-way, the state is still to be saved.
        self._saved_iteration = progress.iteration

    def _save_after(self, error: Exception) -> None:
        """Saves the last state where there is one, unless other processes would have to help and may not be there.

        Where it ends all of them, they wait for process 0 to write: a launcher gives it little time once one has ended.
        """
        of_all = TrainingDivergedError, ReplicasDivergedError, CallbackError
        is_alike = num_processes() == 1 or isinstance(error, of_all)
        with self.failures.absorbed("saving after the error"):
            if self._state is not None and is_alike:
                self._save()
            if self.saver is not None:
                with self.watchdog.watching("writing the last checkpoint"):
                    self.saver.wait()
                self.callbacks.after_save()
            self.callbacks.training_end(error)
            if is_alike:
                wait_for_all()
