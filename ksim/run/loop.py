"""The training loop."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ksim.parallel.multihost import (
    Peers,
    gather_rows,
    is_main_process,
    meet_peers,
    naming_lost,
    together,
    wait_for_all,
)
from ksim.parallel.placement import copy_of
from ksim.ppo.train_step import DEVICE_TIMES
from ksim.run.checkpoint import save_checkpoint
from ksim.run.console import console, iteration_line, print_line, print_start, print_summary
from ksim.run.loggers import MetricsWriter
from ksim.run.replica_guard import ReplicasDivergedError
from ksim.run.reports import Reports
from ksim.run.run_dir import check_run_dir, log_to_file, save_config, shared_run_dir
from ksim.run.signals import StopRequest, stop_on_signal
from ksim.run.timing import HostTimers, device_times, time_learning, time_synchronisation
from ksim.types import LearnerState, RunError, TrainState

if TYPE_CHECKING:
    from ksim.task.rl import RLTask

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TrainingDivergedError(RunError):
    """Too many updates in a row were not finite."""


@dataclasses.dataclass
class Progress:
    """Where a run stands, on the host: counters that outgrow 32 bits, and its pace.

    Attributes:
        steps_per_iteration: Control steps over all environments in one iteration.
        max_iterations: Where the run stops; None for no limit.
        max_env_steps: Likewise, in control steps over all environments.
        iteration: Iterations done.
        pace_s: Seconds per iteration, smoothed over the last ten or so.
        elapsed_s: Seconds that all iterations took.
    """

    steps_per_iteration: int
    max_iterations: int | None
    max_env_steps: int | None
    iteration: int = 0
    pace_s: float = 0.0
    elapsed_s: float = 0.0

    @property
    def env_steps(self) -> int:
        """Control steps done over all environments."""
        return self.iteration * self.steps_per_iteration

    def advance(self, iteration_s: float) -> None:
        """Counts an iteration that took so many seconds."""
        self.iteration += 1
        self.elapsed_s += iteration_s
        # The first iteration warms up; it says nothing about the rest.
        self.pace_s = iteration_s if self.iteration <= 2 else 0.9 * self.pace_s + 0.1 * iteration_s

    @property
    def iterations_left(self) -> int | None:
        """Iterations to the nearer limit; None without one."""
        limits = []
        if self.max_iterations is not None:
            limits.append(self.max_iterations)
        if self.max_env_steps is not None:
            limits.append(-(-self.max_env_steps // self.steps_per_iteration))
        return max(min(limits) - self.iteration, 0) if limits else None

    @property
    def eta_s(self) -> float | None:
        """Seconds to the nearer limit; None without one."""
        return None if self.iterations_left is None else self.iterations_left * self.pace_s


def train(task: "RLTask[Any]") -> int:
    """Trains a task until a limit or a signal; see `RLTask.run`.

    Raises:
        ConfigError: Something is known to be wrong; nothing has been compiled or written.
        RunError: Too many updates in a row were not finite, the devices' copies of the learner differ, or another
            process of the job failed.
    """
    console.quiet = not is_main_process()
    peers = meet_peers()
    with naming_lost(peers, lambda: "before the first iteration"):
        return _prepare_and_train(task, peers)


def _prepare_and_train(task: "RLTask[Any]", peers: Peers) -> int:
    with together():
        if is_main_process():
            check_run_dir(task.config.run_dir)
        task.check()
    print_start(task)
    with together():
        prepare_s, state = _timed(task.initial_state)
        task.check_curricula(state)
        # In place of the first one, which would take as much memory throughout the run.
        state = task.layout.place(state)
    run_dir = shared_run_dir(task.config.run_dir, task.task_name)
    with contextlib.ExitStack() as stack:
        with together():
            stack.enter_context(log_to_file(run_dir))
        try:
            return _train_in(task, state, run_dir, prepare_s, peers)
        except BaseException:
            logger.exception("The run ended with an error.")
            raise


def _train_in(task: "RLTask[Any]", state: TrainState, run_dir: Path, prepare_s: float, peers: Peers) -> int:
    with stop_on_signal() as stop, contextlib.ExitStack() as stack:
        writer: MetricsWriter | None = None
        with together():
            if is_main_process():
                save_config(task.config, run_dir)
                writer = stack.enter_context(MetricsWriter(run_dir, tensorboard=task.config.tensorboard))
        print_line(f"Run directory: {run_dir}")
        print_line(f"First states: {prepare_s:.1f} s. Compiling the training step ...")
        step = task.make_train_step(task.layout.axis_name)
        compile_s, compiled = _timed(lambda: task.layout.compile(step, state))
        print_line(f"Compiled in {compile_s:.1f} s.")
        logger.info("First states in %.1f s, training step compiled in %.1f s.", prepare_s, compile_s)
        reports = Reports(task, run_dir, writer=writer, stop=stop)
        loop = _Loop(task, state, step=compiled, writer=writer, reports=reports, stop=stop, run_dir=run_dir)
        del state
        with naming_lost(peers, lambda: f"in iteration {loop.progress.iteration + 1}"):
            loop.run()
            # Those that have nothing to evaluate wait here: a process that ends without the others fails them.
            wait_for_all()
    print_summary(loop.progress, run_dir, compile_s=prepare_s + compile_s, stop=stop, reports=reports)
    return stop.exit_code


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    start_s = time.perf_counter()
    result = function()
    return time.perf_counter() - start_s, result


class _Loop:
    """Iterations, and what is written and printed after each."""

    def __init__(
        self,
        task: "RLTask[Any]",
        state: TrainState,
        *,
        step: Callable[..., Any],
        writer: MetricsWriter | None,
        reports: Reports,
        stop: StopRequest,
        run_dir: Path,
    ) -> None:
        self._task, self._step, self._state = task, step, state
        self._writer, self._reports, self._stop, self._run_dir = writer, reports, stop, run_dir
        config = task.config
        self.progress = Progress(config.num_envs * config.rollout_length, config.max_iterations, config.max_env_steps)
        self._guard = task.make_replica_guard(state)
        self._timers = HostTimers()
        self._learning_s: float | None = None
        self._sync_s: float | None = None
        self._learner: LearnerState | None = None
        self._last_episodes: dict[str, float] = {}

    def run(self) -> None:
        """Iterates to a limit or a signal, then saves what was learned; also when an error ends the run."""
        try:
            while self.progress.iterations_left != 0 and not self._all_stop():
                self._iterate()
                if self._learner is not None:
                    with self._timers.timed("evaluation"):
                        self._reports.after_iteration(self.progress, self._learner)
        finally:
            self._save()
        if self._learner is not None:
            self._reports.at_end(self.progress, self._learner)

    def _all_stop(self) -> bool:
        """Whether a signal has asked any process to stop: all stop after the same iteration, with its number."""
        asked = gather_rows(np.asarray(self._stop.signal or 0, np.int32))
        if asked.any():
            self._stop.signal = int(asked.max())
        return bool(asked.any())

    def _iterate(self) -> None:
        start_s = time.perf_counter()
        layout, progress = self._task.layout, self.progress
        self._state, device_metrics = self._step(self._state)
        values = layout.first(device_metrics)
        device_times_us = values.pop(DEVICE_TIMES, None)
        metrics = {name: float(x) for name, x in values.items()}
        # Copied: the next step reuses the state's memory, and an error in it would leave nothing to save.
        self._learner = copy_of(layout.first(self._state.learner))
        iteration_s = time.perf_counter() - start_s
        progress.advance(iteration_s)
        metrics |= {
            "iteration": progress.iteration,
            "env_steps": progress.env_steps,
            "time/iteration_s": iteration_s,
            "time/env_steps_per_s": progress.steps_per_iteration / iteration_s,
        }
        if device_times_us is not None:
            metrics |= device_times(np.asarray(device_times_us))
        elif self._learning_s is not None and self._learning_s < iteration_s:
            metrics |= {"time/rollout_s": iteration_s - self._learning_s, "time/update_s": self._learning_s}
        if self._sync_s is not None:
            metrics["time/sync_s"] = self._sync_s
        metrics |= self._timers.take()
        with self._timers.timed("logging"):
            if self._writer is not None:
                self._writer.write(metrics, env_steps=progress.env_steps)
            # In many iterations no episode ends, and the line goes on showing the last that did.
            self._last_episodes |= {k: v for k, v in metrics.items() if k.startswith("episode/") and not np.isnan(v)}
            print_line(iteration_line(metrics | self._last_episodes, progress.max_iterations, progress.eta_s))
        self._check_finite(metrics)
        self._check_replicas()
        if progress.iteration == 1 and progress.iterations_left != 0:
            self._sync_s = time_synchronisation(self._task, self._state)
            if device_times_us is None:
                self._learning_s = time_learning(self._task, self._state)

    def _check_replicas(self) -> None:
        if self._guard is None or not self._guard.is_due(self.progress.iteration):
            return
        first = self._task.layout.first
        try:
            learner = self._guard(self._state.learner, self.progress.iteration)
        except ReplicasDivergedError as error:
            # What is saved is what most hold; where nobody knows which copy is right, nothing.
            self._learner = None if error.learner is None else copy_of(first(error.learner))
            raise
        if learner is not self._state.learner:  # made the same again
            self._state = dataclasses.replace(self._state, learner=learner)
            self._learner = copy_of(first(learner))

    def _check_finite(self, metrics: dict[str, float]) -> None:
        assert self._learner is not None
        limit = self._task.config.max_bad_updates
        num_bad_updates = int(self._learner.num_bad_updates)
        if num_bad_updates < limit:
            return
        suspects = [name for name, value in metrics.items() if name.startswith("reward/") and not np.isfinite(value)]
        cause = f" Not finite: {', '.join(suspects)}." if suspects else ""
        raise TrainingDivergedError(
            f"{num_bad_updates} updates in a row were skipped because a loss or gradient was not finite "
            f"(max_bad_updates={limit}).{cause} Look for a division by zero in a reward or observation, "
            "or lower learning_rate."
        )

    def _save(self) -> None:
        """Saves the learner of the last iteration that was completed, if there is one."""
        if self._learner is not None and is_main_process():
            path = save_checkpoint(self._run_dir, int(self._learner.iteration), self._learner)
            logger.info("Saved %s.", path)
