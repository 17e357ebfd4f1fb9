"""The directory of a run: creation, checks and locking."""

import contextlib
import os
import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ksim.checkpoint.snapshot import plain_config
from ksim.errors import ConfigError, as_number, quoted
from ksim.host.files import write_whole
from ksim.host.plain_yaml import read_yaml, write_yaml
from ksim.host.terminal import print_warning
from ksim.log.run_log import LOG_DIR
from ksim.parallel.job import missed_job
from ksim.parallel.multihost import fail_together, gather_texts, is_main_process, num_processes

COMMAND = "command.txt"
"""File of a run with the command that starts its program."""
_MAX_COMMAND = 1000
_LOCK = ".lock"
"""File of a run that the process holds locked which trains there."""
_APPEARING_S = 5.0
"""Seconds that a directory created by another machine may take to become visible, as NFS caches lookups."""


def make_run_dir(run_dir: str | None, task_name: str) -> Path:
    """Creates a run's directory: the requested one, or the next number under `runs/<task>/`.

    Raises:
        ConfigError: The requested directory already holds a run, or cannot be created.
    """
    try:
        if run_dir is None:
            return _next_numbered(task_name)
        if holds_run(Path(run_dir)):
            raise ConfigError(
                f"run_dir ({run_dir:.200}) holds a run by now: another process was faster to begin one there. Stop "
                f"that, or choose another. {missed_job()}".rstrip()
            )
        check_run_dir(run_dir)
        Path(run_dir).mkdir(parents=True, exist_ok=True)
        return Path(run_dir)
    except OSError as error:
        raise ConfigError(f"run_dir ({error.filename}) cannot be created: {error.strerror}.") from error


def check_run_dir(run_dir: str | None) -> None:
    """Raises ConfigError if the requested directory already holds a run, or cannot be created."""
    check_can_be_made(run_dir)
    if run_dir is not None and holds_run(Path(run_dir)):
        raise ConfigError(
            f"run_dir ({run_dir:.200}) already holds a run. Choose another, resume it with resume=auto, or remove it. "
            f"{missed_job()}".rstrip()
        )


def check_can_be_made(run_dir: str | None) -> None:
    """Raises ConfigError if the requested directory cannot be created or written, or its path is not valid UTF-8."""
    try:
        os.path.abspath(run_dir or "runs").encode()
    except UnicodeError:
        raise ConfigError(
            f"run_dir ({quoted(os.path.abspath(run_dir or 'runs'), 1000)}) must have a path in UTF-8. Choose another."
        ) from None
    if run_dir is None:
        return
    path = Path(run_dir)
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as error:
        raise ConfigError(f"run_dir ({quoted(run_dir)}) cannot be created: {error.strerror}.") from error
    if not there.is_dir():
        raise ConfigError(f"run_dir ({run_dir:.200}) cannot be created: {there} is not a directory.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"run_dir ({run_dir:.200}) cannot be created: {there} must be writable.")


def holds_run(run_dir: Path) -> bool:
    """Whether a run was begun in a directory."""
    return (run_dir / "config.yaml").exists()


def settings_of(run_dir: Path) -> Mapping[str, Any]:
    """The options in a run's config.yaml; empty if they cannot be read."""
    path = run_dir / "config.yaml"
    try:
        # Not of a FIFO, which would be waited for.
        options = read_yaml(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError):
        return {}
    return options if isinstance(options, dict) else {}


def newest_run_dir(task_name: str) -> Path | None:
    """The directory under `runs/<task>/` with the highest number that holds a run; None if there is none."""
    numbered = {number: path for number, path in _numbered(task_name).items() if holds_run(path)}
    return numbered[max(numbered)] if numbered else None


def _numbered(task_name: str) -> dict[int, Path]:
    found = {as_number(path.name.removeprefix("run_")): path for path in (Path("runs") / task_name).glob("run_*")}
    return {number: path for number, path in found.items() if number is not None}


def _next_numbered(task_name: str) -> Path:
    number = max(_numbered(task_name), default=-1) + 1
    while True:
        path = Path("runs") / task_name / f"run_{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:  # another run was faster
            number += 1
        else:
            return path


def read_command(run_dir: Path) -> list[str]:
    """The program of a run: `-m` and a module, or the path of a file, as after `python`.

    Raises:
        ConfigError: The run has none, or another one.
    """
    path = run_dir / COMMAND
    try:
        program = path.read_text(encoding="utf-8")[:_MAX_COMMAND].strip()
        words = shlex.split(program)
    except (OSError, ValueError):
        program, words = "", []
    is_module = words[:2] == ["python", "-m"] and len(words) == 3 and words[2].replace(".", "_").isidentifier()
    is_file = words[:1] == ["python"] and len(words) == 2 and words[1].endswith(".py")
    # A run's directory may come from others, and with it a file.
    if not is_module and (not is_file or Path(words[1]).resolve().is_relative_to(run_dir.resolve())):
        raise ConfigError(
            f"{path} must name the program of the run, as 'python -m MODULE' or 'python FILE.py', but holds "
            f"{quoted(program)}. Start the program itself, with run_mode=view checkpoint={run_dir}."
        )
    return words[1:]


def is_in_progress(run_dir: Path) -> bool:
    """Whether a process trains in a run's directory, as far as the file system tells."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        with (run_dir / _LOCK).open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


def save_program(config: Any, command: str | None, run_dir: Path) -> None:
    """Writes the options of a run and the command of its program, if it has one.

    Raises:
        ConfigError: They cannot be written.
    """
    _write(write_yaml(plain_config(config)), run_dir / "config.yaml")
    if command is not None:
        _write(f"{command}\n", run_dir / COMMAND)


def _write(text: str, path: Path) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"run_dir ({path.parent}) cannot be written: {error.strerror}. Choose another.") from error


def make_again(config: Any, command: str | None, run_dir: Path) -> None:
    """Creates a run's directory again if somebody removed it during the run; raises OSError if it cannot."""
    if run_dir.is_dir() and holds_run(run_dir):
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(ConfigError):  # writing the checkpoint will report the same cause
        save_program(config, command, run_dir)
    print_warning(f"The run's directory {run_dir} was removed. It was created again; its contents are lost.")


def shared_run_dir(made_by_main: Path | None, run_dir: str | None, task_name: str) -> Path:
    """The directory of the run, for all processes of the job.

    Process 0 resumes in `made_by_main`; if None, it creates `run_dir`, or a numbered directory if that is None.

    Raises:
        ConfigError: It cannot be created, or this process neither sees it nor has another directory for its log.
    """
    made = made_by_main or Path()
    with fail_together():
        if is_main_process() and made_by_main is None:
            made = make_run_dir(run_dir, task_name)
    if num_processes() == 1:
        return made
    shared = Path(gather_texts(str(made.absolute()))[0])
    with fail_together():
        if not os.environ.get(LOG_DIR) and not _appears(shared):
            raise ConfigError(
                f"run_dir ({shared}), made by process 0, is not visible on {socket.gethostname()}. Put it on a file "
                f"system that all machines share, or set {LOG_DIR} to a directory for the logs."
            )
    return shared


def note_run_dir(run_dir: Path) -> None:
    """Writes the run's path to the file of a restarting launcher, if there is one, which resumes the run from it."""
    if "KSIM_RUN_DIR_FILE" in os.environ:
        with contextlib.suppress(OSError):  # no reason for a run to end
            Path(os.environ["KSIM_RUN_DIR_FILE"]).write_text(str(run_dir.absolute()))


def _appears(directory: Path) -> bool:
    """Whether a directory exists or appears within `_APPEARING_S`. NFS caches for a while that a file was missing."""
    deadline_s = time.monotonic() + _APPEARING_S
    while not directory.is_dir():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.1)
        for parent in reversed(directory.parents):
            # Listing a directory makes NFS refresh its entries.
            with contextlib.suppress(OSError):
                os.listdir(parent)
    return True


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Locks the run against training by other processes, if the file system supports locks.

    Raises:
        ConfigError: Another process is training in the directory, or it contains an entry that is neither a file nor a
            directory. Opening a FIFO to write, for example, would block forever.
    """
    for path in run_dir.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path} is neither a file nor a directory. Remove it, or choose another run_dir.")
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        file = (run_dir / _LOCK).open("a")
    except (ImportError, OSError):
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"run_dir ({run_dir}) is in use: another process is training there. Stop it first, or choose another. "
                f"{missed_job()}".rstrip()
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
