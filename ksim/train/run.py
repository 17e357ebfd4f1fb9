"""A training run: start, parts, loop and summary."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ksim.checkpoint.format import find_best
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.run_dir import locked, note_run_dir, save_config, shared_run_dir
from ksim.checkpoint.saver import Saver
from ksim.checkpoint.snapshot import plain_config, versions
from ksim.config import as_argument, hyperparameters, seconds_of
from ksim.errors import RunError
from ksim.evaluate.reports import Reports
from ksim.host.signals import StopRequest, stop_on_signal
from ksim.host.terminal import Activity, Failures, console, format_seconds, print_figures, print_line
from ksim.log.logger import AbstractLogger, Loggers, RunInfo
from ksim.log.run_log import log_path, run_log
from ksim.parallel.multihost import Peers, fail_together, is_main_process, meet_peers, name_lost_peers
from ksim.policy.load import PolicyExport
from ksim.preflight.devices import log_setup, log_state, verify_setup
from ksim.preflight.start import inspect_start, print_start
from ksim.task.distributed import DistributedRLConfig, DistributedRLTask
from ksim.task.result import RunResult
from ksim.task.rl import RLTask
from ksim.train.callbacks import Callbacks, log_handlers, reraise_exits, task_loggers
from ksim.train.loop import Checks, Loop, RunState, Saving, Stopping
from ksim.train.start import (
    Start,
    check_start,
    find_start,
    log_resumed,
    prepare_run_dir,
    print_resumed,
    started_progress,
)
from ksim.train.timing import HostTimers, TimedStep, peak_memory_bytes
from ksim.train.watchdog import Watchdog
from ksim.viewer.live import LiveViewer, check_live_viewer, is_viewer_process


def print_summary(
    progress: Progress,
    run_dir: Path,
    *,
    compile_s: float,
    stop: StopRequest,
    saver: Saver | None,
    reports: Reports,
    dashboards: Mapping[str, str],
) -> None:
    """Prints the progress, the files written, and how to open the dashboards."""
    figures = {
        "iterations": str(progress.iteration),
        "environment steps": f"{progress.env_steps:,}",
        "training time": format_seconds(progress.elapsed_s),
        "before the first iteration": f"{compile_s:.1f} s, most of it compiling",
        "peak memory": f"{peak_memory_bytes() / 2**20:,.0f} MiB",
    } | _existing({"metrics": run_dir / "metrics.jsonl"})
    best = None
    if saver is not None and saver.newest is not None and os.path.exists(saver.newest[1]):
        figures["checkpoint"] = str(saver.newest[1])
        with contextlib.suppress(OSError):
            best = find_best(run_dir)
        if best is not None and best != saver.newest[1]:
            figures["best by evaluation"] = str(best)
        figures["evaluate it"] = f"run_mode=eval {as_argument('checkpoint', str(run_dir))}"
        figures["resume it"] = as_argument("resume", str(run_dir))
    if progress.bad_updates:
        figures["updates skipped"] = f"{progress.bad_updates:,}, non-finite"
    if progress.not_finite_steps:
        figures["steps skipped"] = f"{progress.not_finite_steps:,} of single environments, non-finite"
    figures |= _existing(reports.paths)
    figures |= dashboards
    figures |= {f"failed: {kind}": f"{count} times" for kind, count in reports.failures.counts.items()}
    if stop.reason is not None:
        figures["stopped by"] = stop.reason
    print_figures("Done" if stop.reason is None else "Stopped", figures)


def _existing(paths: Mapping[str, Path]) -> dict[str, str]:
    # Unlike os.path.exists, Path.exists raises if a parent directory may not be searched.
    return {name: str(path) for name, path in paths.items() if os.path.exists(path)}


logger = logging.getLogger(__name__)

T = TypeVar("T")


def train(task: RLTask[Any]) -> RunResult:
    """Trains a task until a limit or a signal; see `RLTask.run`.

    Raises:
        ConfigError: A check before the start failed; nothing has been compiled or written.
        RunError: Too many updates in a row were non-finite, the devices' copies of the learner differ, a hook of the
            task failed, or another process of the job failed.
    """
    if is_viewer_process():
        raise RunError(
            "The viewer's process imports the program, and must not train. Put the call that trains under "
            '`if __name__ == "__main__":`.'
        )
    console.quiet = not is_main_process()
    peers = meet_peers()
    with (
        reraise_exits(),
        run_log(task.config.log_level) as log,
        name_lost_peers(peers, lambda: "before the first iteration"),
        contextlib.ExitStack() as stack,
    ):
        start = find_start(task.config, task.task_name)
        with fail_together():
            check_start(task, start)
            task.check()
            check_live_viewer(task)
            loggers = task_loggers(task) if is_main_process() else []
        if isinstance(task, DistributedRLTask):
            task.verify_distributed_setup()
        elif isinstance(task.config, DistributedRLConfig):  # the options say where a task runs, whatever its class
            log_setup(task, peers, verify_setup(task))
        else:
            log_setup(task, peers)
        print_start(inspect_start(task))
        print_resumed(task, start)
        with fail_together():
            prepare_s, state = _timed(lambda: RunState(task, start))
        stack.callback(state.release)
        start = start.without_arrays()
        run_dir = shared_run_dir(start.run_dir, task.config.run_dir, task.task_name)
        with fail_together():
            if is_main_process():
                stack.enter_context(locked(run_dir))
                note_run_dir(run_dir)
            log.open(run_dir)
            if is_main_process():
                stack.enter_context(log_handlers(task))
        log_resumed(task, start)
        try:
            return _train_in(run_dir, task, start, state, loggers, prepare_s=prepare_s, peers=peers)
        except BaseException:
            logger.exception("The run ended with an error.")
            raise


def _train_in(
    run_dir: Path,
    task: RLTask[Any],
    start: Start,
    state: RunState,
    loggers: Sequence[AbstractLogger],
    *,
    prepare_s: float,
    peers: Peers,
) -> RunResult:
    with stop_on_signal() as stop, contextlib.ExitStack() as stack:
        loop = make_loop(task, start, state, run_dir, stop=stop, loggers=loggers)
        with fail_together():
            if is_main_process():
                prepare_run_dir(run_dir, start)
                save_config(task.config, run_dir)
                open_files(loop, start, run_dir, stack)
            stack.enter_context(loop.watchdog)
            print_line(f"Run directory: {run_dir}")
            for name, how in loop.loggers.dashboards.items():
                print_line(f"{name}: {how}")
            stack.enter_context(loop.callbacks)
        print_line(f"First states: {prepare_s:.1f} s.")
        with Activity.doing("Compiling the training step"):
            compile_s, step = _timed(lambda: _compiled_step(task, state))
        print_line(f"Compiled in {compile_s:.1f} s.")
        logger.info("First states in %.1f s, training step compiled in %.1f s.", prepare_s, compile_s)
        with name_lost_peers(peers, lambda: f"in iteration {loop.progress.iteration + 1}"):
            loop.run(step)
            # Processes without an evaluation wait here: a process that ends early makes the others fail.
            loop.callbacks.raise_together()
    before_s = prepare_s + compile_s
    print_summary(
        loop.progress,
        run_dir,
        compile_s=before_s,
        stop=stop,
        saver=loop.saving.saver,
        reports=loop.reports,
        dashboards=loop.loggers.dashboards,
    )
    return RunResult(exit_code=stop.exit_code, run_dir=run_dir)


def make_loop(
    task: RLTask[Any],
    start: Start,
    state: RunState,
    run_dir: Path,
    *,
    stop: StopRequest,
    loggers: Sequence[AbstractLogger],
) -> Loop:
    """The loop of a run with all its parts; no file is open yet."""
    config, timers, failures = task.config, HostTimers(), Failures()
    progress = started_progress(config, start)
    watchdog = Watchdog(config.hang_timeout_s, log_path(run_dir))
    stopping = Stopping(stop, progress, seconds_of("max_runtime", config.max_runtime))
    reports = Reports(task, run_dir, failures=failures, should_stop=stopping.is_asked)
    read_model = lambda: reports.model(state.learner())
    callbacks = Callbacks(task, run_dir, progress, timers, watchdog=watchdog, stop=stop, read_model=read_model)
    saving = Saving(
        task,
        state,
        progress,
        saved_iteration=start.saved_iteration,
        callbacks=callbacks,
        timers=timers,
        watchdog=watchdog,
        failures=failures,
    )
    return Loop(
        task=task,
        state=state,
        progress=progress,
        loggers=Loggers(loggers, failures),
        checks=Checks(task, state, run_dir),
        reports=reports,
        saving=saving,
        stopping=stopping,
        callbacks=callbacks,
        viewer=LiveViewer(task, failures) if config.viewer_while_training and is_main_process() else None,
        watchdog=watchdog,
        timers=timers,
    )


def open_files(loop: Loop, start: Start, run_dir: Path, stack: contextlib.ExitStack) -> None:
    """Opens the loggers, the saver and the viewer of process 0, until the stack is closed."""
    task, progress, reports = loop.task, loop.progress, loop.reports
    versions()  # cached now, before packages are replaced on disk
    stack.callback(loop.loggers.close)
    loop.loggers.open(
        RunInfo(
            run_dir=run_dir,
            task_name=task.task_name,
            config=plain_config(task.config),
            hyperparameters=hyperparameters(type(task.config)),
            is_resumed=start.run_dir is not None,
            iteration=progress.iteration,
            env_steps=progress.env_steps,
            max_iterations=progress.max_iterations,
            last_episodes=MappingProxyType(progress.last_episodes),
            eta_s=lambda: progress.eta_s,
            devices=f"{task.layout.num_devices} x {task.layout.platform}",
            line=task.learner_info().line,
        )
    )
    policy = PolicyExport(reports.model(task.initial_learner()[0]), task.obs_sizes)
    saver = Saver(run_dir, task.config, reports.failures, {**policy.arrays(), **task.kept_arrays()})
    if start.run_dir is not None and start.resumed is not None:
        saver.resume(start.resumed.iteration, start.resumed.path.absolute())
    loop.saving.saver = saver
    reports.open(loop.loggers, saver)
    loop.callbacks.open(saver, loop.loggers)
    if loop.viewer is not None:
        stack.enter_context(loop.viewer)


def _compiled_step(task: RLTask[Any], state: RunState) -> TimedStep:
    step = task.make_train_step(task.layout.axis_name)
    log_state(step, state.get())
    # With `dump_on_nan`, the state before a non-finite step is dumped, so it must survive the step.
    return TimedStep(task.layout, step, state.get(), donate=not task.config.dump_on_nan)


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    start_s = time.perf_counter()
    result = function()
    return time.perf_counter() - start_s, result
