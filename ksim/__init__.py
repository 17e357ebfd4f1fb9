"""ksim: robot locomotion by reinforcement learning in pure JAX."""

# Before anything else: a JAX backend must not start without it.
from ksim import _process as _process  # isort: skip

from ksim.log.console import ConsoleLogger as ConsoleLogger
from ksim.log.jsonl import JsonlLogger as JsonlLogger
from ksim.log.logger import AbstractLogger as AbstractLogger, RunInfo as RunInfo
from ksim.log.mlflow import MlflowLogger as MlflowLogger
from ksim.log.tensorboard import TensorBoardLogger as TensorBoardLogger
from ksim.log.wandb import WandbLogger as WandbLogger
from ksim.mdp.actions import AbstractActionFilter as AbstractActionFilter
from ksim.mdp.commands import AbstractCommand as AbstractCommand
from ksim.mdp.curriculum import AbstractCurriculum as AbstractCurriculum
from ksim.mdp.env_curriculum import AbstractEnvCurriculum as AbstractEnvCurriculum
from ksim.mdp.events import AbstractEvent as AbstractEvent
from ksim.mdp.observations import AbstractObservation as AbstractObservation
from ksim.mdp.randomizers import AbstractRandomizer as AbstractRandomizer
from ksim.mdp.resets import AbstractReset as AbstractReset
from ksim.mdp.rewards import AbstractReward as AbstractReward
from ksim.mdp.term import Context as Context
from ksim.mdp.terminations import AbstractTermination as AbstractTermination
from ksim.nn import (
    AbstractActorCritic as AbstractActorCritic,
    AbstractDistribution as AbstractDistribution,
    ActorCriticOutput as ActorCriticOutput,
    Gaussian as Gaussian,
    GruActorCritic as GruActorCritic,
    MlpActorCritic as MlpActorCritic,
    SquashedGaussian as SquashedGaussian,
)
from ksim.physics import (
    DcMotorActuators as DcMotorActuators,
    ModelActuators as ModelActuators,
    PhysicsModel as PhysicsModel,
    PositionActuators as PositionActuators,
    PositionVelocityActuators as PositionVelocityActuators,
    Terrain as Terrain,
    TorqueActuators as TorqueActuators,
)
from ksim.rollout import Environment as Environment, Shown as Shown, unroll as unroll
from ksim.policy.load import Policy as Policy, load_policy as load_policy
from ksim.task import (
    AMPConfig as AMPConfig,
    AMPTask as AMPTask,
    DistillConfig as DistillConfig,
    DistillTask as DistillTask,
    DistributedPPOConfig as DistributedPPOConfig,
    DistributedPPOTask as DistributedPPOTask,
    DistributedRLConfig as DistributedRLConfig,
    DistributedRLTask as DistributedRLTask,
    PPOConfig as PPOConfig,
    PPOTask as PPOTask,
    REPPOConfig as REPPOConfig,
    REPPOTask as REPPOTask,
    RLConfig as RLConfig,
    RLTask as RLTask,
    gather_environments as gather_environments,
    replicate_state as replicate_state,
    shard_environments as shard_environments,
    unreplicate_state as unreplicate_state,
)
from ksim.task.result import RunResult as RunResult
from ksim.task.rl import TrainingStatus as TrainingStatus
from ksim.errors import ConfigError as ConfigError
from ksim.types import EnvState as EnvState, PhysicsState as PhysicsState, Trajectory as Trajectory

from ksim._version import __version__ as __version__
