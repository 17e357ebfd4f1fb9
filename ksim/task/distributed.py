"""Tasks whose training uses several devices, and the setup of their devices and processes."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args

import jax

from ksim.config import CHECKPOINT_MODES, field
from ksim.errors import ConfigError, quoted
from ksim.host.machine import num_cores
from ksim.host.terminal import warn_user
from ksim.parallel.devices import CORES, check_devices, make_host_devices, select_devices
from ksim.parallel.job import find_job, join_job
from ksim.parallel.layout import LAYOUTS, AbstractLayout, make_layout
from ksim.parallel.multihost import Peers
from ksim.parallel.placement import (
    gather_environments as gather_environments,
    replicate_state as replicate_state,
    shard_environments as shard_environments,
    unreplicate_state as unreplicate_state,
)
from ksim.parallel.replicas import ReplicaGuard
from ksim.task.config import imported
from ksim.task.result import RunResult
from ksim.task.rl import RLConfig, RLTask
from ksim.types import GradSyncMode, LearnerState


@dataclass(frozen=True)
class DeviceInfo:
    """One device.

    Attributes:
        name: Such as `cpu:0`; includes the process if there are several.
        platform: `cpu`, `gpu` or `tpu`.
        kind: Hardware model, as reported by JAX.
        process: Index of the process that owns the device.
        memory_bytes: The device's memory, or its share of the machine's free memory; None if unknown, such as for a
            device of another process.
    """

    name: str
    platform: str
    kind: str
    process: int
    memory_bytes: int | None


@dataclass(frozen=True)
class DistributedSetup:
    """Global and per-device figures of a distributed run.

    Attributes:
        devices: The devices in use, of all processes, in the order of the mapped axis.
        engine: The physics engine; None if the environment names none.
        num_envs: Environments over all devices.
        batch_size: Environments per minibatch over all devices; None if the algorithm has no minibatches.
        num_batches: Minibatches per pass, on any number of devices.
        rollout_length: Control steps per environment and iteration.
        updates_per_iteration: Minibatches of an iteration over all passes; None if the algorithm has no minibatches.
        grad_sync_period: Minibatches per synchronisation of gradients.
        grad_sync_mode: `accumulate` or `local`, see `GradSyncMode`.
        param_bytes: Size of the parameters, which are replicated.
        learner_bytes: Size of all replicated state: the parameters, the optimizer's state and the rest.
        env_state_bytes_per_device: Size of the states of one device's environments, with the model's memory.
        rollout_bytes_per_device: Estimated memory of a rollout on one device while learning: the trajectory, its
            normalised observations and advantages, and the states for resets. Excludes the engine's own working
            memory.
        steps_per_action: Environment steps per control step.
    """

    peers: Peers
    devices: tuple[DeviceInfo, ...]
    engine: str | None
    num_envs: int
    batch_size: int | None
    num_batches: int | None
    rollout_length: int
    updates_per_iteration: int | None
    grad_sync_period: int
    grad_sync_mode: str
    param_bytes: int
    learner_bytes: int
    env_state_bytes_per_device: int
    rollout_bytes_per_device: int
    problems: tuple[str, ...] = ()
    steps_per_action: int = 1

    @property
    def num_processes(self) -> int:
        """Processes of the job."""
        return len(self.peers.pids)

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

    @property
    def minibatches_per_sync(self) -> int:
        """Minibatches of a full period; at most those of an iteration, as its end averages gradients anyway."""
        return min(self.grad_sync_period, self.updates_per_iteration or self.grad_sync_period)

    @property
    def effective_batch_size(self) -> int | None:
        """Distinct control steps whose gradients make one optimizer step; at most those of an iteration.

        With `grad_sync_mode=local`, the control steps of one device, as it steps alone between synchronisations.
        """
        if self.batch_size is None or self.batch_size_per_device is None:
            return None
        if self.grad_sync_mode == "local" and self.minibatches_per_sync > 1:
            return self.batch_size_per_device * self.rollout_length
        return min(self.batch_size * self.minibatches_per_sync, self.num_envs) * self.rollout_length


ON_DIVERGENCE = ("stop", "rebroadcast")
MIN_ENVS_PER_HOST_DEVICE = 64
"""Envs per host device, at least, if `num_devices` is null: with fewer, a CPU gets fewer devices."""
MAX_TIMEOUT_S = 10**6
"""Seconds: more than a week. Timers of the operating system do not count much further."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class DistributedRLConfig(RLConfig):
    """Options of a task that trains on several devices."""

    help_group: ClassVar[str] = "Devices"

    devices: Any = field(
        "all",
        help="local devices to use: all, cpu, or a list of indices",
        kind="all, cpu or a list, as in [0,1]",
        saved=False,
    )
    num_devices: int | str | None = field(
        None,
        least=1,
        details="On a CPU this makes several host devices, which share its cores: useful to try a job before it goes "
        "to a cluster, and faster with MJX, which keeps a single one of them waiting. So null makes one per core "
        "where a CPU steps MJX, if the batch can be divided among them with 64 environments or more for each.",
        help="devices per process: use the first N; on a CPU, create N; cores: one per core; null: all, and on a CPU "
        "with MJX one per core",
        kind="a whole number, cores or null",
        saved=False,
    )
    layout: str = field(
        "pmap",
        choices=tuple(LAYOUTS),
        details="pmap is the default; shard_map gives the same results and is there for the day on which JAX drops "
        "pmap.",
        help="transformation that maps the step over devices: pmap, or shard_map, its successor; same results",
        saved=False,
    )
    pmap_axis_name: str = field("device", help="name of the mapped axis, for collectives in your own code")
    grad_sync_period: int = field(
        1,
        least=1,
        details="1 synchronises after every minibatch, so that results do not depend on the number of devices. Larger "
        "periods wait less for a slow network.",
        help="minibatches between gradient synchronisations",
    )
    grad_sync_mode: str = field(
        "accumulate",
        choices=get_args(GradSyncMode),
        help="between synchronisations: accumulate gradients, or take local optimizer steps and average them later",
    )
    replica_check_interval: int | None = field(
        100, least=1, help="iterations between bitwise comparisons of the devices' copies of the learner; null: never"
    )
    on_divergence: str = field(
        "stop", choices=ON_DIVERGENCE, help="if copies differ: stop, or rebroadcast the copy of the majority"
    )
    coordinator_address: str | None = field(
        None, help="host:port of process 0, to join a multi-process job by hand", saved=False
    )
    num_processes: int | None = field(
        None,
        least=1,
        help="number of processes, to join a job by hand; 1: run alone, ignoring any launcher",
        saved=False,
    )
    process_id: int | None = field(
        None, help="index of this process, to join a job by hand", saved=False, per_process=True
    )
    connect_timeout_s: int = field(
        300, above=0, most=MAX_TIMEOUT_S, help="seconds to wait for the other processes at start", saved=False
    )
    heartbeat_timeout_s: int = field(
        100,
        above=0,
        most=MAX_TIMEOUT_S,
        help="seconds without a heartbeat after which a process counts as dead",
        saved=False,
    )

    @property
    def device_axis(self) -> str:
        return self.pmap_axis_name

    def join_job(self) -> None:
        if self.run_mode in CHECKPOINT_MODES:
            # The other two options may come from the checkpoint's run.
            job = None if self.num_processes == 1 else find_job()
            if job is not None:
                raise ConfigError(f"run_mode={self.run_mode} runs in one process, but {job.source} started several.")
            return
        job = find_job(self.coordinator_address, self.num_processes, self.process_id)
        make_host_devices(self._num_host_devices() if job is None else self.num_devices)
        if job is not None:
            join_job(job, connect_timeout_s=self.connect_timeout_s, heartbeat_timeout_s=self.heartbeat_timeout_s)
        # Options are compared later: process 0 alone makes copies of a task, such as for get_eval_environment.

    def steps_in_jax(self) -> bool:
        """Whether a CPU would compute the physics in JAX instead of native MuJoCo. Does not start JAX."""
        return self.pick_engine("cpu").name != "mujoco"

    def _num_host_devices(self) -> int | str | None:
        """The number of host devices of a CPU: `num_devices`, or if it is null and JAX steps, at most one per core."""
        if self.num_devices is not None or self.devices not in ("all", "cpu") or not self.steps_in_jax():
            return self.num_devices
        most = min(num_cores(), self.num_envs // MIN_ENVS_PER_HOST_DEVICE)
        return next((count for count in range(most, 1, -1) if self._can_share(count)), None)

    def _can_share(self, num_devices: int) -> bool:
        try:
            self.check_shares(num_devices)
        except ConfigError:
            return False
        return True

    def training_layout(self, task_name: str) -> AbstractLayout:
        devices = select_devices(self.devices, self.num_devices)
        if len(devices) == 1 and self.num_devices != 1 and self.devices in ("all", "cpu"):
            warn_user("Only 1 device detected. Distributed training will fall back to single-device mode.")
        return make_layout(devices, self.device_axis, self.layout)

    def validate(self) -> None:
        super().validate()
        if isinstance(self.num_devices, str) and self.num_devices != CORES:
            raise ConfigError(f"num_devices ({quoted(self.num_devices)}) must be a whole number, or {CORES}.")
        check_devices(self.devices)
        if not self.pmap_axis_name:
            raise ConfigError("pmap_axis_name ('') must not be empty.")


ConfigT = TypeVar("ConfigT", bound=DistributedRLConfig)


class DistributedRLTask(RLTask[ConfigT], Generic[ConfigT]):
    """A task whose training step is mapped over devices. A single device runs the same code.

    Constructing the task connects this process to the others of its job. A job is described by Slurm, Open MPI,
    torchrun, Kubernetes, `ksim.launch`, JAX's environment variables, or the options `coordinator_address`,
    `num_processes` and `process_id`. The task then trains on the devices of all processes.
    """

    def verify_distributed_setup(self) -> DistributedSetup:
        """Checks the devices by running on them, then prints and returns the setup.

        Warns if a device is likely to run out of memory. The check runs once per task: later calls, such as the call
        in `run`, return the same result. Every call logs processes, devices and placement at debug.

        Raises:
            ConfigError: The batch cannot be divided over the devices, a collective over them fails, or the options of
                the job's processes differ.
        """
        imported("ksim.preflight.devices:log_setup")(self, self._setup.peers, self._setup)
        return self._setup

    @functools.cached_property
    def _setup(self) -> DistributedSetup:
        return imported("ksim.preflight.devices:verify_setup")(self)

    def run_distributed_training(self) -> RunResult:
        """An alias of `run`, which chooses one or several devices."""
        return self.run()


def make_replica_guard(config: RLConfig, layout: AbstractLayout, learner: LearnerState) -> ReplicaGuard | None:
    """The check of a run that compares the devices' copies of the learner; None on a single device."""
    if layout.num_devices == 1 or not isinstance(config, DistributedRLConfig):
        return None
    interval, rebroadcasts = config.replica_check_interval, config.on_divergence == "rebroadcast"
    return ReplicaGuard(layout, learner, interval=interval, rebroadcasts=rebroadcasts)
