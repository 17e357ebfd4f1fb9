"""The training loop."""

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ksim.run.checkpoint import save_checkpoint
from ksim.run.console import console, iteration_line, print_start, print_summary
from ksim.run.loggers import MetricsWriter
from ksim.run.run_dir import log_to_file, make_run_dir, save_config
from ksim.run.signals import StopRequest, stop_on_signal
from ksim.run.timing import time_learning
from ksim.types import TrainState

if TYPE_CHECKING:
    from ksim.task.rl import RLTask

logger = logging.getLogger(__name__)


class TrainingDivergedError(RuntimeError):
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
    """

    steps_per_iteration: int
    max_iterations: int | None
    max_env_steps: int | None
    iteration: int = 0
    pace_s: float = 0.0

    @property
    def env_steps(self) -> int:
        """Control steps done over all environments."""
        return self.iteration * self.steps_per_iteration

    def advance(self, iteration_s: float) -> None:
        """Counts an iteration that took so many seconds."""
        self.iteration += 1
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
        TrainingDivergedError: Too many updates in a row were not finite.
    """
    task.check()
    print_start(task)
    host_state = task.initial_state()
    run_dir = make_run_dir(task.config.run_dir, task.task_name)
    handler = log_to_file(run_dir)
    try:
        save_config(task.config, run_dir)
        console.print(f"Run directory: [bold]{run_dir}[/bold]")
        with stop_on_signal() as stop, MetricsWriter(run_dir, tensorboard=task.config.tensorboard) as writer:
            state = task.layout.place(host_state)
            del host_state
            step, compile_s = _compile(task, state)
            loop = _Loop(task, state, step=step, writer=writer, stop=stop, run_dir=run_dir)
            del state
            start_s = time.perf_counter()
            loop.run()
            training_s = time.perf_counter() - start_s
        print_summary(loop.progress, run_dir, compile_s=compile_s, training_s=training_s, stop=stop)
    except BaseException:
        logger.exception("The run ended with an error.")
        raise
    finally:
        logging.getLogger("ksim").removeHandler(handler)
        handler.close()
    return stop.exit_code


def _compile(task: "RLTask[Any]", state: TrainState) -> tuple[Callable[..., Any], float]:
    console.print("Compiling the training step ...")
    start_s = time.perf_counter()
    step = task.layout.compile(task.make_train_step(task.layout.axis_name), state)
    compile_s = time.perf_counter() - start_s
    console.print(f"Compiled in {compile_s:.1f} s.")
    logger.info("Compiled the training step in %.1f s.", compile_s)
    return step, compile_s


class _Loop:
    """Iterations, and what is written and printed after each."""

    def __init__(
        self,
        task: "RLTask[Any]",
        state: TrainState,
        *,
        step: Callable[..., Any],
        writer: MetricsWriter,
        stop: StopRequest,
        run_dir: Path,
    ) -> None:
        self._task, self._step, self._state = task, step, state
        self._writer, self._stop, self._run_dir = writer, stop, run_dir
        config = task.config
        self.progress = Progress(config.num_envs * config.rollout_length, config.max_iterations, config.max_env_steps)

    def run(self) -> None:
        """Iterates to a limit or a signal, then saves what was learned; also when an error ends the run."""
        learning_s: float | None = None
        try:
            while self.progress.iterations_left != 0 and self._stop.signal is None:
                metrics = self._iterate(learning_s)
                self._check_finite(metrics)
                if self.progress.iteration == 1 and self.progress.iterations_left != 0:
                    learning_s = time_learning(self._task, self._state)
        except BaseException:
            try:
                self._save()
            except Exception:
                logger.exception("The state could not be saved.")
            raise
        self._save()

    def _iterate(self, learning_s: float | None) -> dict[str, float]:
        start_s = time.perf_counter()
        # The step reuses its argument's memory: there is only ever the newest state, and it is always whole.
        self._state, device_metrics = self._step(self._state)
        metrics = {name: float(x) for name, x in self._task.layout.first(device_metrics).items()}
        iteration_s = time.perf_counter() - start_s
        progress = self.progress
        progress.advance(iteration_s)
        metrics |= {
            "iteration": progress.iteration,
            "env_steps": progress.env_steps,
            "time/iteration_s": iteration_s,
            "time/env_steps_per_s": progress.steps_per_iteration / iteration_s,
        }
        if learning_s is not None:
            metrics["time/update_share"] = min(learning_s / iteration_s, 1.0)
        self._writer.write(metrics, env_steps=progress.env_steps)
        console.print(iteration_line(metrics, progress.max_iterations, progress.eta_s))
        return metrics

    def _check_finite(self, metrics: dict[str, float]) -> None:
        limit = self._task.config.max_bad_updates
        num_bad_updates = int(self._task.layout.first(self._state.learner.num_bad_updates))
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
        if self.progress.iteration:
            learner = self._task.layout.first(self._state.learner)
            path = save_checkpoint(self._run_dir, self.progress.iteration, learner)
            logger.info("Saved %s after %d iterations.", path, self.progress.iteration)
