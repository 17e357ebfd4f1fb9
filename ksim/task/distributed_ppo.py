"""Learning a task by PPO on every device of the machine."""

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
    """A task learned by PPO on every device. The hooks are those of `PPOTask`."""
