"""Division of a node's GPUs or cores among its processes."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ksim.checks import check_divisible
from ksim.host.machine import visible_gpus
from ksim.launch.output import say

_T = TypeVar("_T")

_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, kw_only=True)
class DeviceShares:
    """The devices of each process of a node; None for devices that are not divided.

    GPUs have the names that CUDA_VISIBLE_DEVICES uses. Processes are bound to their cores.
    """

    gpus: list[list[str]] | None = None
    cores: list[list[int]] | None = None

    def of(self, indices: Sequence[int]) -> "DeviceShares":
        """The shares of a group of only these processes.

        Each keeps its GPUs, because a removed process may have failed due to its own. All cores are divided again.
        """
        if self.gpus is not None:
            return DeviceShares(gpus=[self.gpus[i] for i in indices])
        if self.cores is not None:
            return DeviceShares(cores=_shares([core for share in self.cores for core in share], len(indices)))
        return self

    def describe(self) -> str:
        """A sentence for the launcher's first line, empty if nothing is divided."""
        if self.gpus is not None:
            return f"GPUs: {', '.join(str(len(share)) for share in self.gpus)}."
        if self.cores is not None:
            return f"CPU cores: {', '.join(str(len(share)) for share in self.cores)}."
        return ""


def divide_devices(num_processes: int, environ: Mapping[str, str]) -> DeviceShares:
    """Divides the GPUs if there are any, else the cores, among this node's processes. A single one gets everything.

    Reads JAX_PLATFORMS and CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigError: The number of GPUs is not divisible by the number of processes.
    """
    if num_processes == 1:
        return DeviceShares()
    gpus = [] if environ.get("JAX_PLATFORMS", "").strip().lower() == "cpu" else visible_gpus(environ, say)
    if gpus:
        valid = [n for n in range(1, len(gpus) + 1) if len(gpus) % n == 0]
        nearest = [*[n for n in valid if n < num_processes][-1:], *[n for n in valid if n > num_processes][:1]]
        fix = "CUDA_VISIBLE_DEVICES chooses GPUs; JAX_PLATFORMS=cpu does without."
        check_divisible("Number of GPUs", len(gpus), "--nproc-per-node", num_processes, nearest=nearest, fix=fix)
        return DeviceShares(gpus=_shares(gpus, num_processes))
    cores = usable_cores()
    return DeviceShares(cores=_shares(cores, num_processes) if len(cores) >= num_processes else None)


def usable_cores() -> list[int]:
    """The cores that this process may use, with siblings of a physical core adjacent; empty if unknown."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    return sorted(os.sched_getaffinity(0), key=_place_of_core)


def _place_of_core(core: int) -> tuple[int, int, int]:
    """Sort key by package and physical core, so that two processes share a physical core only if necessary."""
    topology = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        package, physical = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return (0, core, core)
    return (package, physical, core)


def _shares(items: list[_T], num_shares: int) -> list[list[_T]]:
    """Consecutive shares whose sizes differ by at most one."""
    bounds = [len(items) * i // num_shares for i in range(num_shares + 1)]
    return [items[start:end] for start, end in itertools.pairwise(bounds)]
