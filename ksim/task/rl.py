"""A task: what is particular to a robot, in hooks with working defaults."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import mujoco
from jaxtyping import Array, Int, Key, PRNGKeyArray, PyTree

from ksim.errors import ConfigError, shown
from ksim.log.console import ConsoleLogger
from ksim.log.jsonl import JsonlLogger
from ksim.log.logger import AbstractLogger
from ksim.log.tensorboard import TensorBoardLogger
from ksim.mdp import resets as reset_terms, terminations as termination_terms
from ksim.mdp.actions import AbstractActionFilter
from ksim.mdp.commands import AbstractCommand
from ksim.mdp.curriculum import AbstractCurriculum
from ksim.mdp.events import AbstractEvent
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.observations.default import default_observations
from ksim.mdp.randomizers import AbstractRandomizer
from ksim.mdp.resets import AbstractReset
from ksim.mdp.rewards import AbstractReward
from ksim.mdp.term import Terms, named_terms
from ksim.mdp.terminations import AbstractTermination
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.parallel.collectives import DEVICE_AXIS, device_index, global_env_index, shapes_on_devices
from ksim.parallel.job import find_job
from ksim.parallel.layout import AbstractLayout, SingleDevice
from ksim.parallel.replica_guard import ReplicaGuard
from ksim.physics import AbstractActuators, ModelActuators, PhysicsModel, Terrain, compile_model, load_spec
from ksim.physics.select import pick_engine
from ksim.ppo.train_step import TrainStep
from ksim.rollout.environment import Environment, check_environment
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from ksim.rollout.unroll import env_keys, initial_env_states, unroll
from ksim.task.callbacks import CallbackTask
from ksim.task.commands import command
from ksim.task.result import RunResult
from ksim.task.returned import check_one_key
from ksim.task.rl_config import RLConfig as RLConfig
from ksim.types import EnvState, LearnerState, TrainState, Trajectory

ConfigT = TypeVar("ConfigT", bound=RLConfig)
Observations = Terms[AbstractObservation] | Mapping[str, Terms[AbstractObservation]]


class RLTask(CallbackTask[ConfigT], Generic[ConfigT]):
    """What is particular to a robot. Subclass it, or rather `PPOTask`, and override the hooks.

    A task either describes a robot and the terms of its MDP, or gives a whole environment of its own
    (`get_environment`). All hooks but the robot and its rewards have defaults.
    """

    def __init__(self, config: ConfigT) -> None:
        super().__init__(config)
        wanted = self.get_config_class()
        if not isinstance(config, wanted):
            raise ConfigError(
                f"config ({shown(config)}) must be a {wanted.__name__}, which has the options of {type(self).__name__}."
            )
        config.validate()
        self.program_config: RLConfig = config
        """The program's own options: `config` before the command line and a checkpoint changed it."""

    # What the robot is, and what it is asked.

    def get_robot(self) -> str | Path | mujoco.MjSpec:
        """The robot and its world: the path of an MJCF file, or a spec."""
        raise ConfigError(f"{type(self).__name__} must define get_robot (an MJCF file) or get_environment.")

    def get_actuators(self) -> AbstractActuators:
        """How actions act; by default on the model's actuators as they are."""
        return ModelActuators()

    def get_terrain(self) -> Terrain | None:
        """What takes the place of the robot's floor; None, the default, leaves it."""
        return None

    def get_rewards(self, physics_model: PhysicsModel) -> Terms[AbstractReward]:
        """Rewards, as a list or a mapping of terms."""
        raise ConfigError(f"{type(self).__name__} must define get_rewards: there is nothing to learn without one.")

    def get_observations(self, physics_model: PhysicsModel) -> Observations:
        """Observations: terms for all, or a mapping of the groups `actor` and `critic` to terms.

        By default gravity and angular velocity in the base's frame (where there is a free base), joints, the last
        action and every command.
        """
        return default_observations(physics_model, list(named_terms(self.get_commands(physics_model), AbstractCommand)))

    def get_commands(self, physics_model: PhysicsModel) -> Terms[AbstractCommand]:
        """Commands, best by the names under which other terms refer to them; none by default."""
        return []

    def get_terminations(self, physics_model: PhysicsModel) -> Terms[AbstractTermination]:
        """Ends of episodes; a time limit of 20 s by default."""
        return [termination_terms.TimeLimit()]

    def get_resets(self, physics_model: PhysicsModel) -> Terms[AbstractReset]:
        """Changes to the first keyframe (or reference pose) at a reset; small joint offsets by default."""
        return [reset_terms.RandomJointPositions(), reset_terms.RandomJointVelocities()]

    def get_events(self, physics_model: PhysicsModel) -> Terms[AbstractEvent]:
        """What happens during an episode; nothing by default."""
        return []

    def get_randomizers(self, physics_model: PhysicsModel) -> Terms[AbstractRandomizer]:
        """Randomization of the model at each reset; none by default."""
        return []

    def get_action_filters(self, physics_model: PhysicsModel) -> Terms[AbstractActionFilter]:
        """What happens to actions on their way to the actuators (latency, losses); nothing by default."""
        return []

    def get_curricula(self, physics_model: PhysicsModel) -> Mapping[str, AbstractCurriculum]:
        """Curricula, by the names under which terms ask for their levels; none by default."""
        return {}

    def get_loggers(self) -> Sequence[AbstractLogger]:
        """Where metrics and evaluations go: the console, metrics.jsonl and TensorBoard by default.

        Called on process 0. `super().get_loggers()` has the defaults, for an override that adds to them.
        """
        default = [ConsoleLogger(), JsonlLogger()]
        return [*default, TensorBoardLogger()] if self.config.tensorboard else default

    def get_environment(self, engine: str, num_devices: int) -> Environment:
        """The environment: by default the robot under its MDP. Override it to train one that knows nothing of ksim.

        Args:
            engine: `mjx` or `mujoco`.
            num_devices: How many devices of this process will step it at the same time.
        """
        base_model = self._compile()
        mdp = self.get_mdp(base_model)
        model = self._compile([mdp.edit_spec])
        if mdp.actuators.action_size(model) < 1:
            raise ConfigError(
                f"The robot of {type(self).__name__} has no actuators, so that there is nothing to learn. Add some to "
                "its MJCF file."
            )
        return MdpEnvironment(mdp, mdp.make_engine(engine, model, num_devices=num_devices))

    def get_eval_environment(self, engine: str) -> Environment:
        """The environment that evaluations step, on one device: by default that of the training.

        Override it to evaluate on other terms. A copy of the task with other options has them:

            return type(self)(dataclasses.replace(self.config, episode_s=10.0)).get_environment(engine, 1)

        Args:
            engine: `mujoco`; and the training's engine, where it is another and the two are compared.
        """
        return self.get_environment(engine, num_devices=1)

    # How it learns: overridable parts of the algorithm.

    def _get_initial_model(self, rng: PRNGKeyArray) -> AbstractActorCritic | eqx.Module:
        """The actor-critic before the first iteration. Traced, with `rng` the only input that varies.

        An Equinox module without memory that returns `(mean of the action, value)` for an observation is adapted.
        """
        raise ConfigError(f"{type(self).__name__} must define _get_initial_model; PPOTask has one.")

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
            env_state: States to go on from, one row per env of this device.
            model_carry: The model's memory, one row per env.
            rng: One key, the same on every device. `env_keys` makes one per env of it.

        Returns:
            The trajectory with leading axes (env, time), and the states and memories after it.
        """
        key_e = self.env_keys(rng, env_state.reward.shape[0])
        return unroll(self.environment, model, env_state, model_carry, key_e, num_steps=self.config.rollout_length)

    def env_keys(self, rng: PRNGKeyArray, num_local_envs: int) -> Key[Array, " e"]:
        """One key per env of this device, which depends on the env's place in the global batch and on nothing else.

        What is random about an env, drawn from its key, is the same on any number of devices. For what shall differ
        from device to device instead, fold `device_index()` into `rng`.

        Args:
            rng: One key, the same on every device.
            num_local_envs: Envs of this device.

        Raises:
            ConfigError: `rng` is not one key.
        """
        check_one_key(self, rng)
        return env_keys(rng, global_env_index(num_local_envs, self.layout.axis_name))

    def device_index(self) -> Int[Array, ""]:
        """This device's place among all, in what is mapped over them; 0 on a single one, where it costs nothing."""
        return device_index(self.layout.axis_name)

    def initial_learner(self) -> tuple[LearnerState, AbstractActorCritic]:
        """The learner before the first iteration, and the actor-critic whose arrays it holds."""
        raise ConfigError(f"{type(self).__name__} must derive from PPOTask, which knows how to learn.")

    def initial_state(self) -> TrainState:
        """The global state before the first iteration, not yet placed on devices."""
        raise ConfigError(f"{type(self).__name__} must derive from PPOTask, which knows how to learn.")

    def make_train_step(self, axis_name: str | None) -> TrainStep:
        """The training step, for a single device (None) or mapped over an axis of devices."""
        raise ConfigError(f"{type(self).__name__} must derive from PPOTask, which knows how to learn.")

    # What follows from the above.

    @property
    def device_axis(self) -> str:
        """The name of the axis of devices, for collectives in hooks and terms; bound on a single device as well."""
        return DEVICE_AXIS

    @functools.cached_property
    def layout(self) -> AbstractLayout:
        """Where the training step runs."""
        job = find_job()
        if job is not None and (job.num_processes or 1) > 1:
            raise ConfigError(
                f"{type(self).__name__} runs in one process on one device, but {job.source} has started several. "
                "Derive it from DistributedPPOTask, or start one process."
            )
        return SingleDevice(axis_name=self.device_axis)

    @functools.cached_property
    def engine_choice(self) -> tuple[str, str]:
        """The engine's name, and why it was picked."""
        return pick_engine(self.config.engine, self.layout.devices[0].platform)

    @functools.cached_property
    def environment(self) -> Environment:
        """The environment that training steps."""
        return self.get_environment(self.engine_choice[0], len(self.layout.local_devices))

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

    def make_replica_guard(self, state: TrainState) -> ReplicaGuard | None:
        """What compares the devices' copies of the learner during a run; None where there is one device."""
        return None

    def check_resumed(self, changed: Mapping[str, tuple[Any, Any]]) -> None:
        """Raises ConfigError for a change of options that a run which goes on cannot make.

        Args:
            changed: Values in the checkpoint and here, by option.
        """
        for name in self.fixed_options():
            if name in changed:
                there, here = changed[name]
                raise ConfigError(
                    f"{name} ({here}) cannot change when a run is resumed: its checkpoint was made with {there}. "
                    "Leave it out, or start a new run with its policy: load_weights instead of resume."
                )

    def fixed_options(self) -> tuple[str, ...]:
        """Options that are part of what a checkpoint holds."""
        return ("num_envs", "seed")

    def network_options(self) -> tuple[str, ...]:
        """Options that shape the default network, which another shape's checkpoint does not fit."""
        return ()

    def adapt_resumed(self, state: TrainState, changed: Mapping[str, tuple[Any, Any]]) -> TrainState:
        """A state from a checkpoint, with those changed options in it that a state holds."""
        return state

    def check_curricula(self, state: TrainState) -> None:
        """Raises ConfigError for a curriculum that goes by a metric which does not exist, from a trace of the step."""
        if state.learner.levels:
            shapes_on_devices(self.make_train_step(None), self.device_axis, self.layout.num_devices, state)

    def get_mdp(self, physics_model: PhysicsModel) -> Mdp:
        """All terms of the task, named and checked."""
        observations = self.get_observations(physics_model)
        if isinstance(observations, Sequence) or any(isinstance(v, AbstractObservation) for v in observations.values()):
            observations = {"actor": observations}
        rewards = named_terms(self.get_rewards(physics_model), AbstractReward)
        if not rewards:
            raise ConfigError(f"{type(self).__name__}.get_rewards must return at least one reward.")
        return Mdp(
            observations={group: named_terms(terms, AbstractObservation) for group, terms in observations.items()},  # type: ignore[arg-type]
            rewards=rewards,
            commands=named_terms(self.get_commands(physics_model), AbstractCommand),
            terminations=named_terms(self.get_terminations(physics_model), AbstractTermination),
            resets=named_terms(self.get_resets(physics_model), AbstractReset),
            events=named_terms(self.get_events(physics_model), AbstractEvent),
            randomizers=named_terms(self.get_randomizers(physics_model), AbstractRandomizer),
            actuators=self.get_actuators(),
            action_filters=named_terms(self.get_action_filters(physics_model), AbstractActionFilter),
            curricula=named_terms(self.get_curricula(physics_model), AbstractCurriculum),
        )

    def _compile(self, edits: Sequence[Any] = ()) -> PhysicsModel:
        from ksim.physics.mujoco import silence_warnings  # noqa: PLC0415 - an engine, needed only for a robot

        silence_warnings()  # also while it reads a file
        robot, config = self.get_robot(), self.config
        if not isinstance(robot, str | Path | mujoco.MjSpec):
            raise ConfigError(f"get_robot must return the path of an MJCF file, or an MjSpec, not {shown(robot)}.")
        return compile_model(
            load_spec(robot),
            dt=float(config.dt),
            ctrl_dt=float(config.ctrl_dt),
            edits=edits,
            terrain=self.get_terrain(),
            source=None if isinstance(robot, mujoco.MjSpec) else robot,
        )

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
