"""A task: the hooks that describe a robot and its MDP, with defaults."""

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import jax
from jaxtyping import Array, Int, Key, PRNGKeyArray, PyTree
from xax.utils.text import camelcase_to_snakecase

from ksim.errors import ConfigError, shown
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
from ksim.task.described import check_one_key
from ksim.task.learning_hooks import LearningHooks
from ksim.task.mdp import compose_environment
from ksim.task.result import RunResult
from ksim.task.rl_config import RLConfig as RLConfig
from ksim.task.robot_hooks import RobotHooks
from ksim.types import EnvState, Trajectory

ConfigT = TypeVar("ConfigT", bound=RLConfig)


class RLTask(RobotHooks, LearningHooks, CallbackTask[ConfigT], Generic[ConfigT]):
    """The base class of tasks. Subclass `PPOTask` or `DistributedPPOTask` and override the hooks.

    A task either describes a robot and the terms of its MDP (`RobotHooks`), or returns a custom environment
    (`get_environment`). Only the robot and its rewards have no defaults.
    """

    arguments: ClassVar[str] = "[KEY=VALUE ...]"
    """What its command line takes, as `--help` shows it."""

    evaluating: bool = False
    """Whether the environment of evaluations is being made; hooks may return other terms for it, such as no pushes."""

    pretrained: ClassVar[Path | None] = None
    """The directory of the policy that comes with the task, as `run_mode=export` writes it: `checkpoint=pretrained`."""

    def __init__(self, config: ConfigT) -> None:
        """Makes the task, and connects this process to the others of its job where the task can use them.

        Raises:
            ConfigError: An option cannot work, or the job's processes cannot be connected.
        """
        super().__init__(config)
        wanted = self.get_config_class()
        if not isinstance(config, wanted):
            raise ConfigError(
                f"config ({shown(config)}) must be a {wanted.__name__}, which has the options of {type(self).__name__}."
            )
        config.validate()
        self.config = config = config.with_pretrained(self.pretrained, self.task_name)
        config.join_job()
        self.program_config: RLConfig = config
        """The program's own options: `config` before the command line and a checkpoint changed it."""

    def get_loggers(self) -> Sequence[AbstractLogger]:
        """Where metrics and evaluations go: the console, metrics.jsonl and TensorBoard by default.

        Called on process 0. `super().get_loggers()` has the defaults, for an override that adds to them. Every run
        writes metrics.jsonl and evaluations.jsonl, from which its best checkpoint, plots and result are read.
        """
        default = [JsonlLogger(), ConsoleLogger(self.config.console)]
        return [*default, TensorBoardLogger()] if self.config.tensorboard else default

    def get_environment(self, engine: str, num_devices: int) -> Environment:
        """The environment: by default the robot with its MDP. Override it to train a custom environment.

        Args:
            engine: `mjx` or `mujoco`.
            num_devices: Number of devices of this process that step it at the same time.
        """
        return compose_environment(self, self.config, engine, num_devices)

    def get_eval_environment(self, engine: str) -> Environment:
        """The environment of evaluations, on one device: by default that of training, as hooks make it when evaluating.

        To evaluate under other conditions, return other terms where `self.evaluating`, or override this hook, for
        example with a copy of the task with other options:

            return type(self)(dataclasses.replace(self.config, episode_s=10.0)).get_environment(engine, 1)

        Args:
            engine: `mujoco`, and the engine of training if it is another, to compare the two.
        """
        twin = copy.copy(self)
        twin.evaluating = True
        return twin.get_environment(engine, num_devices=1)

    def _get_initial_env_state(self, rng: PRNGKeyArray) -> EnvState:
        """The first states of the global batch: every leaf with `num_envs` rows.

        An override may return arrays on one device or on the host, the same in every process; ksim gives every device
        its share. This default makes each row on the device that will hold it.
        """
        env = self.environment  # here and not while tracing: an engine holds arrays
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
            rng: One key, the same on every device. `env_keys` makes one per env of it.

        Returns:
            The trajectory with leading axes (env, time), and the states and memories after it.
        """
        key_e = self.env_keys(rng, env_state.reward.shape[0])
        return unroll(self.environment, model, env_state, model_carry, key_e, num_steps=self.config.rollout_length)

    def env_keys(self, rng: PRNGKeyArray, num_local_envs: int) -> Key[Array, " e"]:
        """One key per env of this device, which depends only on the env's index in the global batch.

        So random draws of an env do not depend on the number of devices. For draws that differ between devices, fold
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
        """What a start calls the task."""
        return type(self).__name__

    @classmethod
    def name_with(cls, config: RLConfig) -> str:  # noqa: ARG003 - of overrides
        """The name of the task with some options, as in `runs/<task>/`."""
        return camelcase_to_snakecase(cls.__name__)

    @functools.cached_property
    def task_name(self) -> str:
        """Its name with its own options."""
        return self.name_with(self.config)

    @property
    def device_axis(self) -> str:
        """The name of the axis of devices, for collectives in hooks and terms; bound on a single device as well."""
        return self.config.device_axis

    @functools.cached_property
    def layout(self) -> AbstractLayout:
        """Where the training step runs."""
        return self.config.training_layout(type(self).__name__)

    @functools.cached_property
    def environment(self) -> Environment:
        """The environment that training steps."""
        return self.get_environment(self.picked_engine[0], len(self.layout.local_devices))

    @functools.cached_property
    def picked_engine(self) -> tuple[str, str]:
        """The engine of training, and the reason in a few words."""
        return self.config.picked_engine(self.layout.platform)

    @functools.cached_property
    def eval_environment(self) -> Environment:
        """The environment of evaluations, in native MuJoCo whatever the training's engine."""
        return self.get_eval_environment("mujoco")

    @functools.cached_property
    def obs_sizes(self) -> dict[str, int]:
        """The length of each observation group, from a trace of the environment that also checks it."""
        return check_environment(self.environment, self.device_axis)

    def check(self) -> None:
        """Raises ConfigError for whatever can be known to be wrong before anything compiles."""
        command("check")(self)

    def run(self) -> RunResult:
        """Does what `run_mode` says: trains, or evaluates, shows, exports or replays a checkpoint.

        Returns:
            The exit code that `launch` ends the process with, the run's directory, metrics, evaluations and policy.
        """
        # Chosen and not left to the backend: on some GPUs its own choice drops to 10 bits of mantissa.
        with jax.default_matmul_precision(self.config.matmul_precision):
            return command(self.config.run_mode)(self)

    @classmethod
    def launch(cls, config: RLConfig | None = None, argv: Sequence[str] | None = None) -> None:
        """Runs the task from the command line, with `key=value` overrides of `config`; exits the process."""
        command("launch")(cls, config, argv)
