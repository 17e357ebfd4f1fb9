"""A task on every device of the machine and every process of the job: the learner replicated, the envs sharded."""

import functools
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

import jax

from ksim.config import CHECKPOINT_MODES, check_choice, check_count, check_positive, field
from ksim.errors import ConfigError, shown
from ksim.host.notices import warn_user
from ksim.parallel.devices import CORES, check_devices, make_host_devices, select_devices
from ksim.parallel.job import find_job, join_job
from ksim.parallel.layout import AbstractLayout, PmapDevices, SingleDevice
from ksim.parallel.placement import (
    gather_environments as gather_environments,
    replicate_state as replicate_state,
    shard_environments as shard_environments,
    unreplicate_state as unreplicate_state,
)
from ksim.parallel.replica_guard import ReplicaGuard
from ksim.ppo.hyperparameters import GradSyncMode
from ksim.task.commands import command
from ksim.task.distributed_setup import DistributedSetup
from ksim.task.result import RunResult
from ksim.task.rl import RLConfig, RLTask
from ksim.types import TrainState

ON_DIVERGENCE = ("stop", "rebroadcast")
MAX_TIMEOUT_S = 10**6
"""More than a week; the timers of the operating system do not count much further."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class DistributedRLConfig(RLConfig):
    """Options of a task on several devices."""

    devices: Any = field(
        "all",
        help="local devices to use: all, cpu, or their indices",
        kind="all, cpu or a list, as in [0,1]",
        of_the_run=False,
    )
    num_devices: int | str | None = field(
        None,
        help="use only the first so many of them in each process; on a CPU, make so many; cores: one per core",
        kind="a whole number, cores or null",
        of_the_run=False,
    )
    pmap_axis_name: str = field("device", help="name of the mapped axis, for collectives in your own code")
    grad_sync_period: int = field(1, help="minibatches per synchronisation of the gradients")
    grad_sync_mode: str = field(
        "accumulate", help="in between, accumulate gradients, or take local optimizer steps that are averaged later"
    )
    replica_check_interval: int | None = field(
        100, help="compare the devices' copies of the learner after every so many iterations, bit by bit; null: never"
    )
    on_divergence: str = field("stop", help="where copies differ: stop, or rebroadcast that of the majority")
    coordinator_address: str | None = field(
        None, help="host:port of process 0, to join a job of several by hand", of_the_run=False
    )
    num_processes: int | None = field(
        None, help="processes of the job, by hand; 1: this one alone, whatever is around", of_the_run=False
    )
    process_id: int | None = field(None, help="this process's number in the job, by hand", of_the_run=False)
    connect_timeout_s: int = field(300, help="seconds to wait for the other processes at the start", of_the_run=False)
    heartbeat_timeout_s: int = field(
        100, help="seconds after which a process that is not heard of counts as dead", of_the_run=False
    )

    def validate(self) -> None:
        super().validate()
        if self.num_devices != CORES:
            if isinstance(self.num_devices, str):
                raise ConfigError(f"num_devices ({shown(self.num_devices)}) must be a whole number, or {CORES}.")
            check_count("num_devices", self.num_devices)
        check_devices(self.devices)
        check_choice("grad_sync_mode", self.grad_sync_mode, get_args(GradSyncMode))
        if not self.pmap_axis_name:
            raise ConfigError("pmap_axis_name ('') must not be empty.")
        for name in ("grad_sync_period", "replica_check_interval", "num_processes"):
            check_count(name, getattr(self, name))
        for name in ("connect_timeout_s", "heartbeat_timeout_s"):
            check_positive(name, getattr(self, name), most=MAX_TIMEOUT_S)
        check_choice("on_divergence", self.on_divergence, ON_DIVERGENCE)


ConfigT = TypeVar("ConfigT", bound=DistributedRLConfig)


class DistributedRLTask(RLTask[ConfigT], Generic[ConfigT]):
    """A task whose step is mapped over devices; on a single device it runs there, on the same code.

    Started by Slurm, Open MPI, torchrun, Kubernetes (untried), `ksim.launch`, with JAX's variables, or with
    `coordinator_address`, `num_processes` and `process_id`, making the task connects this process to the others of the
    job. Devices are then those of all.
    """

    def __init__(self, config: ConfigT) -> None:
        """Makes the task.

        Raises:
            ConfigError: An option cannot work, or the job's processes cannot be connected.
        """
        super().__init__(config)
        self._setup: DistributedSetup | None = None
        by_hand = (config.coordinator_address, config.num_processes, config.process_id)
        if config.run_mode in CHECKPOINT_MODES:
            # The other two options may be those of the run that the checkpoint is from.
            job = None if config.num_processes == 1 else find_job()
            if job is not None:
                raise ConfigError(f"run_mode={config.run_mode} runs in one process, but {job.source} started several.")
            return
        job = find_job(*by_hand)
        make_host_devices(config.num_devices)
        if job is None:
            return
        join_job(job, connect_timeout_s=config.connect_timeout_s, heartbeat_timeout_s=config.heartbeat_timeout_s)
        # Options are compared later: process 0 makes copies of a task by itself, as for get_eval_environment.

    @property
    def device_axis(self) -> str:
        return self.config.pmap_axis_name

    @functools.cached_property
    def layout(self) -> AbstractLayout:
        devices = select_devices(self.config.devices, self.config.num_devices)
        if len(devices) == 1:
            warn_user("Only 1 device detected. Distributed training will fall back to single-device mode.")
            return SingleDevice(devices[0], self.device_axis)
        return PmapDevices(devices, self.device_axis)

    def make_replica_guard(self, state: TrainState) -> ReplicaGuard | None:
        if self.layout.num_devices == 1:
            return None
        interval, rebroadcasts = self.config.replica_check_interval, self.config.on_divergence == "rebroadcast"
        return ReplicaGuard(self.layout, state.learner, interval=interval, rebroadcasts=rebroadcasts)

    def batch_figures(self) -> tuple[int | None, int | None]:
        """Global batch size and minibatches per pass, of an algorithm that has them."""
        return None, None

    def updates_per_iteration(self) -> int | None:
        """Minibatches of an iteration over all passes, of an algorithm that has them."""
        return None

    def verify_distributed_setup(self) -> DistributedSetup:
        """Checks the setup of the devices, by running on them; prints what was found and returns it.

        Warns where the memory of a device will hardly do. All this is done once for a task: a later call, such as that
        of `run`, returns what was found.

        Raises:
            ConfigError: The batch does not fit the devices, they do not work together, or the options of the job's
                processes differ.
        """
        if self._setup is None:
            self._setup = command("verify_distributed_setup")(self)
        assert self._setup is not None
        return self._setup

    def run_distributed_training(self) -> RunResult:
        """An alias of `run`, which picks one or several devices by itself."""
        return self.run()
