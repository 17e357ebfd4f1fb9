"""Tasks: what a user subclasses."""

from ksim.task.amp import AMPConfig as AMPConfig, AMPTask as AMPTask
from ksim.task.distillation import DistillConfig as DistillConfig, DistillTask as DistillTask
from ksim.task.distributed import (
    DistributedRLConfig as DistributedRLConfig,
    DistributedRLTask as DistributedRLTask,
    gather_environments as gather_environments,
    replicate_state as replicate_state,
    shard_environments as shard_environments,
    unreplicate_state as unreplicate_state,
)
from ksim.task.ppo import (
    DistributedPPOConfig as DistributedPPOConfig,
    DistributedPPOTask as DistributedPPOTask,
    PPOConfig as PPOConfig,
    PPOTask as PPOTask,
)
from ksim.task.reppo import REPPOConfig as REPPOConfig, REPPOTask as REPPOTask
from ksim.task.rl import RLConfig as RLConfig, RLTask as RLTask

LearnedTask = RLTask
"""An alias: every task is trained by the algorithm of its `get_learner`."""
