"""Tasks: what a user subclasses."""

from ksim.task.distributed_ppo import (
    DistributedPPOConfig as DistributedPPOConfig,
    DistributedPPOTask as DistributedPPOTask,
)
from ksim.task.distributed_rl import (
    DistributedRLConfig as DistributedRLConfig,
    DistributedRLTask as DistributedRLTask,
    replicate_state as replicate_state,
    shard_environments as shard_environments,
)
from ksim.task.ppo import PPOConfig as PPOConfig, PPOTask as PPOTask
from ksim.task.rl import RLConfig as RLConfig, RLTask as RLTask
