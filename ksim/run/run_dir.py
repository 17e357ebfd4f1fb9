"""The directory that a run writes."""

import dataclasses
import logging
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from ksim.run.checkpoint import find_checkpoint
from ksim.types import ConfigError


def make_run_dir(run_dir: str | None, task_name: str) -> Path:
    """Makes a run's directory: the one that was asked for, or the next number under `runs/<task>/`.

    Raises:
        ConfigError: The directory that was asked for holds a run already, or cannot be made.
    """
    if run_dir is not None:
        path = Path(run_dir)
        if (path / "config.yaml").exists():
            raise ConfigError(f"run_dir ({run_dir}) already holds a run. Choose another, or remove it.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run_dir ({run_dir}) cannot be made: {error.strerror}.") from error
        return path
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


def log_to_file(run_dir: Path, process: int = 0) -> logging.Handler:
    """Sends ksim's log records to process_<i>.log; the caller removes and closes the handler."""
    handler = logging.FileHandler(run_dir / f"process_{process}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ksim")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    return handler
