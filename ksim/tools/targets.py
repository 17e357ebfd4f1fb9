"""Accelerators to compile for without having one: NVIDIA GPUs and Google's TPUs, one chip or many."""

import dataclasses
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from ksim.errors import ConfigError, near_misses
from ksim.host.machine import install_command
from ksim.types import Device

GIB = 2**30
MOST_CHIPS = 256
GPUS_PER_HOST = 8


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU by the numbers that XLA's compiler reads; sizes in bytes, shared memory and registers per multiprocessor.

    Sources: NVIDIA's architecture white papers and the tables of compute capabilities in its CUDA programming guide.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    clock_ghz: float
    memory: int
    bandwidth: int
    l2_cache: int
    shared_memory: int
    shared_memory_per_block: int
    threads: int = 2048

    def config(self) -> str:
        """The text of XLA's target configuration."""
        major, minor = self.capability
        return (
            f"gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 "
            f"shared_memory_per_core: {self.shared_memory} threads_per_core_limit: {self.threads} "
            f"core_count: {self.cores} fpus_per_core: {64 if self.capability == (8, 0) else 128} "
            f"block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 "
            f"memory_bandwidth: {self.bandwidth} l2_cache_size: {self.l2_cache} clock_rate_ghz: {self.clock_ghz} "
            f"device_memory_size: {self.memory} shared_memory_per_block_optin: {self.shared_memory_per_block} "
            f"cuda_compute_capability {{ major: {major} minor: {minor} }} registers_per_core_limit: 65536 "
            f'registers_per_block_limit: 65536 }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} '
            f'device_description_str: "{self.name}"'
        )


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A generation of TPUs: memory of a chip in bytes, and whether chips lie in a grid (2) or a torus (3 axes).

    Source: Google Cloud's documentation of TPU versions.
    """

    memory: int
    num_axes: int


GPUS = {
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 1.98, 80 * GIB, 3_352_000_000_000, 50 * 2**20, 228 * 1024, 227 * 1024
    ),
    "a100": Gpu(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41, 80 * GIB, 2_039_000_000_000, 40 * 2**20, 164 * 1024, 163 * 1024
    ),
    "rtx4090": Gpu(
        "NVIDIA GeForce RTX 4090",
        (8, 9),
        128,
        2.52,
        24 * GIB,
        1_008_000_000_000,
        72 * 2**20,
        100 * 1024,
        99 * 1024,
        threads=1536,
    ),
}
TPUS = {"v5e": Tpu(16 * GIB, 2), "v5p": Tpu(95 * GIB, 3), "v6e": Tpu(32 * GIB, 2)}


@dataclasses.dataclass(frozen=True)
class Target:
    """Chips of one kind.

    Attributes:
        kind: A name in `GPUS` or `TPUS`, or the file of a GPU's configuration.
        num_chips: Number of chips.
        memory: Bytes of memory of each; None if unknown.
    """

    kind: str
    num_chips: int
    memory: int | None
    gpu_config: str | None = None

    @property
    def platform(self) -> str:
        """`gpu` or `tpu`."""
        return "tpu" if self.gpu_config is None else "gpu"

    def devices(self) -> list[Device]:
        """The chips, which programs can be compiled for, but which hold no arrays.

        Raises:
            ConfigError: The compiler for them is not installed.
        """
        topology = self._gpu_topology(self.gpu_config) if self.gpu_config is not None else self._tpu_topology()
        return list(topology.devices)

    def _gpu_topology(self, config: str) -> Any:
        if not any(importlib.util.find_spec(f"jax_plugins.xla_cuda{n}") for n in (13, 12) if _has("jax_plugins")):
            raise ConfigError(f"--target {self.kind} needs JAX's compiler for GPUs. Run {install_command('cuda')}.")
        hosts, per_host = divide(self.num_chips, GPUS_PER_HOST)
        try:
            return topologies.get_topology_desc(platform="cuda", target_config=config, topology=f"1x{hosts}x{per_host}")
        except jax.errors.JaxRuntimeError as error:
            raise ConfigError(
                f"The compiler for GPUs refuses --target {self.kind}: {str(error).splitlines()[0]} A --target-config "
                "must be the text of XLA's GpuTargetConfigProto."
            ) from error

    def _tpu_topology(self) -> Any:
        if not _has("libtpu"):
            raise ConfigError(f"--target {self.kind} needs libtpu. Run {install_command('tpu')}.")
        shape = grid(self.num_chips, TPUS[self.kind].num_axes)
        options: dict[str, Any] = {}
        if self.num_chips == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        name = f"{self.kind}:{'x'.join(map(str, shape))}"
        return topologies.get_topology_desc(name, "tpu", **options)


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def divide(num_chips: int, most: int) -> tuple[int, int]:
    """Hosts, and chips of each, of which there are at most so many."""
    per_host = next(n for n in range(min(most, num_chips), 0, -1) if num_chips % n == 0)
    return num_chips // per_host, per_host


def grid(num_chips: int, num_axes: int) -> tuple[int, ...]:
    """The most even grid of a power of two of chips, the longer axes last: 8 are 2x4, or 2x2x2."""
    power = num_chips.bit_length() - 1
    return tuple(2 ** ((power + i) // num_axes) for i in range(num_axes))


def parse_target(text: str, config_file: Path | None = None) -> Target:
    """The target written as its kind and its number of chips, such as `h100`, `h100x8` or `v5ex256`.

    Args:
        text: The target. With a file, the kind may be any name.
        config_file: XLA's configuration of a GPU, in its text format.

    Raises:
        ConfigError: There is no such kind, the number of chips is not possible, or the file cannot be read.
    """
    kind, _, number = (text, "", "1") if text in GPUS else text.rpartition("x")
    if not (kind and number.isdecimal()):
        kind, number = text, "1"
    num_chips = int(number)
    if not 1 <= num_chips <= MOST_CHIPS:
        raise ConfigError(f"--target ({text}) must have 1 to {MOST_CHIPS} chips.")
    if config_file is not None:
        try:
            config = config_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--target-config ({config_file}) cannot be read: {error}.") from error
        memory = re.search(r"device_memory_size:\s*(\d+)", config)
        return Target(kind, num_chips, int(memory[1]) if memory else None, config)
    if kind in GPUS:
        return Target(kind, num_chips, GPUS[kind].memory, GPUS[kind].config())
    if kind not in TPUS:
        raise ConfigError(
            f"--target ({text}): {near_misses(kind, [*GPUS, *TPUS])} Write a kind and a number, as in h100x8; "
            "--target-config FILE compiles for another GPU."
        )
    if num_chips & (num_chips - 1):
        raise ConfigError(f"--target ({text}): TPUs come in powers of two.")
    return Target(kind, num_chips, TPUS[kind].memory)


def prepare_compilers(target: Target) -> None:
    """Lets JAX load the target's compiler on a machine without its chips; must come before its backend starts."""
    # Without a client of the target's platform, JAX cannot read a cached program back, and warns.
    jax.config.update("jax_enable_compilation_cache", False)
    if target.platform == "gpu":
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
        jax.config.update("jax_platforms", "cpu,cuda")
    else:
        # Or libtpu asks a metadata server, which only Google's machines have, and complains.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{target.kind}-{target.num_chips}")
        os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
        # libtpu lets one process per machine use its chips. Compiling uses none, so several may compile at once.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        jax.config.update("jax_platforms", "cpu")
