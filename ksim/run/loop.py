"""The training loop."""

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ksim.run.checkpoint import save_checkpoint
from ksim.run.console import console, format_seconds, iteration_line, print_environment, print_figures
from ksim.run.loggers import MetricsWriter
from ksim.run.run_dir import log_to_file, make_run_dir, save_config
from ksim.run.signals import StopRequest, stop_on_signal
from ksim.run.timing import peak_memory_bytes, time_learning
from ksim.task.distributed_rl import DistributedRLTask
from ksim.types import TrainState

if TYPE_CHECKING:
    from ksim.task.rl import RLTask

logger = logging.getLogger(__name__)


class TrainingDivergedError(RuntimeError):
    """Too many updates in a row were not finite."""


@dataclasses.dataclass
class Progress:
    """Where a run stands, on the host: counters that outgrow 32 bits, and its clock.

    Attributes:
        iteration: Iterations done.
        env_steps: Control steps over all environments.
        started_s: When the first iteration started.
    """

    iteration: int = 0
    env_steps: int = 0
    started_s: float = 0.0

    def is_done(self, max_iterations: int | None, max_env_steps: int | None) -> bool:
        """Whether a limit is reached."""
        return (max_iterations is not None and self.iteration >= max_iterations) or (
            max_env_steps is not None and self.env_steps >= max_env_steps
        )

    def eta_s(self, max_iterations: int | None, max_env_steps: int | None) -> float | None:
        """Seconds to the nearer limit at the speed so far; None without a limit."""
        elapsed_s = time.perf_counter() - self.started_s
        left = []
        if max_iterations is not None:
            left.append((max_iterations - self.iteration) / self.iteration)
        if max_env_steps is not None:
            left.append((max_env_steps - self.env_steps) / self.env_steps)
        return max(min(left), 0.0) * elapsed_s if left else None


def train(task: "RLTask[Any]") -> int:
    """Trains a task until a limit or a signal; see `RLTask.run`.

    Raises:
        ConfigError: Something is known to be wrong; nothing has been compiled or written.
        TrainingDivergedError: Too many updates in a row were not finite.
    """
    task.check()
    _print_start(task)
    host_state = task.initial_state()
    run_dir = make_run_dir(task.config.run_dir, task.task_name)
    handler = log_to_file(run_dir)
    try:
        save_config(task.config, run_dir)
        console.print(f"Run directory: [bold]{run_dir}[/bold]")
        with stop_on_signal() as stop, MetricsWriter(run_dir, tensorboard=task.config.tensorboard) as writer:
            state, step, compile_s = _compile(task, task.layout.place(host_state))
            del host_state
            progress = _iterate(task, state, step, writer, stop, run_dir)
        _print_summary(task, progress, run_dir, compile_s, stop)
    except BaseException:
        logger.exception("The run ended with an error.")
        raise
    finally:
        logging.getLogger("ksim").removeHandler(handler)
        handler.close()
    return stop.exit_code


def _compile(task: "RLTask[Any]", state: TrainState) -> tuple[TrainState, Callable[..., Any], float]:
    console.print("Compiling the training step ...")
    start_s = time.perf_counter()
    step = task.layout.compile(task.make_train_step(task.layout.axis_name), state)
    compile_s = time.perf_counter() - start_s
    console.print(f"Compiled in {compile_s:.1f} s.")
    logger.info("Compiled the training step in %.1f s.", compile_s)
    return state, step, compile_s


def _iterate(
    task: "RLTask[Any]",
    state: TrainState,
    step: Callable[..., Any],
    writer: MetricsWriter,
    stop: StopRequest,
    run_dir: Path,
) -> Progress:
    config, layout = task.config, task.layout
    limits = (config.max_iterations, config.max_env_steps)
    progress = Progress(started_s=time.perf_counter())
    learning_s: float | None = None
    try:
        while not progress.is_done(*limits) and stop.signal is None:
            start_s = time.perf_counter()
            state, device_metrics = step(state)
            metrics = {name: float(x) for name, x in layout.first(device_metrics).items()}
            iteration_s = time.perf_counter() - start_s
            progress.iteration += 1
            progress.env_steps += config.num_envs * config.rollout_length
            share = None if learning_s is None else min(learning_s / iteration_s, 1.0)
            metrics |= {
                "iteration": progress.iteration,
                "env_steps": progress.env_steps,
                "time/iteration_s": iteration_s,
                "time/env_steps_per_s": config.num_envs * config.rollout_length / iteration_s,
            }
            if share is not None:
                metrics["time/update_share"] = share
            writer.write(metrics, env_steps=progress.env_steps)
            console.print(iteration_line(metrics, config.max_iterations, progress.eta_s(*limits), share))
            _check_finite(task, int(layout.first(state.learner.num_bad_updates)), metrics)
            if progress.iteration == 1 and not progress.is_done(*limits):
                learning_s = time_learning(task, state)
    finally:
        # Whatever ends the loop, what was learned so far stays. The last state is whole: a step replaces it at once.
        if progress.iteration:
            path = save_checkpoint(run_dir, progress.iteration, layout.first(state.learner))
            logger.info("Saved %s after %d iterations.", path, progress.iteration)
    return progress


def _check_finite(task: "RLTask[Any]", num_bad_updates: int, metrics: dict[str, float]) -> None:
    if num_bad_updates < task.config.max_bad_updates:
        return
    suspects = [name for name, value in metrics.items() if name.startswith("reward/") and not np.isfinite(value)]
    cause = f" Not finite: {', '.join(suspects)}." if suspects else ""
    raise TrainingDivergedError(
        f"{num_bad_updates} updates in a row were skipped because a loss or gradient was not finite "
        f"(max_bad_updates={task.config.max_bad_updates}).{cause} Look for a division by zero in a reward or "
        "observation, or lower learning_rate."
    )


def _print_start(task: "RLTask[Any]") -> None:
    config, layout = task.config, task.layout
    if isinstance(task, DistributedRLTask):
        task.verify_distributed_setup()
    figures = {
        "task": type(task).__name__,
        "devices": f"{layout.num_devices} x {layout.devices[0].platform} ({layout.devices[0].device_kind})",
        "JAX": jax.__version__,
        "environments": str(config.num_envs),
        "steps per iteration": f"{config.num_envs * config.rollout_length:,}",
    }
    from ksim.rollout.mdp_environment import MdpEnvironment  # noqa: PLC0415

    if isinstance(task.environment, MdpEnvironment):
        name, reason = task.engine_choice
        figures["engine"] = f"{name} ({reason})"
    print_figures("Run", figures)
    print_environment(task.environment, task.obs_sizes)


def _print_summary(task: "RLTask[Any]", progress: Progress, run_dir: Path, compile_s: float, stop: StopRequest) -> None:
    elapsed_s = time.perf_counter() - progress.started_s
    figures = {
        "iterations": str(progress.iteration),
        "environment steps": f"{progress.env_steps:,}",
        "training time": format_seconds(elapsed_s),
        "compile time": f"{compile_s:.1f} s",
        "peak memory": f"{peak_memory_bytes() / 2**20:,.0f} MiB",
        "metrics": str(run_dir / "metrics.jsonl"),
    }
    if progress.iteration:
        figures["checkpoint"] = str(run_dir / "checkpoints" / str(progress.iteration))
        figures["evaluate it"] = f"run_mode=eval checkpoint={run_dir}"
    if stop.signal is not None:
        figures["stopped by"] = f"signal {stop.signal}"
    print_figures("Done" if stop.signal is None else "Stopped", figures)
