"""The record of what a distributed task runs on, and how its batch is divided."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceInfo:
    """One device.

    Attributes:
        name: As in `cpu:0`, and with its process where there are several.
        platform: `cpu`, `gpu` or `tpu`.
        kind: Its make.
        process: The process that it belongs to.
        memory_bytes: Its memory, or its share of what the machine has free; None where that is not known, as of
            another process's device.
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
        engine: The physics engine; None for an environment that knows none.
        num_envs: Environments over all devices.
        batch_size: Environments per minibatch over all devices; None where the algorithm has no minibatches.
        num_batches: Minibatches per pass, on any number of devices.
        rollout_length: Control steps per environment and iteration.
        updates_per_iteration: Minibatches of an iteration over all passes; None likewise.
        grad_sync_period: Minibatches per synchronisation of gradients.
        grad_sync_mode: What happens in between.
        param_bytes: The parameters, of which every device has a copy.
        learner_bytes: The parameters with the optimizer's state and all else that every device has a copy of.
        env_state_bytes_per_device: The states of one device's environments, with the model's memory.
        rollout_bytes_per_device: Estimate of what one device holds of a rollout while it learns from it: the
            trajectory, its normalised observations and advantages, and the states for resets. The engine's own
            working memory is not in it.
        problems: What will hardly work.
        steps_per_action: Steps of the environment to a control step.
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
        """Minibatches of a whole period: no more than an iteration has, after which gradients are averaged anyway."""
        return min(self.grad_sync_period, self.updates_per_iteration or self.grad_sync_period)

    @property
    def effective_batch_size(self) -> int | None:
        """Control steps that one optimizer step goes by: no more than an iteration has, however often it passes them.

        With `grad_sync_mode=local` those of one device, whose steps are its own between synchronisations.
        """
        if self.batch_size is None or self.batch_size_per_device is None:
            return None
        if self.grad_sync_mode == "local" and self.minibatches_per_sync > 1:
            return self.batch_size_per_device * self.rollout_length
        return min(self.batch_size * self.minibatches_per_sync, self.num_envs) * self.rollout_length
