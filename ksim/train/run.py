"""A training run: start, parts, loop and summary."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ksim.checkpoint.dump import NanDump
from ksim.checkpoint.format import find_best
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.run_dir import locked, note_run_dir, save_program, shared_run_dir
from ksim.checkpoint.saver import Saver
from ksim.checkpoint.snapshot import plain_config, versions
from ksim.config import as_argument, changed_options, hyperparameters, seconds_of
from ksim.errors import RunError
from ksim.evaluate.reports import Reports
from ksim.host.machine import python_word
from ksim.host.signals import stop_on_signal
from ksim.host.terminal import Activity, Failures, console, format_seconds, print_figures, print_line
from ksim.log.logger import AbstractLogger, Loggers, RunInfo
from ksim.log.run_log import RunLog, log_path, run_log
from ksim.parallel.multihost import fail_together, is_main_process, meet_peers, name_lost_peers
from ksim.policy.load import program_arrays
from ksim.preflight.devices import log_setup, log_state, verify_setup
from ksim.preflight.start import inspect_start, print_start
from ksim.task.distributed import DistributedRLConfig, DistributedRLTask, make_replica_guard
from ksim.task.result import RunResult
from ksim.task.rl import RLTask
from ksim.train.callbacks import Callbacks, log_handlers, reraise_exits, task_loggers
from ksim.train.loop import Run, RunState, loop, update_stop_request
from ksim.train.start import (
    Start,
    check_start,
    find_start,
    log_resumed,
    prepare_run_dir,
    print_resumed,
    started_progress,
)
from ksim.train.timing import HostTimers, TimedStep, TracedStep, peak_memory_bytes
from ksim.train.watchdog import Watchdog
from ksim.viewer.live import LiveViewer, check_live_viewer, is_viewer_process

logger = logging.getLogger(__name__)

T = TypeVar("T")


def train(task: RLTask[Any]) -> RunResult:
    """Trains a task until a limit or a signal; see `RLTask.run`.

    Raises:
        ConfigError: A check failed; the training step has not been compiled.
        RunError: Too many updates in a row were non-finite, the devices' copies of the learner differ, a hook of the
            task failed, another process of the job failed, or this is the viewer's process.
    """
    if is_viewer_process():
        raise RunError(
            "The viewer's process imports the program, and must not train. Put the call that trains under "
            '`if __name__ == "__main__":`.'
        )
    console.quiet = not is_main_process()
    peers = meet_peers()
    before = name_lost_peers(peers, lambda: "before the first iteration")
    with reraise_exits(), run_log(task.config.log_level) as log, before:
        start = find_start(task.config, task.task_name)
        with fail_together():
            check_start(task, start)
            task.check()
            check_live_viewer(task)
            loggers = task_loggers(task) if is_main_process() else []
        if isinstance(task, DistributedRLTask):
            task.verify_distributed_setup()
        elif isinstance(task.config, DistributedRLConfig):  # decided by the options, not by the task's class
            log_setup(task, peers, verify_setup(task))
        else:
            log_setup(task, peers)
        print_start(inspect_start(task))
        print_resumed(task, start)
        with open_run(task, start, loggers, log) as run:
            del start  # the checkpoint's arrays would take memory throughout the run
            step = compile_step(run)
            with name_lost_peers(peers, lambda: f"in iteration {run.progress.iteration + 1}"):
                loop(run, step)
        print_summary(run)
        return RunResult(exit_code=run.stop.exit_code, run_dir=run.run_dir)


def traced_state(task: RLTask[Any], start: Start) -> tuple[RunState, TracedStep]:
    """The placed state that a run starts from, and the training step traced for it; raises as `open_run`."""
    state = RunState(task, start)
    # With `dump_on_nan`, the state before a non-finite step is dumped, so it must survive the step.
    donate = not task.config.dump_on_nan
    return state, TracedStep(task.layout, task.make_train_step(task.layout.axis_name), state.get(), donate=donate)


def open_run(task: RLTask[Any], start: Start, loggers: Sequence[AbstractLogger], log: RunLog) -> Run:
    """Places the state that a run starts from, and opens the run's parts. Only process 0 has loggers.

    Raises:
        ConfigError: The checkpoint does not fit the task, a curriculum depends on a metric that does not exist, or the
            run's directory cannot be used.
        CallbackError: A hook failed.
    """
    config, timers, failures = task.config, HostTimers(), Failures()
    with contextlib.ExitStack() as stack:
        with fail_together():
            setup_s, (state, traced) = _timed(lambda: traced_state(task, start))
        stack.callback(state.release)
        run_dir = _open_run_dir(task, start, log, stack)
        stop = stack.enter_context(stop_on_signal())
        progress, group = started_progress(config, start), Loggers(loggers, failures)
        max_runtime_s = seconds_of("max_runtime", config.max_runtime)
        should_stop = lambda: update_stop_request(stop, progress, max_runtime_s)
        watchdog = Watchdog(config.hang_timeout_s, log_path(run_dir))
        with fail_together():
            files = {"progress": progress, "loggers": group, "failures": failures, "stack": stack}
            saver = open_files(task, start, run_dir, **files) if is_main_process() else None
            reports = Reports(task, run_dir, failures=failures, should_stop=should_stop, loggers=group, saver=saver)
            is_watched = config.viewer_while_training and is_main_process()
            viewer = stack.enter_context(LiveViewer(task, failures)) if is_watched else None
            stack.enter_context(watchdog)
            for name, how in {"Run directory": run_dir, **group.dashboards}.items():
                print_line(f"{name}: {how}")
            callbacks = Callbacks(
                task=task,
                run_dir=run_dir,
                progress=progress,
                timers=timers,
                watchdog=watchdog,
                stop=stop,
                read_model=state.model,
                loggers=group,
                saver=saver,
            )
            stack.enter_context(callbacks)
        return Run(
            task=task,
            run_dir=run_dir,
            state=state,
            traced=traced,
            progress=progress,
            stop=stop,
            should_stop=should_stop,
            loggers=group,
            reports=reports,
            callbacks=callbacks,
            saver=saver,
            saved_iteration=start.saved_iteration,
            viewer=viewer,
            watchdog=watchdog,
            timers=timers,
            failures=failures,
            nan_dump=NanDump(task, run_dir),
            replica_guard=make_replica_guard(config, task.layout, state.get().learner),
            setup_s=setup_s,
            resources=stack.pop_all(),
        )


def _open_run_dir(task: RLTask[Any], start: Start, log: RunLog, stack: contextlib.ExitStack) -> Path:
    """The run's directory, locked by process 0 until the stack is closed, with the logs of all processes."""
    run_dir = shared_run_dir(start.run_dir, task.config.run_dir, task.task_name)
    with fail_together():
        if is_main_process():
            stack.enter_context(locked(run_dir))
            note_run_dir(run_dir)
        log.open(run_dir)
        if is_main_process():
            stack.enter_context(log_handlers(task))
    log_resumed(task, start)
    stack.enter_context(_logged_errors())
    return run_dir


@contextlib.contextmanager
def _logged_errors() -> Iterator[None]:
    try:
        yield
    except BaseException:
        logger.exception("The run ended with an error.")
        raise


def open_files(
    task: RLTask[Any],
    start: Start,
    run_dir: Path,
    *,
    progress: Progress,
    loggers: Loggers,
    failures: Failures,
    stack: contextlib.ExitStack,
) -> Saver:
    """Opens the files of process 0: those of the loggers, until the stack is closed, and the saver of checkpoints."""
    prepare_run_dir(run_dir, start)
    save_program(task.config, task.command, run_dir)
    versions()  # cached now, before packages are replaced on disk
    stack.callback(loggers.close)
    loggers.open(
        RunInfo(
            run_dir=run_dir,
            task_name=task.task_name,
            config=plain_config(task.config),
            hyperparameters=hyperparameters(type(task.config)),
            changed=changed_options(task.config),
            is_resumed=start.run_dir is not None,
            iteration=progress.iteration,
            env_steps=progress.env_steps,
            max_iterations=progress.last_iteration,
            last_episodes=MappingProxyType(progress.last_episodes),
            eta_s=lambda: progress.eta_s,
            devices=f"{task.layout.num_devices} x {task.layout.platform}",
            line=task.learner_info().line,
        )
    )
    programs = program_arrays(task.policy_of(task.initial_learner().state), task.obs_sizes)
    saver = Saver(run_dir, task, failures, {**programs, **task.kept_arrays()})
    if start.run_dir is not None and start.resumed is not None:
        saver.newest = start.resumed.iteration, start.resumed.path.absolute()
    return saver


def compile_step(run: Run) -> TimedStep:
    """Compiles the training step for the run's state."""
    state = run.state.get()
    log_state(run.traced.step, state)
    print_line(f"First states: {run.setup_s:.1f} s.")
    with Activity.doing("Compiling the training step"):
        compile_s, step = _timed(lambda: run.traced.compile(state))
    del state
    print_line(f"Compiled in {compile_s:.1f} s.")
    logger.info("First states in %.1f s, training step compiled in %.1f s.", run.setup_s, compile_s)
    run.setup_s += compile_s
    return step


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    start_s = time.perf_counter()
    result = function()
    return time.perf_counter() - start_s, result


def print_summary(run: Run) -> None:
    """Prints the files written, the progress, the last evaluation, and commands for what comes next."""
    progress, run_dir, stop = run.progress, run.run_dir, run.stop
    figures, report = {"run directory": str(run_dir)}, run.reports.paths.get("report")
    figures |= _checkpoints(run)
    files = [run_dir / "metrics.jsonl", *(path for path in run.reports.paths.values() if path != report)]
    # Unlike os.path.exists, Path.exists raises if a parent directory may not be searched.
    names = [os.path.relpath(path, run_dir) for path in files if os.path.exists(path)]
    figures |= ({"its files": ", ".join(names)} if names else {}) | run.loggers.dashboards
    figures |= {
        "peak memory": f"{peak_memory_bytes() / 2**20:,.0f} MiB",
        "iterations": f"{progress.iteration:,} ({progress.env_steps:,} environment steps)",
        "training time": f"{format_seconds(progress.elapsed_s)}, and {run.setup_s:.1f} s before it, mostly to compile",
    }
    if progress.bad_updates:
        figures["updates skipped"] = f"{progress.bad_updates:,}, non-finite"
    if progress.not_finite_steps:
        figures["steps skipped"] = f"{progress.not_finite_steps:,} of single environments, non-finite"
    figures |= {f"failed: {kind}": f"{count} times" for kind, count in run.failures.counts.items()}
    if stop.reason is not None:
        figures["stopped by"] = stop.reason
    if run.reports.last_line:
        figures["last evaluation"] = run.reports.last_line
    if report is not None and os.path.exists(report):
        figures["report, for a browser"] = str(report)
    print_figures("Done" if stop.reason is None else "Stopped", figures)
    if run.task.command is not None and "checkpoint" in figures:
        print_line("\n".join(["Next:", *(f"  {line}" for line in next_commands(run, run.task.command))]))


def _checkpoints(run: Run) -> dict[str, str]:
    """The newest and the best checkpoint, if any; without a command to show, also options to evaluate and resume."""
    saver = run.saver
    if saver is None or saver.newest is None or not os.path.exists(saver.newest[1]):
        return {}
    figures, best = {"checkpoint": str(saver.newest[1])}, None
    with contextlib.suppress(OSError):
        best = find_best(run.run_dir)
    if best is not None and best != saver.newest[1]:
        figures["best by evaluation"] = str(best)
    if run.task.command is None:
        figures["evaluate it"] = f"run_mode=eval {as_argument('checkpoint', str(run.run_dir))}"
        figures["resume it"] = as_argument("resume", str(run.run_dir))
    return figures


def next_commands(run: Run, command: str) -> list[str]:
    """Commands for the next steps with a run, to be copied; `command` starts its program by `python`."""
    command = python_word() + command.removeprefix("python")
    checkpoint, resume = as_argument("checkpoint", str(run.run_dir)), as_argument("resume", str(run.run_dir))
    steps = [f"run_mode={mode} {checkpoint}" for mode in ("eval", "view", "export")]
    return [f"{command} {step}" for step in (*steps, resume)]
