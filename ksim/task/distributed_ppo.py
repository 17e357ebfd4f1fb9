"""Training a task with PPO on every device of the machine."""

import dataclasses
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import jax

from ksim.config import check_batch
from ksim.parallel.placement import check_divisible
from ksim.ppo.hyperparameters import GradSyncMode, PPOHyperparameters
from ksim.task.distributed_rl import DistributedRLConfig, DistributedRLTask
from ksim.task.ppo import PPOConfig, PPOTask


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class DistributedPPOConfig(DistributedRLConfig, PPOConfig):
    """Options of PPO on several devices."""


ConfigT = TypeVar("ConfigT", bound=DistributedPPOConfig)


class DistributedPPOTask(DistributedRLTask[ConfigT], PPOTask[ConfigT], Generic[ConfigT]):
    """A task trained by PPO on every device. It has the hooks of `PPOTask`."""

    def batch_figures(self) -> tuple[int, int]:
        config = self.config
        check_divisible(config.num_envs, self.layout.num_devices)
        return check_batch(config.num_envs, config.batch_size, config.num_batches, self.layout.num_devices)

    def updates_per_iteration(self) -> int:
        return self.batch_figures()[1] * self.config.num_passes

    def hyperparameters(self) -> PPOHyperparameters:
        return dataclasses.replace(
            super().hyperparameters(),
            grad_sync_period=self.config.grad_sync_period,
            grad_sync_mode=cast(GradSyncMode, self.config.grad_sync_mode),
        )
