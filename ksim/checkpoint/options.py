"""Saved options and kept arrays of the run that a task resumes, evaluates or shows."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import (
    CHECKPOINTS,
    Checkpoint,
    DamagedError,
    find_checkpoints,
    list_checkpoints,
    load_checkpoint,
    read_document,
    readable,
)
from ksim.checkpoint.run_dir import holds_run, is_in_progress, newest_run_dir
from ksim.config import CHECKPOINT_MODES, check_fields, is_of_the_run, options_with
from ksim.errors import ConfigError
from ksim.host.terminal import print_line
from ksim.task.config import RLConfig
from ksim.task.overrides import parse_overrides
from ksim.task.rl import RLTask

AUTO = "auto"
_WAIT_S = 0.5


def make_config(base: RLConfig, argv: Sequence[str], task_name: str, pretrained: Path | None = None) -> Any:
    """A config with overrides, on top of the saved options of a resumed, evaluated or shown run.

    `pretrained` is the directory of the policy that comes with the task; None without one.

    Raises:
        ConfigError: An override is invalid, there is no such run, or its config is damaged.
    """
    config = parse_overrides(base, argv).with_pretrained(pretrained, task_name)
    if config.resume is None and (config.run_mode not in CHECKPOINT_MODES or config.checkpoint is None):
        return config
    if config.run_mode == "view" and config.checkpoint is not None:
        _wait_for_first(Path(config.checkpoint))
    names = {f.name for f in dataclasses.fields(base) if is_of_the_run(f)}
    saved = {name: value for name, value in saved_options(config, task_name).items() if name in names}
    return parse_overrides(dataclasses.replace(base, **saved), argv).with_pretrained(pretrained, task_name)


def _wait_for_first(run_dir: Path) -> None:
    """Waits for the first checkpoint of a run in progress; returns at once if there is one, or nobody trains there."""
    with readable(run_dir, "checkpoint"):
        has_none = lambda: holds_run(run_dir) and not list_checkpoints(run_dir / CHECKPOINTS)
        if has_none() and is_in_progress(run_dir):
            print_line(f"The run {run_dir} has no checkpoint yet. Waiting for its first one.")
        while has_none() and is_in_progress(run_dir):
            time.sleep(_WAIT_S)


def saved_options(config: RLConfig, task_name: str) -> dict[str, Any]:
    """The saved options of the run that a config resumes, evaluates or shows; none for a new run.

    Raises:
        ConfigError: There is no such run.
    """
    if config.resume is None:
        name, path = "checkpoint", config.checkpoint
    else:
        name, path = "resume", resumed_path(config, task_name)
    if path is None:
        return {}
    *newer, oldest = find_checkpoints(path, name)
    for candidate in newer:
        try:
            return _options_of(candidate, config)
        except DamagedError:  # reported when its arrays are read
            continue
    return _options_of(oldest, config)


def _options_of(path: Path, config: RLConfig) -> dict[str, Any]:
    """The saved options of a checkpoint. The types of the options that `config` would take from it are checked."""
    options = dict(read_document(path)["config"])
    taken = {f.name: options[f.name] for f in dataclasses.fields(config) if is_of_the_run(f) and f.name in options}
    try:
        check_fields(dataclasses.replace(config, **taken))
    except ConfigError as error:
        raise ConfigError(f"Checkpoint {path} was saved with an invalid option: {error}") from error
    return options


def resumed_path(config: RLConfig, task_name: str) -> str | Path | None:
    """The path to resume; None if `auto` finds nothing."""
    if config.resume != AUTO:
        return config.resume
    with readable(AUTO, "resume"):
        run_dir = auto_run_dir(config, task_name)
        return run_dir if run_dir is not None and list_checkpoints(run_dir / CHECKPOINTS) else None


def auto_run_dir(config: RLConfig, task_name: str) -> Path | None:
    """The directory of the run that resume=auto looks at; None if there is none."""
    return newest_run_dir(task_name) if config.run_dir is None else Path(config.run_dir)


def check_resumed(config: RLConfig, changed: Mapping[str, tuple[Any, Any]]) -> None:
    """Raises ConfigError for a changed option (old value, new value) that a resumed run cannot change."""
    rule = (
        "cannot change when a run is resumed: its checkpoint was made with {}. Leave it out, or start a new run with "
        "its policy: load_weights instead of resume."
    )
    _refuse_changed(config, changed, "fixed", rule)


def check_evaluated(config: RLConfig, changed: Mapping[str, tuple[Any, Any]]) -> None:
    """Raises ConfigError for a changed option (old value, new value) that would make a checkpoint's policy another."""
    rule = "would make the policy another: its checkpoint was trained with {}. Leave it out."
    _refuse_changed(config, changed, "network", rule)


def _refuse_changed(config: RLConfig, changed: Mapping[str, tuple[Any, Any]], role: str, rule: str) -> None:
    """Raises ConfigError for a changed option of a role; `rule` ends the message, with the old value at `{}`."""
    for name in options_with(type(config), role):
        if name in changed:
            there, here = changed[name]
            raise ConfigError(f"{name} ({here}) {rule.format(there)}")


def is_fixed(config: RLConfig, name: str) -> bool:
    """Whether an option cannot change on resume, because the checkpoint or its networks would not fit."""
    return any(name in options_with(type(config), role) for role in ("fixed", "network"))


def kept_in_run(task: RLTask[Any], prefix: str) -> Checkpoint | None:
    """The kept arrays of the checkpoint that a task resumes or replays, by their names without the prefix.

    None if the task starts from scratch, or the checkpoint has no such arrays.

    Raises:
        ConfigError: There is no such checkpoint, or it is damaged.
    """
    config = task.config
    if config.resume is not None:
        name, path = "resume", resumed_path(config, task.task_name)
    else:
        name, path = "checkpoint", config.checkpoint if config.run_mode == "replay" else None
    if path is None:
        return None
    found = load_checkpoint(path, name)
    kept = {name.removeprefix(prefix): x for name, x in found.arrays.items() if name.startswith(prefix)}
    return Checkpoint(found.path, kept, found.document) if kept else None
