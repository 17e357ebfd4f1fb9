"""A training run and its loop: collect and learn, log, check, report, save, until a limit or a request to stop."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

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
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.multihost import gather_rows, is_main_process, num_processes, wait_for_all
from ksim.parallel.placement import copy_of
from ksim.parallel.replicas import ReplicaGuard, ReplicasDivergedError
from ksim.rollout.unroll import NON_FINITE
from ksim.task.rl import RLTask
from ksim.train.callbacks import CallbackError, Callbacks
from ksim.train.start import Start, started_state
from ksim.train.timing import HostTimers, TimedStep, TracedStep, device_times, scalars, time_synchronisation
from ksim.train.watchdog import Watchdog
from ksim.types import LearnerState, TrainState
from ksim.viewer.live import LiveViewer

HOPELESS_STEPS = 5
"""Control steps. An episode that fails within them is too short to learn from."""
HOPELESS_ITERATIONS = 10


class TrainingDivergedError(RunError):
    """Too many updates in a row were non-finite."""


class RunState:
    """The only reference to a run's state, so that donating it frees its memory.

    `placed` is the state after the last iteration; None once it was donated, discarded or released.
    """

    def __init__(self, task: RLTask[Any], start: Start) -> None:
        """Builds the state that a run starts from, and places it on the devices.

        Raises:
            ConfigError: The checkpoint does not fit the task.
        """
        self._task, self._is_over = task, False
        self.placed: TrainState | None = task.layout.place(started_state(task, start, task.initial_state()))

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
        """The state for a training step, which donates its memory unless `dump_on_nan` is set; raises as `get`."""
        state = self.get()
        if not self._task.config.dump_on_nan:
            # If the step fails, its donated state cannot be saved.
            self.placed = None
        return state

    def learner(self) -> LearnerState:
        """A copy of the learner on the host; raises as `get`."""
        return copy_of(self._task.layout.first(self.get().learner))

    def model(self) -> NormalizedActorCritic:
        """A copy of the policy and value function on the host, on raw observations; raises as `get`."""
        return self._task.policy_of(self.learner())

    def release(self) -> None:
        """Frees the state's memory."""
        self.placed, self._is_over = None, True


@dataclass(kw_only=True)
class Run:
    """A training run and its parts, complete when it is made. As a context, it is closed whatever ends it.

    All processes of a job hold one, and call the functions of this module in the same order.

    Attributes:
        should_stop: Whether this process knows of a reason to stop; see `update_stop_request`.
        saver: The writer of checkpoints; None in processes other than 0.
        saved_iteration: The iteration whose state is in the run's directory already; None if none is. Unlike the saver,
            all processes know it.
        viewer: The live viewer of the newest policy; None without one, and in processes other than 0.
        replica_guard: Compares the devices' copies of the learner; None on a single device.
        traced: The training step before it is compiled.
        setup_s: Seconds of preparing the first states and compiling.
        sync_s: Seconds per iteration for averaging gradients; None before the second iteration, and on a single device.
        num_hopeless: Iterations in a row whose episodes failed within a few steps, up to `HOPELESS_ITERATIONS`.
    """

    task: RLTask[Any]
    run_dir: Path
    state: RunState
    traced: TracedStep
    progress: Progress
    stop: StopRequest
    should_stop: Callable[[], bool]
    loggers: Loggers
    reports: Reports
    callbacks: Callbacks
    saver: Saver | None
    saved_iteration: int | None
    viewer: LiveViewer | None
    watchdog: Watchdog
    timers: HostTimers
    failures: Failures
    nan_dump: NanDump
    replica_guard: ReplicaGuard | None
    setup_s: float
    resources: contextlib.ExitStack
    sync_s: float | None = None
    num_hopeless: int = 0
    was_warned_of_physics: bool = False

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.resources.__exit__(kind, error, traceback)


def loop(run: Run, step: TimedStep) -> None:
    """Iterates to a limit or a request to stop, then saves and reports.

    If an error ends the run, the state after the last iteration is saved, if it still exists.
    """
    try:
        while run.progress.iterations_left != 0:
            must_stop = agree_and_save(run)
            if must_stop:
                break
            iterate(run, step)
            report_if_due(run)
        run.callbacks.raise_together()
    except Exception as error:
        save_after(run, error)
        raise
    save(run)
    report_at_end(run)
    finish_saving(run)
    run.callbacks.training_end()
    # Processes without an evaluation wait here: a process that ends early makes the others fail.
    run.callbacks.raise_together()


def iterate(run: Run, step: TimedStep) -> None:
    """Runs an iteration: collects and learns, then logs and checks the result."""
    run.callbacks.step_start()
    number = run.progress.iteration + 1
    before, record_before = run.state.get(), run.progress.record()
    metrics = collect_and_learn(run, step, number)
    with run.watchdog.watching(f"what follows the training step of iteration {number}"):
        with run.timers.timed("logging"):
            run.loggers.log(metrics, number, run.progress.env_steps)
        run.nan_dump.after_iteration(number, before, record_before, metrics)
        del before
        check_finite(run, metrics)
        check_episodes(run, metrics)
        check_physics(run, metrics)
        check_replicas(run, number)
    run.callbacks.step_end(metrics)
    if run.viewer is not None:
        run.viewer.after_iteration(number, run.state.model)
    if run.progress.num_done_here == 1 and run.progress.iterations_left != 0:
        run.sync_s = time_synchronisation(run.task, run.state.get())


def collect_and_learn(run: Run, step: TimedStep, number: int) -> dict[str, float]:
    """Runs the training step of an iteration and returns its metrics."""
    start_s = time.perf_counter()
    with run.watchdog.watching(f"the training step of iteration {number}"):
        state, device_metrics, times_s = step(run.state.take())
        metrics = scalars(run.task.layout.first(device_metrics))
        metrics |= device_times(gather_rows(times_s.astype(np.float32)).reshape(-1, 2))
    # Not before the metrics are read: dispatch is asynchronous, so an error of the step may surface only there.
    run.state.placed = state
    metrics |= run.progress.advance(time.perf_counter() - start_s)
    run.progress.note(metrics)
    if run.sync_s is not None:
        metrics["time/sync_s"] = run.sync_s
    return metrics | run.timers.take()


def update_stop_request(request: StopRequest, progress: Progress, max_runtime_s: float | None) -> bool:
    """Notes in the request if `max_runtime` is over, and returns whether this process knows of a reason to stop.

    Other reasons: a signal, a failed hook. A request also cuts evaluations short.
    """
    # Always do one iteration: a requeued job must make progress.
    if max_runtime_s is not None and is_main_process() and progress.num_done_here:
        # Counted from the first launch: a restart by the launcher does not extend `max_runtime`.
        started_s = float(os.environ.get("KSIM_LAUNCHED_S", STARTED_S))
        request.is_out_of_time |= time.monotonic() - started_s + progress.pace_s >= max_runtime_s
    return request.is_made


def agree_and_save(run: Run) -> bool:
    """Saves a checkpoint if one is due, and returns whether to stop. All processes must call this.

    They share what each knows, so that all stop after the same iteration. Process 0 knows whether a checkpoint is due.
    """
    run.callbacks.after_save()
    is_save_due = run.saver is not None and run.saver.is_due(run.progress.iteration)
    run.should_stop()  # notes in the request if `max_runtime` is over
    request = run.stop
    own = np.asarray([request.signal or 0, request.is_out_of_time, is_save_due, request.has_failed], np.int32)
    signal, is_out_of_time, is_due, has_failed = gather_rows(own).max(axis=0)
    # Never reset: a signal may have arrived since `own` was built.
    if signal:
        request.signal = int(signal)
    if is_out_of_time:
        request.is_out_of_time = True
    if has_failed:
        run.callbacks.raise_together()
    if is_due:
        save(run)
    return bool(signal or is_out_of_time)


def check_finite(run: Run, metrics: Mapping[str, float]) -> None:
    """Raises TrainingDivergedError if `max_bad_updates` updates in a row were skipped."""
    limit = run.task.config.max_bad_updates
    num_bad_updates = int(run.task.layout.first(run.state.get().learner.num_bad_updates))
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
        f"or lower learning_rate.{run.nan_dump.hint()}"
    )


def check_episodes(run: Run, metrics: Mapping[str, float]) -> None:
    """Warns once if episodes have failed within a few steps for many iterations, so that nothing can be learned."""
    if run.num_hopeless == HOPELESS_ITERATIONS:  # warned already
        return
    ends = {name: share for name, share in metrics.items() if name.startswith("termination/")}
    ends |= {NON_FINITE: metrics[NON_FINITE]} if metrics.get(NON_FINITE) else {}
    num_steps = run.task.config.num_envs * run.task.config.rollout_length
    failed = np.nan_to_num(metrics["episode/count"] * metrics["episode/terminated_fraction"]) / num_steps
    failed += metrics.get(NON_FINITE, 0.0)
    run.num_hopeless = run.num_hopeless + 1 if failed * HOPELESS_STEPS >= 1 else 0
    if run.num_hopeless < HOPELESS_ITERATIONS or not is_main_process():
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


def check_physics(run: Run, metrics: Mapping[str, float]) -> None:
    """Warns once if the physics engine could not simulate all of an iteration."""
    problem = "" if run.was_warned_of_physics else run.task.environment.problem(metrics)
    if problem and is_main_process():
        run.was_warned_of_physics = True
        warn_user(problem)


def check_replicas(run: Run, iteration: int) -> None:
    """Compares the devices' copies of the learner, if that is due; may replace them.

    Raises:
        ReplicasDivergedError: They differ, and the options say that the run then stops.
    """
    if run.replica_guard is None or not run.replica_guard.is_due(iteration):
        return
    state = run.state.get()
    try:
        learner = run.replica_guard(state.learner, iteration)
    except ReplicasDivergedError as error:
        # The majority's copy is saved. Without a majority nothing is saved.
        learner = error.learner
        run.state.placed = None if learner is None else dataclasses.replace(state, learner=learner)
        raise
    run.state.placed = dataclasses.replace(state, learner=learner)


def report_if_due(run: Run) -> None:
    """Evaluates, if an evaluation is due."""
    if run.reports.is_due(run.progress.iteration):
        with run.timers.timed("evaluation"), _watching_reports(run):
            run.reports.after_iteration(run.progress, run.state.learner())


def report_at_end(run: Run) -> None:
    """Evaluates the final policy and plots the learning curves."""
    if run.progress.iteration:
        with _watching_reports(run):
            run.reports.at_end(run.progress, run.state.learner())


def _watching_reports(run: Run) -> contextlib.AbstractContextManager[None]:
    # The first evaluation compiles, which may take long, so it is not watched.
    return run.watchdog.watching("an evaluation") if run.reports.is_warm else contextlib.nullcontext()


def save(run: Run) -> None:
    """Starts to save the state after the last iteration, unless it is saved already. All processes must call this.

    The decision is the same in all processes, because gathering the state is collective; process 0 writes it.
    """
    progress, placed = run.progress, run.state.get()
    if progress.iteration in (0, run.saved_iteration):
        return
    run.callbacks.before_save()
    with run.timers.timed("saving"), run.watchdog.watching("saving"):
        state = host_state(run.task, placed)
        if run.saver is not None:
            document = run_document(
                run.task, iteration=progress.iteration, progress=progress.record(), last_episodes=progress.last_episodes
            )
            run.saver.save(progress.iteration, state, document)
    # Not before: if an error interrupts the block above, the state is still unsaved.
    run.saved_iteration = progress.iteration


def save_after(run: Run, error: Exception) -> None:
    """Saves the last state, unless that needs other processes that may be gone.

    If the error ends all processes, the others wait for process 0 to write: once one has ended, a launcher gives
    the rest little time.
    """
    of_all = TrainingDivergedError, ReplicasDivergedError, CallbackError
    is_alike = num_processes() == 1 or isinstance(error, of_all)
    with run.failures.tolerate("saving after the error"):
        if run.state.placed is not None and is_alike:
            save(run)
        if run.saver is not None:
            with run.watchdog.watching("writing the last checkpoint"):
                run.saver.wait()
            run.callbacks.after_save()
        run.callbacks.training_end(error)
        if is_alike:
            wait_for_all()


def finish_saving(run: Run) -> None:
    """Waits for the last checkpoint; raises RunError if it could not be written."""
    if run.saver is not None:
        with run.watchdog.watching("writing the last checkpoint"):
            run.saver.close(run.progress.iteration)
    run.callbacks.after_save()
