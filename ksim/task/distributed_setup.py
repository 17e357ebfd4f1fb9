"""The record of a distributed task's devices and of how its batch is divided."""

from dataclasses import dataclass


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
        num_processes: Processes of the job.
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
        problems: Likely problems, as text.
        steps_per_action: Environment steps per control step.
    """

    num_processes: int
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
