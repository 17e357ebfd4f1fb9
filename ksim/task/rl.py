"""A task: the hooks that describe a robot and its MDP, with defaults."""

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import jax
from jaxtyping import Array, Int, Key, PRNGKeyArray, PyTree
from xax.utils.text import camelcase_to_snakecase

from ksim.errors import ConfigError, quoted
from ksim.log.console import ConsoleLogger
from ksim.log.jsonl import JsonlLogger
from ksim.log.logger import AbstractLogger
from ksim.log.tensorboard import TensorBoardLogger
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.parallel.collectives import device_index, global_env_index
from ksim.parallel.layout import AbstractLayout
from ksim.rollout.environment import Environment, check_environment
from ksim.rollout.unroll import env_keys, initial_env_states, unroll
from ksim.task.callbacks import CallbackTask
from ksim.task.commands import command
from ksim.task.config import RLConfig as RLConfig
from ksim.task.described import check_one_key
from ksim.task.learning_hooks import LearningHooks
from ksim.task.mdp import compose_environment
from ksim.task.result import RunResult
from ksim.task.robot_hooks import RobotHooks
from ksim.types import EnvState, Trajectory

ConfigT = TypeVar("ConfigT", bound=RLConfig)


class RLTask(RobotHooks, LearningHooks, CallbackTask[ConfigT], Generic[ConfigT]):
    """The base class of tasks. Subclass `PPOTask` or `DistributedPPOTask` and override the hooks.

    A task either describes a robot and the terms of its MDP (`RobotHooks`), or returns a custom environment
    (`get_environment`). Only the robot and its rewards have no defaults.
    """

    arguments: ClassVar[str] = "[KEY=VALUE ...]"
    """The command line's arguments, as shown by `--help`."""

    evaluating: bool = False
    """Whether the hooks are called for the evaluation environment; they may then return other terms, e.g. no pushes."""

    pretrained: ClassVar[Path | None] = None
    """Directory of the task's own policy for `checkpoint=pretrained`, as written by `run_mode=export`."""

    def __init__(self, config: ConfigT) -> None:
        """Makes the task. A distributed task also connects this process to the others of its job.

        Raises:
            ConfigError: An option is invalid, or the job's processes cannot be connected.
        """
        super().__init__(config)
        wanted = self.get_config_class()
        if not isinstance(config, wanted):
            raise ConfigError(
                f"config ({quoted(config)}) must be a {wanted.__name__}, which has the options of "
                f"{type(self).__name__}."
            )
        config.validate()
        self.config = config = config.with_pretrained(self.pretrained, self.task_name)
        config.join_job()
        self.program_config: RLConfig = config
        """The program's own options: `config` before changes by the command line and a checkpoint."""

    def get_loggers(self) -> Sequence[AbstractLogger]:
        """Loggers of metrics and evaluations: by default the console, metrics.jsonl and TensorBoard.

        Called on process 0. An override can add to the defaults of `super().get_loggers()`. Every run writes
        metrics.jsonl and evaluations.jsonl, from which its best checkpoint, plots and result are read.
        """
        default = [JsonlLogger(), ConsoleLogger(self.config.console)]
        return [*default, TensorBoardLogger()] if self.config.tensorboard else default

    def get_environment(self, engine: str, num_devices: int) -> Environment:
        """The environment: by default the robot with its MDP. Override it to train a custom environment.

        Args:
            engine: `mjx` or `mujoco`.
            num_devices: Number of this process's devices that step it at the same time.
        """
        return compose_environment(self, self.config, engine, num_devices)

    def get_eval_environment(self, engine: str) -> Environment:
        """The evaluation environment, on one device: by default the training environment, with `evaluating` set.

        To evaluate under other conditions, return other terms from hooks if `self.evaluating`, or override this hook,
        for example with a copy of the task with other options:

            return type(self)(dataclasses.replace(self.config, episode_s=10.0)).get_environment(engine, 1)

        Args:
            engine: `mujoco`; also called with the training engine, if it differs, to compare the two.
        """
        twin = copy.copy(self)
        twin.evaluating = True
        return twin.get_environment(engine, num_devices=1)

    def _get_initial_env_state(self, rng: PRNGKeyArray) -> EnvState:
        """The first states of the global batch: every leaf with `num_envs` rows.

        An override may return arrays on one device or on the host, the same in every process; ksim shards them over
        the devices. This default computes each row on the device that will hold it.
        """
        env = self.environment  # before the trace: an engine holds arrays, which must not be tracers
        make = lambda key, index_e: initial_env_states(env, key, index_e)
        return self.layout.make_envs(make, rng, self.config.num_envs)

    def _rollout(
        self, model: AbstractActorCritic, env_state: EnvState, model_carry: PyTree, rng: PRNGKeyArray
    ) -> tuple[Trajectory, EnvState, PyTree]:
        """Collects experience. Traced per device: it sees only that device's envs.

        Args:
            model: The policy and value function, on raw observations.
            env_state: States to start from, one row per env of this device.
            model_carry: The model's memory, one row per env.
            rng: One key, the same on every device. `env_keys` derives one per env from it.

        Returns:
            The trajectory with leading axes (env, time), and the states and memories after it.
        """
        key_e = self.env_keys(rng, env_state.reward.shape[0])
        return unroll(
            self.environment,
            model,
            env_state,
            model_carry,
            key_e,
            num_steps=self.config.rollout_length,
            reached_groups=self.reached_groups,
        )

    def env_keys(self, rng: PRNGKeyArray, num_local_envs: int) -> Key[Array, " e"]:
        """One key per env of this device, which depends only on the env's index in the global batch.

        So an env's random draws do not depend on the number of devices. For draws that differ between devices, fold
        `device_index()` into `rng`.

        Args:
            rng: One key, the same on every device.
            num_local_envs: Envs of this device.

        Raises:
            ConfigError: `rng` is not one key.
        """
        check_one_key(f"{type(self).__name__}._rollout", rng)
        return env_keys(rng, global_env_index(num_local_envs, self.layout.axis_name))

    def device_index(self) -> Int[Array, ""]:
        """Index of this device on the mapped axis; 0 on a single device, where it costs nothing."""
        return device_index(self.layout.axis_name)

    # What follows from the above.

    @property
    def title(self) -> str:
        """The task's name on the start screen."""
        return type(self).__name__

    @classmethod
    def name_with(cls, config: RLConfig) -> str:  # noqa: ARG003 - of overrides
        """The task's name for a config, as in `runs/<task>/`."""
        return camelcase_to_snakecase(cls.__name__)

    @functools.cached_property
    def task_name(self) -> str:
        """The task's name for its own config."""
        return self.name_with(self.config)

    @property
    def device_axis(self) -> str:
        """The name of the device axis, for collectives in hooks and terms; bound on a single device as well."""
        return self.config.device_axis

    @functools.cached_property
    def layout(self) -> AbstractLayout:
        """The layout of the training step over devices."""
        return self.config.training_layout(type(self).__name__)

    @functools.cached_property
    def environment(self) -> Environment:
        """The training environment."""
        return self.get_environment(self.picked_engine[0], len(self.layout.local_devices))

    @functools.cached_property
    def picked_engine(self) -> tuple[str, str]:
        """The training engine, and the reason for the choice in a few words."""
        return self.config.picked_engine(self.layout.platform)

    @functools.cached_property
    def eval_environment(self) -> Environment:
        """The evaluation environment, in native MuJoCo whatever the training engine."""
        return self.get_eval_environment("mujoco")

    @functools.cached_property
    def obs_sizes(self) -> dict[str, int]:
        """The length of each observation group, from a trace of the environment that also checks it."""
        return check_environment(self.environment, self.device_axis)

    def check(self) -> None:
        """Raises ConfigError for errors that can be found before anything compiles."""
        command("check")(self)

    def run(self) -> RunResult:
        """Runs the task's `run_mode`: trains, or evaluates, shows, exports or replays a checkpoint.

        Returns:
            The run's exit code (of the process, under `launch`), directory, metrics, evaluations and policy.
        """
        # Set explicitly: on some GPUs the backend's default drops to 10 bits of mantissa.
        with jax.default_matmul_precision(self.config.matmul_precision):
            return command(self.config.run_mode)(self)

    @classmethod
    def launch(cls, config: RLConfig | None = None, argv: Sequence[str] | None = None) -> None:
        """Runs the task from the command line, with `key=value` overrides of `config`; exits the process."""
        command("launch")(cls, config, argv)
