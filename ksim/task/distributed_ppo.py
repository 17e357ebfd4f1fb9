"""Training a task with PPO on every device of the machine."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import jax

from ksim.task.distributed_rl import DistributedRLConfig, DistributedRLTask
from ksim.task.ppo import PPOConfig, PPOTask


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class DistributedPPOConfig(DistributedRLConfig, PPOConfig):
    """Options of PPO on several devices."""


ConfigT = TypeVar("ConfigT", bound=DistributedPPOConfig)


class DistributedPPOTask(DistributedRLTask[ConfigT], PPOTask[ConfigT], Generic[ConfigT]):
    """A task trained by PPO on every device. It has the hooks of `PPOTask`."""
