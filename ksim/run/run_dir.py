"""The directory that a run writes."""

import dataclasses
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from ksim.parallel.multihost import gather_texts, is_main_process, num_processes, process_index, together
from ksim.run.checkpoint import find_checkpoint
from ksim.types import ConfigError, shown

LOG_DIR = "KSIM_LOG_DIR"
"""The environment variable that says where processes log to, if not to the run's directory."""


def make_run_dir(run_dir: str | None, task_name: str) -> Path:
    """Makes a run's directory: the one that was asked for, or the next number under `runs/<task>/`.

    Raises:
        ConfigError: The directory that was asked for holds a run already, or cannot be made.
    """
    try:
        if run_dir is None:
            return _next_numbered(task_name)
        check_run_dir(run_dir)
        Path(run_dir).mkdir(parents=True, exist_ok=True)
        return Path(run_dir)
    except OSError as error:
        raise ConfigError(f"run_dir ({error.filename}) cannot be made: {error.strerror}.") from error


def check_run_dir(run_dir: str | None) -> None:
    """Raises ConfigError if the directory that was asked for holds a run already, or cannot be made."""
    if run_dir is None:
        return
    path = Path(run_dir)
    try:
        if (path / "config.yaml").exists():
            raise ConfigError(f"run_dir ({run_dir:.200}) already holds a run. Choose another, or remove it.")
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as error:
        raise ConfigError(f"run_dir ({shown(run_dir)}) cannot be made: {error.strerror}.") from error
    if not there.is_dir():
        raise ConfigError(f"run_dir ({run_dir:.200}) cannot be made: {there} is no directory.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"run_dir ({run_dir:.200}) cannot be made: {there} must be writable.")


def _next_numbered(task_name: str) -> Path:
    parent = Path("runs") / task_name
    taken = [int(p.name.removeprefix("run_")) for p in parent.glob("run_*") if p.name.removeprefix("run_").isdigit()]
    number = max(taken, default=-1) + 1
    while True:
        path = parent / f"run_{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # another run was faster
            number += 1
        else:
            return path


def save_config(config: object, run_dir: Path) -> None:
    """Writes config.yaml."""
    OmegaConf.save(OmegaConf.create(dataclasses.asdict(config)), run_dir / "config.yaml")  # type: ignore[call-overload]


def read_config(checkpoint: str) -> dict[str, Any]:
    """The config.yaml of the run that a checkpoint belongs to; empty where the run directory holds none."""
    # <run>/checkpoints/<number>
    path = find_checkpoint(checkpoint).parents[1] / "config.yaml"
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(path))) if path.is_file() else {}


def shared_run_dir(run_dir: str | None, task_name: str) -> Path:
    """The directory that process 0 makes, as `make_run_dir`, for all processes of the job.

    Raises:
        ConfigError: It cannot be made, or this process does not see it and has nowhere to log to.
    """
    made = Path()
    with together():
        if is_main_process():
            made = make_run_dir(run_dir, task_name)
    if num_processes() == 1:
        return made
    shared = Path(gather_texts(str(made.absolute()))[0])
    with together():
        if not shared.is_dir() and LOG_DIR not in os.environ:
            raise ConfigError(
                f"run_dir ({shared}), made by process 0, is not seen on {socket.gethostname()}. Put it on a file "
                f"system that all machines share, or set {LOG_DIR} to a directory for the logs."
            )
    return shared


@contextmanager
def log_to_file(run_dir: Path) -> Iterator[Path]:
    """Sends ksim's log records, and them alone, to process_<i>.log while the run lasts.

    The file is in the run's directory, or in that which KSIM_LOG_DIR names.

    Raises:
        ConfigError: It cannot be written.
    """
    path = Path(os.environ.get(LOG_DIR) or run_dir) / f"process_{process_index()}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path)
    except OSError as error:
        raise ConfigError(f"The log ({path}) cannot be written: {error.strerror}. Set {LOG_DIR}.") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ksim")
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield path
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.setLevel(before[0])
        logger.propagate = before[1]
