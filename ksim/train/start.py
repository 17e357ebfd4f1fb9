"""The start of a run: from scratch, from a checkpoint of a previous process, or with the policy of another run."""

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import (
    CHECKPOINTS,
    Checkpoint,
    find_checkpoints,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
    readable,
    remove_all_but,
)
from ksim.checkpoint.options import AUTO, auto_run_dir, check_resumed, is_fixed, resumed_path
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.run_dir import check_can_be_made, check_run_dir, holds_run, settings_of
from ksim.checkpoint.snapshot import (
    changed_options,
    check_policy_fits,
    kept_options,
    restored,
    restored_policy,
    versions,
)
from ksim.config import as_argument
from ksim.errors import ConfigError
from ksim.host.terminal import print_figures, print_warning
from ksim.log.jsonl import METRICS, cut_lines, set_lines_aside
from ksim.parallel.multihost import fail_together, gather_texts, is_main_process, num_processes
from ksim.task.rl import RLConfig, RLTask
from ksim.types import TrainState

logger = logging.getLogger(__name__)

DAMAGED = "damaged"
"""Subdirectory of a run's directory for checkpoints that could not be read."""


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a run.

    Attributes:
        run_dir: Directory of the run to resume; None for a new run.
        checkpoint: The checkpoint to resume, or to take the policy from; None for a start from scratch.
        only_policy: Take only the policy from the checkpoint, for a new run.
        damaged: Names of newer checkpoints of the run that could not be read.
    """

    run_dir: Path | None = None
    checkpoint: Checkpoint | None = None
    only_policy: bool = False
    damaged: tuple[str, ...] = ()

    @property
    def resumed(self) -> Checkpoint | None:
        """The checkpoint to resume; None for a new run."""
        return None if self.only_policy else self.checkpoint

    @property
    def saved_iteration(self) -> int | None:
        """The iteration whose state the run's directory holds already; None if it holds none."""
        return None if self.run_dir is None or self.resumed is None else self.resumed.iteration


def find_start(config: RLConfig, task_name: str) -> Start:
    """The start that the config asks for. Process 0 finds the checkpoint, and the others read the same one.

    Raises:
        ConfigError: The checkpoint is missing, damaged, or cannot be resumed.
    """
    start = Start()
    with fail_together():
        if is_main_process():
            start = _look(config, task_name)
    if num_processes() == 1:
        return start
    path = None if start.checkpoint is None else str(start.checkpoint.path.absolute())
    run_dir = None if start.run_dir is None else str(start.run_dir)
    run_dir, path, only_policy = json.loads(gather_texts(json.dumps([run_dir, path, start.only_policy]))[0])
    with fail_together():
        if not is_main_process():
            checkpoint = None if path is None else _read_shared(Path(path))
            start = Start(None if run_dir is None else Path(run_dir), checkpoint, only_policy)
    return start


def prepare_run_dir(run_dir: Path, start: Start) -> None:
    """Restores the directory of a resumed run to its state at the checkpoint; raises ConfigError if it cannot."""
    if start.run_dir is None:
        return
    try:
        _undo_after(run_dir, 0 if start.resumed is None else start.resumed.iteration, start.damaged)
    except OSError as error:
        raise ConfigError(
            f"run_dir ({run_dir}) cannot be written: {error.strerror}. Make room or set its permissions, or resume "
            "elsewhere: resume=<this directory> run_dir=<a new one>."
        ) from error


def _undo_after(run_dir: Path, iteration: int, damaged: tuple[str, ...]) -> None:
    """Removes the files of later iterations. Damaged checkpoints are moved to `damaged`.

    Raises:
        ConfigError: There is a later checkpoint that was not there before.
        OSError: The directory cannot be changed.
    """
    later = [path for path in list_checkpoints(run_dir / CHECKPOINTS) if int(path.name) > iteration]
    for path in later:
        if path.name not in damaged:
            raise ConfigError(
                f"run_dir ({run_dir}) has a newer checkpoint, {path.name}, than the one that was read, {iteration}: "
                "another process has resumed the run in the meantime. Start again."
            )
    if iteration == 0 and (num_lines := set_lines_aside(run_dir)):
        print_warning(
            f"run_dir ({run_dir}) holds no checkpoint to resume, so training starts over. Its metrics, of "
            f"{num_lines} iterations, are in {METRICS}.before, unless longer ones were there."
        )
    cut_lines(run_dir, iteration)
    remove_all_but(run_dir / CHECKPOINTS, max_to_keep=2**31, also=None)
    for path in later:
        # The run will write a checkpoint of this name; the damaged one may still be worth a look.
        kept = run_dir / DAMAGED / path.name
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        path.rename(kept)


def check_start(task: RLTask[Any], start: Start) -> None:
    """Raises ConfigError unless a task can start from its checkpoint. Checks only what needs no compilation."""
    if start.resumed is not None:
        check_resumed(task.config, changed_options(task.config, start.resumed))
    if start.checkpoint is not None:
        check_policy_fits(start.checkpoint, task)


def started_state(task: RLTask[Any], start: Start, state: TrainState) -> TrainState:
    """The state that a run starts from: a fresh `state`, unless there is a checkpoint.

    Raises:
        ConfigError: The checkpoint does not fit the task.
    """
    if start.checkpoint is None:
        return state
    if start.only_policy:
        return dataclasses.replace(state, learner=restored_policy(start.checkpoint, state.learner))
    changed = changed_options(task.config, start.checkpoint)
    return task.adapt_resumed(restored(start.checkpoint, state), changed)


def started_progress(config: RLConfig, start: Start) -> Progress:
    """The progress of a run before the first iteration of this process."""
    progress = Progress(config.env_steps_per_iteration, config.max_iterations, config.max_env_steps)
    if start.resumed is not None:
        progress.resume(start.resumed.document["progress"])
        progress.last_episodes |= start.resumed.document.get("last_episodes", {})  # a dump has none
    return progress


def print_resumed(task: RLTask[Any], start: Start) -> None:
    """Prints the checkpoint that a run starts from, and the options and versions that changed since."""
    figures = _describe_start(task, start)
    if figures:
        print_figures("Policy" if start.only_policy else "Resumed", figures)


def log_resumed(task: RLTask[Any], start: Start) -> None:
    """Logs the same as `print_resumed`, which runs before there is a log."""
    figures = _describe_start(task, start)
    if figures:
        logger.info("Started from a checkpoint: %s", figures)
    for name in start.damaged:
        logger.warning("Checkpoint %s is damaged, and now in %s.", name, DAMAGED)


def _describe_start(task: RLTask[Any], start: Start) -> dict[str, str]:
    checkpoint = start.checkpoint
    if checkpoint is None:
        return {}
    figures = {"checkpoint": str(checkpoint.path), "iteration": str(checkpoint.iteration)}
    if start.only_policy:
        return figures
    for name, (there, here) in changed_options(task.config, checkpoint).items():
        figures[f"changed: {name}"] = f"{there} saved, {here} now"
    for name, (there, own) in kept_options(task.config, task.program_config, checkpoint).items():
        if is_fixed(task.config, name):
            fix = "cannot change on resume: start a new run for it"
        else:
            fix = f"to use it, add {as_argument(name, own)}"
        figures[f"kept: {name}"] = f"{there} saved, {own} in this program; {fix}"
    installed = versions()
    for name, version in checkpoint.document["versions"].items():
        if installed.get(name) != version:
            figures[f"version of {name}"] = f"{version} saved, {installed.get(name)} now"
    figures["devices"] = f"{checkpoint.document['num_devices']} saved, {task.layout.num_devices} now"
    reached = [limit for limit, left in started_progress(task.config, start).iterations_to.items() if left == 0]
    if reached:
        limits = ", ".join(as_argument(name, getattr(task.config, name)) for name in reached)
        figures["limit reached"] = f"{limits}. To train further, set {'it' if len(reached) == 1 else 'both'} higher"
    return figures


def _look(config: RLConfig, task_name: str) -> Start:
    path = None if config.resume is None else resumed_path(config, task_name)
    if path is None:
        return _look_for_beginning(config, task_name)
    # A checkpoint that appears while this one is read is not damaged: another process still trains there.
    there = find_checkpoints(path, "resume")
    checkpoint = load_checkpoint(path, "resume")
    origin = checkpoint.path.absolute().parents[1]
    is_elsewhere = config.run_dir is not None and Path(config.run_dir).absolute() != origin
    if is_elsewhere or checkpoint.path.parent.name != CHECKPOINTS:  # or a copy, of no run
        check_run_dir(config.run_dir)
        return Start(checkpoint=checkpoint)
    with readable(path, "resume"):
        newer = [p for p in list_checkpoints(checkpoint.path.parent) if int(p.name) > checkpoint.iteration]
    if newer and find_checkpoints(path, "resume")[0] == checkpoint.path:
        raise ConfigError(
            f"resume ({config.resume}) is not the newest checkpoint of its run, {newer[-1]} is, and resuming there "
            "would undo what came after it. Add run_dir=<a new directory>, or resume the whole run: "
            f"{as_argument('resume', str(origin))}"
        )
    run_dir = origin if config.run_dir is None else Path(config.run_dir)
    damaged = tuple(path.name for path in newer if path in there)
    return Start(run_dir=run_dir, checkpoint=checkpoint, damaged=damaged)


def _look_for_beginning(config: RLConfig, task_name: str) -> Start:
    """The start of a run that has no checkpoint to resume."""
    run_dir = None
    if config.resume is None:
        check_run_dir(config.run_dir)
    else:
        with readable(AUTO, "resume"):
            found = auto_run_dir(config, task_name)
            # A run that was stopped before its first checkpoint starts again in its directory.
            run_dir = found if found is not None and holds_run(found) else None
        if run_dir is None:
            check_can_be_made(config.run_dir)
    if config.load_weights is not None:
        return Start(run_dir, load_checkpoint(config.load_weights, "load_weights"), only_policy=True)
    if run_dir is not None:
        _check_began_afresh(run_dir)
    return Start(run_dir)


def _check_began_afresh(run_dir: Path) -> None:
    """Raises ConfigError for a run without checkpoints that had started from a checkpoint of another run."""
    settings = settings_of(run_dir)
    for name in ("resume", "load_weights"):
        source = settings.get(name)
        if source not in (None, AUTO):
            raise ConfigError(
                f"run_dir ({run_dir}) had begun with {as_argument(name, source)} and was stopped before its first "
                "checkpoint, so that resume=auto would start from scratch. Remove it, and start again with "
                f"{as_argument(name, source)}."
            )


def _read_shared(path: Path) -> Checkpoint:
    if not path.is_dir():
        raise ConfigError(
            f"Checkpoint {path}, which process 0 reads, is not visible here. Put it on a file system that all machines "
            "share."
        )
    return read_checkpoint(path)
