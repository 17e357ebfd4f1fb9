"""The machine's cores, processes and GPUs, found without JAX, whose backend would start. See docs/tested.md."""

import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ksim.errors import ConfigError

DISTRIBUTION = "ksim-rl"
"""ksim's name on package indexes, where `ksim` is another project."""


def install_command(extra: str) -> str:
    """The command that adds an extra to an installed ksim, from a wheel or from a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def import_extra(package: str, extra: str, user: str) -> Any:
    """Imports a package, by its import name, of one of ksim's extras; `user` is the feature that needs it.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{user} needs {error.name or package}, which is not installed. Run {install_command(extra)}."
        ) from error


def python_word() -> str:
    """The word that starts this Python in the user's shell: `python`, or its path if that is another or none."""
    found, own = shutil.which("python"), Path(sys.executable)
    if found is not None and Path(found).parent.absolute() == own.parent.absolute():
        return "python"
    # Elsewhere, or somebody removed the current directory during a run.
    with contextlib.suppress(ValueError, OSError):
        own = own.relative_to(Path.cwd())
    return shlex.quote(str(own))


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_state(pid: int) -> str | None:
    """A process's state in /proc (`R`, `S`, `T` for stopped, `Z` for ended, ...); None if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]


def visible_gpus(environ: Mapping[str, str], tell: Callable[[str], None]) -> list[str]:
    """The GPUs or MIG instances in CUDA_VISIBLE_DEVICES; all that nvidia-smi lists if it is unset.

    If nvidia-smi fails, there are no GPUs, and `tell` is called with a message.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return parse_gpu_list(list_gpus(tell))
    gpus = []
    for name in (part.strip() for part in chosen.split(",")):
        # As in CUDA: an invalid name ends the list. Slurm writes NoDevFiles for a job without GPUs.
        if not re.fullmatch(r"\d+|(GPU|MIG)-.+", name):
            break
        gpus.append(name)
    return gpus


def list_gpus(tell: Callable[[str], None]) -> str:
    """The output of `nvidia-smi -L`; empty if it is missing or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        return subprocess.run([command, "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        tell(f"nvidia-smi -L failed ({error}), so that no GPUs are divided. CUDA_VISIBLE_DEVICES names them too.")
        return ""


def parse_gpu_list(listing: str) -> list[str]:
    """UUIDs of the GPUs listed by `nvidia-smi -L`. A GPU in MIG mode is replaced by its instances.

    UUIDs, because nvidia-smi and CUDA number GPUs in different orders.
    """
    gpus: list[str] = []
    whole = None
    for line in listing.splitlines():
        found = re.search(r"\(UUID: ([^)\s]+)\)", line)
        if found is None:
            continue
        if line.startswith("GPU"):
            whole = found[1]
        elif gpus[-1:] == [whole]:
            gpus.pop()
        gpus.append(found[1])
    return gpus
