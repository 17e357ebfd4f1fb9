"""A task on every device of the machine: the learner replicated, the envs sharded."""

import functools
import warnings
from dataclasses import dataclass
from typing import Generic, TypeVar, get_args

import jax

from ksim.config import check_choice, check_positive, field
from ksim.parallel.layout import AbstractLayout, PmapDevices, SingleDevice
from ksim.parallel.placement import (
    check_divisible,
    replicate_state as replicate_state,
    shard_environments as shard_environments,
)
from ksim.ppo.hyperparameters import GradSyncMode
from ksim.task.rl import RLConfig, RLTask
from ksim.types import ConfigError, Device


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class DistributedRLConfig(RLConfig):
    """Options of a task on several devices."""

    devices: str = field("all", help="local devices to use: all, or their indices, as in 0,1")
    num_devices: int | None = field(None, help="use only the first so many of them")
    pmap_axis_name: str = field("device", help="name of the mapped axis, for collectives in your own code")
    grad_sync_period: int = field(1, help="minibatches per synchronisation of the gradients")
    grad_sync_mode: str = field(
        "accumulate", help="in between, accumulate gradients, or take local optimizer steps that are averaged later"
    )

    def validate(self) -> None:
        super().validate()
        check_positive("num_devices", self.num_devices)
        check_positive("grad_sync_period", self.grad_sync_period)
        check_choice("grad_sync_mode", self.grad_sync_mode, get_args(GradSyncMode))
        if not self.pmap_axis_name:
            raise ConfigError("pmap_axis_name ('') must not be empty.")


ConfigT = TypeVar("ConfigT", bound=DistributedRLConfig)


@dataclass(frozen=True)
class DistributedSetup:
    """Global and per-device figures of a distributed run.

    Attributes:
        devices: The devices in use, as JAX prints them.
        platform: Their kind.
        num_envs: Environments over all devices.
        batch_size: Environments per minibatch over all devices; None where the algorithm has no minibatches.
        num_batches: Minibatches per pass; likewise.
        rollout_length: Control steps per environment and iteration.
        grad_sync_period: Minibatches per synchronisation of gradients.
        grad_sync_mode: What happens in between.
    """

    devices: tuple[str, ...]
    platform: str
    num_envs: int
    batch_size: int | None
    num_batches: int | None
    rollout_length: int
    grad_sync_period: int
    grad_sync_mode: str

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return len(self.devices)

    @property
    def num_envs_per_device(self) -> int:
        """Environments of one device."""
        return self.num_envs // self.num_devices

    @property
    def batch_size_per_device(self) -> int | None:
        """One device's environments per minibatch."""
        return None if self.batch_size is None else self.batch_size // self.num_devices


class DistributedRLTask(RLTask[ConfigT], Generic[ConfigT]):
    """A task whose step is mapped over devices; on a single device it runs there, on the same code."""

    @functools.cached_property
    def layout(self) -> AbstractLayout:
        devices = select_devices(self.config.devices, self.config.num_devices)
        if len(devices) == 1:
            warnings.warn(
                "Only 1 device detected. Distributed training will fall back to single-device mode.", stacklevel=2
            )
            return SingleDevice(devices[0])
        return PmapDevices(devices, self.config.pmap_axis_name)

    def check(self) -> None:
        check_divisible(self.config.num_envs, self.layout.num_devices)
        super().check()

    def batch_figures(self) -> tuple[int | None, int | None]:
        """Global batch size and minibatches per pass, of an algorithm that has them."""
        return None, None

    def verify_distributed_setup(self) -> DistributedSetup:
        """Checks that the batch fits the devices; prints global and per-device figures and returns them.

        Raises:
            ConfigError: The batch does not fit the devices.
        """
        from ksim.run.console import print_distributed_setup  # noqa: PLC0415 - run is on top of task

        check_divisible(self.config.num_envs, self.layout.num_devices)
        batch_size, num_batches = self.batch_figures()
        setup = DistributedSetup(
            devices=tuple(str(device) for device in self.layout.devices),
            platform=self.layout.devices[0].platform,
            num_envs=self.config.num_envs,
            batch_size=batch_size,
            num_batches=num_batches,
            rollout_length=self.config.rollout_length,
            grad_sync_period=self.config.grad_sync_period,
            grad_sync_mode=self.config.grad_sync_mode,
        )
        print_distributed_setup(setup)
        return setup

    def run_distributed_training(self) -> int:
        """An alias of `run`, which picks one or several devices by itself."""
        return self.run()


def select_devices(devices: str, num_devices: int | None) -> list[Device]:
    """Local devices by a config's `devices` and `num_devices`.

    Raises:
        ConfigError: An index is no number, out of range or given twice, or there are fewer devices than asked for.
    """
    local = jax.local_devices()
    selected = local
    if devices != "all":
        try:
            indices = [int(part) for part in str(devices).split(",")]
        except ValueError:
            raise ConfigError(
                f"devices ({devices!r}) must be 'all' or indices separated by commas, as in 0,1."
            ) from None
        for index in indices:
            if not 0 <= index < len(local):
                raise ConfigError(f"Device {index} does not exist. Local devices: 0 to {len(local) - 1}.")
        if len(set(indices)) != len(indices):
            raise ConfigError(f"devices ({devices!r}) must name each device once.")
        selected = [local[index] for index in indices]
    if num_devices is not None:
        if num_devices > len(selected):
            raise ConfigError(
                f"Number of devices ({num_devices}) must be at most the {len(selected)} available. On a CPU, "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={num_devices} gives as many."
            )
        selected = selected[:num_devices]
    return selected
