"""A task: the hooks that describe a robot, its MDP and its learning, with defaults."""

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int, Key, PRNGKeyArray, PyTree
from xax.task.base import BaseTask
from xax.utils.text import camelcase_to_snakecase

from ksim.config import in_types
from ksim.errors import ConfigError, quoted
from ksim.learn.learner import AbstractLearner, LearnerInfo, initial_memories
from ksim.learn.train_step import TrainStep
from ksim.log.console import ConsoleLogger
from ksim.log.jsonl import JsonlLogger
from ksim.log.logger import AbstractLogger
from ksim.log.tensorboard import TensorBoardLogger
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.collectives import device_index, global_env_index, mean_across_devices
from ksim.parallel.layout import AbstractLayout
from ksim.physics.select import PickedEngine
from ksim.rollout.environment import QUICKLY, Environment, check_environment
from ksim.rollout.starts import env_keys, initial_env_states, initial_next_starts
from ksim.rollout.unroll import unroll
from ksim.task.config import RUN_MODES, RLConfig as RLConfig, imported
from ksim.task.hook_checks import NetworkChecks, check_env_state, check_one_key, hook_name, trace_hook
from ksim.task.mdp import compose_environment
from ksim.task.result import RunResult
from ksim.task.robot_hooks import RobotHooks
from ksim.types import EnvBatch, EnvState, LearnerState, TrainState, Trajectory, key_shape

CALLBACKS = (
    "on_training_start",
    "on_step_start",
    "on_step_end",
    "on_after_checkpoint_save",
    "on_training_end",
    "add_logger_handlers",
)
"""Names of the callbacks of a task."""


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """Progress of training, passed to the callbacks.

    Attributes:
        iteration: Iterations done, including those before the run was resumed.
        env_steps: Steps of all environments in these iterations. If an action is repeated, each repetition counts.
        elapsed_s: Seconds that these iterations took.
        iterations_left: Iterations to the limit; None without one.
        metrics: Metrics of the last iteration, as in its line of metrics.jsonl (NaN for null); empty before the first
            iteration of this process.
        checkpoint: The newest written checkpoint; None if there is none.
        ended_by: In `on_training_end`, the signal, `max_runtime` or the error that ended the run; None if the run
            reached its limit.
        read_model: Copies the policy and value function, on raw observations, to the host. Call it only in the hook:
            the next iteration changes the arrays. Raises RunError if a training step failed half-way.
    """

    iteration: int
    env_steps: int
    elapsed_s: float
    iterations_left: int | None
    metrics: Mapping[str, float]
    run_dir: Path
    checkpoint: Path | None
    ended_by: str | None
    read_model: Callable[[], AbstractActorCritic] = field(repr=False, compare=False)


class InitialLearner(NamedTuple):
    """The learner before the first iteration, and the actor-critic whose arrays it holds."""

    state: LearnerState
    network: AbstractActorCritic


ConfigT = TypeVar("ConfigT", bound=RLConfig)


class RLTask(RobotHooks, BaseTask[ConfigT], Generic[ConfigT]):
    """The base class of tasks. Subclass `PPOTask` or `DistributedPPOTask` and override the hooks.

    A task either describes a robot and the terms of its MDP (`RobotHooks`), or returns a custom environment
    (`get_environment`). Only the robot and its rewards have no defaults. A task with an algorithm of its own overrides
    `get_learner` and `_get_initial_model`.
    """

    reached_groups: ClassVar[tuple[str, ...]] = ()
    """Observation groups that the algorithm also needs for the states reached; see `Trajectory.reached`."""

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
        self.config = config = in_types(config).with_pretrained(self.pretrained, self.task_name)
        config.join_job()
        self.program_config: RLConfig = config
        """The program's own options: `config` before changes by the command line and a checkpoint."""
        self.command: str | None = None
        """The command that started the program, without its options; None if the task was made in Python."""

    # The environment, made from the hooks in `RobotHooks`, and its rollout.

    def get_environment(self, engine: str, num_devices: int) -> Environment:
        """The environment: by default the robot with its MDP. Override it to train a custom environment.

        Args:
            engine: `mjx`, `mujoco` or `warp`.
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

    @functools.cached_property
    def environment(self) -> Environment:
        """The training environment."""
        name = self.picked_engine.name
        return self._warp_environment if name == "warp" else self.get_environment(name, len(self.layout.local_devices))

    @functools.cached_property
    def _warp_environment(self) -> Environment:
        return self.get_environment("warp", len(self.layout.local_devices))

    @functools.cached_property
    def picked_engine(self) -> PickedEngine:
        """The training engine, and the reason for the choice in a few words."""
        picked = self.config.pick_engine(self.layout.platform)
        if (self.config.engine, picked.name) == ("auto", "warp"):
            try:
                _ = self._warp_environment
            except ConfigError as error:
                return PickedEngine("mjx", f"auto: {error}")
        return picked

    @functools.cached_property
    def eval_environment(self) -> Environment:
        """The evaluation environment, in native MuJoCo whatever the training engine."""
        return self.get_eval_environment("mujoco")

    @functools.cached_property
    def obs_sizes(self) -> dict[str, int]:
        """The length of each observation group, from a trace of the environment that also checks it."""
        return check_environment(self.environment, self.device_axis)

    # Learning: hooks of the algorithm, and the states and functions made with them.

    def get_learner(self, network: AbstractActorCritic, axis_name: str | None) -> AbstractLearner:
        """The algorithm.

        Args:
            network: The actor-critic before the first iteration. Its arrays are tracers while the initial state is
                computed, and shapes where only shapes are needed.
            axis_name: The mapped axis of devices; None on a single device.
        """
        raise ConfigError(f"{type(self).__name__} must define get_learner; PPOTask has one.")

    def _get_initial_model(self, rng: PRNGKeyArray) -> AbstractActorCritic | eqx.Module:
        """The actor-critic before the first iteration. Traced; `rng` is the only input that varies.

        It may also be a memoryless Equinox module that returns `(mean of the action, value)` for an observation.
        """
        raise ConfigError(f"{type(self).__name__} must define _get_initial_model; PPOTask has one.")

    def learner_parts(
        self, network: AbstractActorCritic, axis_name: str | None, *, without: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Values for the fields of `AbstractLearner`, which every learner has.

        Args:
            network: The actor-critic, as in `get_learner`.
            axis_name: The mapped axis of devices; None on a single device.
            without: Observation groups that the policy's networks and statistics do not use.
        """
        return {
            "env": self.environment,
            "rollout": self._rollout,
            "network": network,
            "obs_sizes": {group: size for group, size in self.obs_sizes.items() if group not in without},
            "sync_gradients": self.sync_gradients,
            "axis_name": axis_name,
        }

    def sync_gradients(self, grads: PyTree) -> PyTree:
        """Averages gradients over devices, inside the step. Override it to synchronise in another way.

        Called on a single device as well, where a mean over `device_axis` changes nothing.
        """
        return mean_across_devices(grads, self.layout.axis_name)

    def network_sizes(self) -> tuple[str, ...]:
        """Options that make the networks smaller or larger."""
        return ()

    def adapt_resumed(self, state: TrainState, changed: Mapping[str, tuple[Any, Any]]) -> TrainState:
        """A checkpoint's state, updated to changed options whose values are part of the state.

        Args:
            state: The state from the checkpoint.
            changed: Changed options by name: `(value in the checkpoint, value now)`.
        """
        return state

    def kept_arrays(self) -> Mapping[str, np.ndarray]:
        """Arrays that every checkpoint of the run holds besides the state.

        Their names must not begin with `learner.` or `envs.`, the prefixes of the state's arrays.
        """
        return {}

    def batch_figures(self) -> tuple[int | None, int | None]:
        """Global batch size and minibatches per pass; None for an algorithm without minibatches.

        Raises:
            ConfigError: They do not fit the number of environments or of devices.
        """
        return None, None

    def updates_per_iteration(self) -> int | None:
        """Minibatches of an iteration over all passes; None for an algorithm without minibatches."""
        return None

    def shapes_of(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """The result of a function on each device, with shapes in place of arrays.

        It may use collectives over `device_axis`. `inputs` are arrays or shapes, and values of other types.
        """
        return trace_hook(function, self.device_axis, self.layout.num_devices, *inputs)[1]

    def initial_learner(self) -> InitialLearner:
        """The learner before the first iteration: its `state` and its `network`."""
        return self._initial_learner

    @functools.cached_property
    def _initial_learner(self) -> InitialLearner:
        model_key, _, learner_key = self._keys()
        _ = self.obs_sizes  # makes the environment, whose arrays must not be tracers: before the trace
        # One program that runs once: array by array, every shape would be compiled separately.
        init = eqx.filter_jit(self._init_learner, compiler_options=QUICKLY)  # type: ignore[call-arg]
        return init(model_key, learner_key)

    def learner_shapes(self) -> InitialLearner:
        """The result of `initial_learner`, with shapes in place of arrays."""
        return self._learner_shapes

    @functools.cached_property
    def _learner_shapes(self) -> InitialLearner:
        _ = self.obs_sizes
        key = key_shape()
        return eqx.filter_eval_shape(self._init_learner, key, key)

    def _init_learner(self, model_key: PRNGKeyArray, learner_key: PRNGKeyArray) -> InitialLearner:
        checks = NetworkChecks(
            hook=hook_name(self, "_get_initial_model"),
            obs_sizes=self.obs_sizes,
            action_size=self.environment.action_size,
            options=self.config,
            shapes_of=self.shapes_of,
        )
        network = checks.actor_critic(self._get_initial_model(model_key))
        return InitialLearner(self.get_learner(network, None).init(learner_key), network)

    def learner_info(self) -> LearnerInfo:
        """Information about the algorithm for the host's prints, plots and estimates."""
        return self.get_learner(self.learner_shapes().network, None).info()

    def policy_of(self, learner: LearnerState) -> NormalizedActorCritic:
        """The policy and value function of a learner, on raw observations."""
        return self.get_learner(self.initial_learner().network, None).policy(learner)

    def initial_state(self) -> TrainState:
        """The global state before the first iteration, not yet placed on devices."""
        learner, network = self.initial_learner()
        env_key, num_envs = self._keys()[1], self.config.num_envs
        env_state = self._get_initial_env_state(env_key)
        hook = hook_name(self, "_get_initial_env_state")
        check_env_state(hook, env_state, num_envs, self.environment, self.device_axis)
        shapes = jax.eval_shape(lambda state: state, env_state)
        make_rest = lambda key, index_e: (
            *initial_memories(network, len(index_e)),
            initial_next_starts(shapes, key, index_e),
        )
        return TrainState(learner, EnvBatch(env_state, *self.layout.make_envs(make_rest, env_key, num_envs)))

    def make_train_step(self, axis_name: str | None) -> TrainStep:
        """The training step, for a single device (None) or mapped over an axis of devices."""
        self.batch_figures()  # checked
        return TrainStep(self.get_learner(self.initial_learner().network, axis_name))

    def _keys(self) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
        model_key, env_key, learner_key = jax.random.split(jax.random.key(self.config.seed), 3)
        return model_key, env_key, learner_key

    # The run.

    def get_loggers(self) -> Sequence[AbstractLogger]:
        """Loggers of metrics and evaluations: by default the console, metrics.jsonl and TensorBoard.

        Called on process 0. An override can add to the defaults of `super().get_loggers()`. Every run writes
        metrics.jsonl and evaluations.jsonl, from which its best checkpoint, plots and result are read.
        """
        default = [JsonlLogger(), ConsoleLogger(self.config.console)]
        return [*default, TensorBoardLogger()] if self.config.tensorboard else default

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

    def check(self) -> None:
        """Raises ConfigError for errors that can be found before anything compiles. The check runs once per task."""
        _ = self._checked

    @functools.cached_property
    def _checked(self) -> None:
        imported("ksim.preflight.hooks:check_task")(self)

    def run(self) -> RunResult:
        """Runs the task's `run_mode`: trains, or evaluates, shows, exports or replays a checkpoint.

        Returns:
            The run's exit code (of the process, under `launch`), directory, metrics, evaluations and policy.
        """
        # Set explicitly: on some GPUs the backend's default drops to 10 bits of mantissa.
        with jax.default_matmul_precision(self.config.matmul_precision):
            return imported(RUN_MODES[self.config.run_mode])(self)

    @classmethod
    def launch(cls, config: RLConfig | None = None, argv: Sequence[str] | None = None) -> None:
        """Runs the task from the command line, with `key=value` overrides of `config`; exits the process."""
        imported("ksim.cli:launch")(cls, config, argv)

    # Callbacks, named as in xax, called by process 0 during training. Each does nothing by default. Training waits for
    # them; `time/callbacks_s` is the time they take. They cannot change training: a hook returns None or, as in xax,
    # its argument. An exception in a hook ends the run after its state is saved.

    def on_training_start(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called once the run directory and the initial states exist, before the training step compiles."""

    def on_step_start(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called before each iteration."""

    def on_step_end(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called after each iteration, once its metrics are written."""

    def on_after_checkpoint_save(  # type: ignore[override]
        self, ckpt_path: Path, state: TrainingStatus
    ) -> TrainingStatus | None:
        """Called once a checkpoint is on disk. Training continues while it is written.

        Args:
            ckpt_path: The checkpoint. `max_to_keep` limits how many are kept, so copy those that you need later.
            state: The status of training when it was saved.
        """

    def on_training_end(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called when a run that has begun ends: at its limit, on a signal or with an error."""

    def add_logger_handlers(self, logger: logging.Logger) -> None:
        """Adds handlers to ksim's logger before the first record; ksim removes them when the run ends."""
