"""What the machine has for this process, asked without JAX, whose backend that would start. GPUs are untried."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_state(pid: int) -> str | None:
    """A process's state as /proc has it (`R`, `S`, `T` for stopped, `Z` for ended, ...); None where it is not there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]


def visible_gpus(environ: Mapping[str, str], tell: Callable[[str], None]) -> list[str]:
    """The GPUs or MIG instances of CUDA_VISIBLE_DEVICES, or where that is not set all that nvidia-smi lists.

    Args:
        environ: The environment.
        tell: Called with a message if nvidia-smi fails, which counts as no GPUs.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return parse_gpu_list(list_gpus(tell))
    gpus = []
    for name in (part.strip() for part in chosen.split(",")):
        # As CUDA reads it: what follows an invalid name is not there. Slurm writes NoDevFiles where a job has none.
        if not re.fullmatch(r"\d+|(GPU|MIG)-.+", name):
            break
        gpus.append(name)
    return gpus


def list_gpus(tell: Callable[[str], None]) -> str:
    """What `nvidia-smi -L` prints; nothing where it is missing or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    try:
        return subprocess.run([command, "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        tell(f"nvidia-smi -L failed ({error}), so that no GPUs are divided. CUDA_VISIBLE_DEVICES names them too.")
        return ""


def parse_gpu_list(listing: str) -> list[str]:
    """UUIDs of GPUs as listed by `nvidia-smi -L`; of a GPU in MIG mode, those of its instances.

    UUIDs, since nvidia-smi numbers GPUs in another order than CUDA does.
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
