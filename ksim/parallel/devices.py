"""Choice of the devices that a run uses."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import jax

from ksim.checks import check_rule
from ksim.errors import ConfigError, as_number, quoted
from ksim.host.machine import num_cores
from ksim.host.terminal import warn_user
from ksim.host.threads import JAXLIB_VERSION, num_pool_threads, size_thread_pool, thread_pool_size
from ksim.types import Device

CORES = "cores"
"""The value of `num_devices` for one host device per core."""
MAX_DEVICES = 1024
"""Largest number of devices per process. The time JAX takes to make host devices grows with its square."""
_COUNT_FLAG = "xla_force_host_platform_device_count"


def select_devices(devices: Any, num_devices: int | str | None) -> list[Device]:
    """The devices of all processes, in the order of the mapped axis: process 0 first.

    If JAX's backend has not started, `num_devices` host devices are made on the CPU first, unless the user has set
    their number.

    Args:
        devices: `all`, `cpu`, or indices into the local devices (a list, or a string such as `0,1`). If
            CUDA_VISIBLE_DEVICES is set, only the devices in it count. The same for every process.
        num_devices: Use only the first `num_devices` of them in each process; `cores` for one per CPU core; None
            for all.

    Raises:
        ConfigError: An index is not a number, out of range or given twice; there are fewer devices than requested;
            `cores` is used with an accelerator; or devices are of several platforms.
    """
    count = make_host_devices(num_devices)
    backend = "cpu" if devices == "cpu" else None
    local = jax.local_devices(backend=backend)
    if num_devices == CORES and local[0].platform != "cpu":
        raise ConfigError(f"num_devices={CORES} is for CPUs, but devices are {local[0].platform}. Add devices=cpu.")
    places = _places(devices, len(local))
    if count is not None:
        if count > len(places):
            raise ConfigError(
                f"Number of devices ({count}) must be at most the {len(places)} available. On a CPU, num_devices="
                f"{count} makes as many where JAX has not started before; it had, or XLA_FLAGS says another number: "
                f"XLA_FLAGS=--{_COUNT_FLAG}={count} gives as many."
            )
        places = places[:count]
    selected = _of_all_processes(places, jax.devices(backend))
    check_same_kind(selected)
    if local[0].platform == "cpu":
        _check_thread_pool(len(local))
    return selected


def local_name(device: Device) -> str:
    """A device's name within its process: `cpu:0` for process 1's first device, which JAX calls `cpu:2048`."""
    kind = str(device).partition(":")[0]
    before = [d for d in jax.devices(device.platform) if d.process_index == device.process_index and d.id < device.id]
    return f"{kind}:{len(before)}"


def check_same_kind(devices: Sequence[Device]) -> None:
    """Warns about devices of several kinds, since the slowest sets the pace.

    Raises:
        ConfigError: The devices are of several platforms, and one program cannot run on several.
    """
    platforms = sorted({device.platform for device in devices})
    if len(platforms) > 1:
        raise ConfigError(
            f"Devices must be of one platform, but are {', '.join(platforms)}. Choose by devices=cpu or by indices, "
            "and start every process on machines of one kind."
        )
    kinds = sorted({device.device_kind for device in devices})
    if len(kinds) > 1:
        warn_user(
            f"Devices are of several kinds: {', '.join(kinds)}. Each gets the same number of environments, so the "
            "slowest sets the pace; choose devices of one kind by devices=[...]."
        )


def _check_thread_pool(num_host_devices: int) -> None:
    """Warns if XLA's thread pool is too small for its devices.

    That happens if JAX's backend started before ksim sized the pool, or if the user chose the size.
    """
    needed, found = thread_pool_size(JAXLIB_VERSION, 1, num_host_devices), num_pool_threads()
    if needed is not None and found is not None and 1 < found < needed:  # a single thread does not wait for others
        warn_user(
            f"XLA's pool has {found} threads, but with {num_host_devices} devices JAX {jax.__version__} can hang with "
            f"fewer than {needed}. Import ksim before anything uses JAX, or set PJRT_NPROC={needed}."
        )


def make_host_devices(num_devices: int | str | None) -> int | None:
    """Makes host devices on the CPU, unless the user has set their number or JAX's backend has started.

    Call it before anything asks JAX for devices, which starts the backend.

    Returns:
        The number of devices, with `cores` resolved; None if `num_devices` is None.

    Raises:
        ConfigError: The number is not positive, or too large.
    """
    count = num_cores() if num_devices == CORES else num_devices
    if count is not None:
        what = f"num_devices ({num_devices})"
        check_rule(what, isinstance(count, int) and count >= 1, f"a positive whole number, or {CORES}")
        assert isinstance(count, int)
        check_rule(what, count <= MAX_DEVICES, f"at most {MAX_DEVICES}")
        if _COUNT_FLAG not in os.environ.get("XLA_FLAGS", "") and jax.config.values["jax_num_cpu_devices"] <= 0:
            with contextlib.suppress(RuntimeError):  # the backend has started: the caller counts its devices
                jax.config.update("jax_num_cpu_devices", count)
    # Also if the user has set the number of devices since `import ksim`.
    size_thread_pool(jax.config.values["jax_num_cpu_devices"])
    return count


def _places(devices: Any, num_local: int) -> list[int]:
    """Indices into the local devices."""
    if devices in ("all", "cpu"):
        return list(range(num_local))
    indices = _indices(devices)
    for index in indices:
        if not 0 <= index < num_local:
            raise ConfigError(
                f"Device {index} does not exist. Local devices: 0 to {num_local - 1}. Choose from these by "
                "devices=[...]."
            )
    if len(set(indices)) != len(indices):
        raise ConfigError(f"devices ({quoted(devices)}) must name each device once.")
    return indices


def check_devices(devices: Any) -> None:
    """Raises ConfigError unless the value is `all`, `cpu` or indices. The devices need not exist."""
    if not isinstance(devices, str) or devices not in ("all", "cpu"):
        _indices(devices)


def _indices(devices: Any) -> list[int]:
    parts = devices.split(",") if isinstance(devices, str) else devices
    parts = parts if isinstance(parts, list | tuple) else [parts]
    # Only int and str: Python would convert other types, such as bool and float, as well.
    read = [part if type(part) is int else as_number(part.strip()) if isinstance(part, str) else None for part in parts]
    indices = [index for index in read if index is not None and abs(index) < 2**31]
    is_met = 0 < len(indices) == len(parts)
    check_rule(f"devices ({quoted(devices)})", is_met, "all, cpu or a list of indices, as in [0,1]")
    return indices


def _of_all_processes(places: Sequence[int], devices: Sequence[Device]) -> list[Device]:
    """The devices at the same indices in every process; raises ConfigError if one has too few."""
    by_process: dict[int, list[Device]] = {}
    for device in sorted(devices, key=lambda device: (device.process_index, device.id)):
        by_process.setdefault(device.process_index, []).append(device)
    for process, own in by_process.items():
        if max(places) >= len(own):
            raise ConfigError(
                f"Process {process} has {len(own)} devices, but every process must have the "
                f"{max(places) + 1} that each one uses. Set num_devices, or give the processes equal shares of devices."
            )
    return [own[place] for own in by_process.values() for place in places]
