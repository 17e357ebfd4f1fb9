"""A task around a third-party environment."""

import contextlib
import dataclasses
import functools
import importlib
import sys
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import jax
import numpy as np
from xax.utils.text import camelcase_to_snakecase

from ksim.config import as_argument, check_fields, field
from ksim.envs.wrapped import InsteadOfMjx, Randomizer, WrappedEnvironment, observation_names
from ksim.errors import ConfigError, near_misses
from ksim.host.machine import install_command
from ksim.host.plain_yaml import read_value
from ksim.host.terminal import print_line, warn_user
from ksim.parallel.multihost import gather_rows
from ksim.physics.select import PickedEngine
from ksim.rollout.environment import Environment, Shown
from ksim.task.mdp import given_or_measured
from ksim.task.ppo import DistributedPPOConfig, DistributedPPOTask
from ksim.task.rl import RLConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(kw_only=True)
class WrappedConfig(DistributedPPOConfig):
    """Options of a third-party environment. The environment defines its robot, rewards and time steps."""

    help_group: ClassVar[str] = "Environment"

    env: str = field("", help="name of the environment", fixed=True)
    env_options: list[str] = field([], help="options of the environment itself, as in [vision=false]", kind="a list")
    episode_length: int = field(1000, least=1, help="steps of the environment after which an episode is truncated")
    action_repeat: int = field(
        1, least=1, help="steps of the environment for each action; max_env_steps counts them all"
    )
    actor_obs: str | None = field(
        None,
        help="the policy's observation, of those the environment has; null: the published one, or state",
        network=True,
        fixed=True,
    )
    critic_obs: str | None = field(
        None,
        help="the critic's; null: the published one, or privileged_state, or the policy's",
        network=True,
        fixed=True,
    )
    randomize: bool = field(False, help="draw a model for each episode with the environment's own randomization")
    # Not options: the environment defines them, and `env_options` may set them if it allows that.
    dt: float | None = field(None, help="the environment's own seconds per physics step", saved=False)  # type: ignore[assignment]
    ctrl_dt: float | None = field(None, help="its own seconds per step, times action_repeat", saved=False)  # type: ignore[assignment]

    @property
    def steps_per_action(self) -> int:
        return self.action_repeat

    def agrees_natively(self) -> bool:
        """Whether tests found the same trajectories in native MuJoCo as in the environment's own physics."""
        return False

    def own_physics(self) -> str:
        """The name of the environment's own physics engine."""
        return "mjx"

    def pick_engine(self, platform: str) -> PickedEngine:
        picked, own = super().pick_engine(platform), self.own_physics()
        if picked.name == "warp" and self.engine == "auto":
            return PickedEngine(own, "auto: the environment's own; engine=warp is faster")
        if picked.name == "mujoco" and not self.may_step_natively():
            return PickedEngine(own, "auto: the environment's own")
        return picked._replace(name=own) if picked.name == "mjx" else picked

    def may_step_natively(self) -> bool:
        """Whether native MuJoCo may step the environment: if `engine` requests it, or if it agrees."""
        return self.engine == "mujoco" or self.agrees_natively()


ConfigT = TypeVar("ConfigT", bound=WrappedConfig)
TITLES = {"mujoco": "native MuJoCo", "warp": "MuJoCo Warp"}
"""Engines that can step an environment written for MJX, by the value of `engine`."""


class WrappedTask(DistributedPPOTask[ConfigT], Generic[ConfigT]):
    """PPO in a third-party environment, by name."""

    arguments: ClassVar[str] = "NAME [KEY=VALUE ...]"

    def __init__(self, env: str | ConfigT, config: ConfigT | None = None) -> None:
        """Makes the environment.

        Args:
            env: The name of the environment, or options that contain it.
            config: Options; by default the result of `published_config`.

        Raises:
            ConfigError: There is no such environment, or an option cannot work.
        """
        options: Any = env
        if isinstance(env, str):
            options = dataclasses.replace(self.published_config(env) if config is None else config, env=env)
        check_fields(options)
        options.join_job()  # before the environment's arrays initialize JAX's backend
        self.made = self.make(options)
        # Shared with copies of the task: all processes must measure together, but a single process may make a copy.
        self._gap: dict[str, float] = {}
        self._missed: list[str] | None = None
        timing = {"dt": self.made.dt, "ctrl_dt": self.made.ctrl_dt * options.action_repeat}
        for name, own in timing.items():
            if getattr(options, name) not in (None, own):
                raise ConfigError(f"{name} ({getattr(options, name)}) is {own:g} in {options.env}. Leave it out.")
        super().__init__(dataclasses.replace(options, **timing))

    @classmethod
    @abstractmethod
    def published_config(cls, name: str) -> Any:
        """Options to train an environment with: published for it, or found to work well."""

    @abstractmethod
    def make(self, config: ConfigT) -> "ExternalEnv":
        """The environment named by the options."""

    @functools.cached_property
    def picked_engine(self) -> PickedEngine:
        """The engine of training, and the reason. Another than MJX only if it agrees, or if `engine` requests it.

        The first access compares the two engines, by a program that takes some tens of seconds to compile.

        Raises:
            ConfigError: An engine was requested that cannot step the environment.
        """
        config = self.config
        picked, own = super().picked_engine, config.own_physics()
        name, is_asked = picked.name, config.engine == picked.name
        if name not in ("mujoco", "warp") or (is_asked and config.run_mode != "train"):
            return picked
        env, refusal = self._stepped_by(name, num_devices=1)
        if env is None:
            return PickedEngine(own, f"auto: {refusal}")
        missed = self._fields_missed(env)
        if missed:
            return PickedEngine(own, f"auto: {TITLES[name]} does not give {', '.join(missed)}")
        from ksim.envs.agreement import in_words, kept_gap  # noqa: PLC0415 - imports MJX

        if name not in self._gap:  # the maximum over processes, so that all decide the same
            gap = kept_gap(env, self.made.mjx_model, self.made.package, config.env_options)
            self._gap[name] = float(gather_rows(np.asarray(gap, np.float32)).max())
        agrees, words = in_words(self._gap[name])
        if is_asked and not agrees:
            warn_user(f"engine ({name}): {words} in {config.env}. Set engine=mjx for its own physics.")
        return PickedEngine(name if agrees or is_asked else own, f"{picked.reason}; {words}")

    def get_environment(self, engine: str, num_devices: int) -> Environment:
        config, made = self.config, self.made
        if config.randomize and made.randomize is None:
            raise ConfigError(f"randomize (true): {config.env} has no randomization of its own. Remove it.")
        is_asked = config.engine == engine
        may_be_native = config.may_step_natively() and (is_asked or not self._was_seen_to_differ())
        is_other = engine == "warp" or (engine == "mujoco" and may_be_native)
        env = self._stepped_by(engine, num_devices)[0] if is_other else None
        return self._environment() if env is None or self._fields_missed(env) else env

    def _was_seen_to_differ(self) -> bool:
        """Whether native MuJoCo was compared with MJX and does not agree."""
        if "mujoco" not in self._gap:
            return False
        from ksim.envs.agreement import in_words  # noqa: PLC0415 - imports MJX

        return not in_words(self._gap["mujoco"])[0]

    def _stepped_by(self, engine: str, num_devices: int) -> tuple[WrappedEnvironment | None, str]:
        """The environment in another engine than MJX and an empty string, or None and the reason why it cannot run so.

        Raises:
            ConfigError: The engine was requested and cannot step the environment.
        """
        try:
            physics = self._native(num_devices) if engine == "mujoco" else self._warp
            env = self._environment(physics, engine)
            if env.randomizer is not None:
                physics.check_models(env.randomizer.drawn)
        except ConfigError as error:
            if self.config.engine == engine:
                raise
            return None, str(error).removeprefix(f"engine ({engine}): ")
        return env, ""

    def _environment(self, physics: InsteadOfMjx | None = None, engine: str = "") -> WrappedEnvironment:
        config, made = self.config, self.made
        actor_obs, critic_obs = self._observation_names
        return WrappedEnvironment(
            env=made.env,
            actor_obs=actor_obs,
            critic_obs=critic_obs,
            episode_length=config.episode_length,
            action_repeat=config.action_repeat,
            randomizer=Randomizer(made.env, made.randomize) if config.randomize and made.randomize else None,
            physics=physics,
            show=made.shown,
            engine_name=engine or config.own_physics(),
        )

    def _fields_missed(self, env: WrappedEnvironment) -> list[str]:
        """Fields of `mjx.Data` that the environment reads and no other engine gives, found by a trace: once.

        Raises:
            ConfigError: There are some, and another engine was requested.
        """
        if self._missed is None:
            self._missed = env.fields_missed()
        if self._missed and self.config.engine in TITLES:
            engine = self.config.engine
            raise ConfigError(
                f"engine ({engine}): {self.config.env} reads {', '.join(self._missed)} of mjx.Data, which "
                f"{TITLES[engine]} does not give. Leave engine out, or set engine=mjx."
            )
        return self._missed

    @property
    def title(self) -> str:
        return f"{type(self).__name__}({self.config.env!r})"

    @classmethod
    def name_with(cls, config: RLConfig) -> str:
        return camelcase_to_snakecase(getattr(config, "env", "")) or super().name_with(config)

    @functools.cached_property
    def obs_sizes(self) -> dict[str, int]:
        with external_errors(self.config):
            return super().obs_sizes

    @functools.cached_property
    def _observation_names(self) -> tuple[str | None, str | None]:
        """The policy's and critic's observation names. Cached, because finding them traces a reset."""
        with external_errors(self.config):
            config, made = self.config, self.made
            return observation_names(made.env, config.actor_obs, config.critic_obs, made.published_obs)

    def _native(self, num_devices: int) -> InsteadOfMjx:
        self._check_steps_mjx("mujoco")
        from ksim.envs.engines import NativePhysics  # noqa: PLC0415 - imports MJX

        return NativePhysics(self.made.mj_model, self.made.mjx_model, num_devices)

    @functools.cached_property
    def _warp(self) -> InsteadOfMjx:
        self._check_steps_mjx("warp")
        from ksim.envs.engines import WarpPhysics, tried_sizes  # noqa: PLC0415 - imports MJX

        made = self.made
        measure = lambda: tried_sizes(self._environment(self._native(1), "mujoco"), made.mjx_model, made.randomize)
        return WarpPhysics(made.mj_model, made.mjx_model, given_or_measured(self.config, measure))

    def _check_steps_mjx(self, engine: str) -> None:
        if self.made.mjx_model is None:
            raise ConfigError(f"engine ({engine}): {self.config.env} does not step MJX, which it would replace.")


@dataclasses.dataclass(frozen=True)
class ExternalEnv:
    """A third-party environment.

    Attributes:
        dt: Seconds per physics step.
        ctrl_dt: Seconds per step of the environment.
        randomize: Its own randomization of its model; None if it has none.
        mj_model: The model from which its MJX model was made.
        mjx_model: The model that it passes to MJX; None if it does not step MJX.
        package: The installed package with its code; empty for an environment registered by the program.
        published_obs: The names of the policy's and critic's observations in its published hyper-parameters, if any.
    """

    env: Any
    dt: float
    ctrl_dt: float
    randomize: Callable[[Any, Any], tuple[Any, Any]] | None = None
    shown: Shown | None = None
    mj_model: Any = None
    mjx_model: Any = None
    package: str = ""
    published_obs: tuple[str | None, str | None] = (None, None)


def check_name(name: str, known: Sequence[str], program: str) -> None:
    """Raises ConfigError unless there is an environment of this name."""
    if name not in known:
        asked = f"env ({name!r}) is not an environment of this package" if name else "No environment is named"
        raise ConfigError(f"{asked}. {near_misses(name, known)} Name one, as in {program} {known[0]}.")


def parsed_options(options: Sequence[str]) -> dict[str, Any]:
    """The options of an environment itself, from `name=value`. Values are parsed by `read_value`.

    Raises:
        ConfigError: An option has another form, or is an option of the task, which the environment does not read.
    """
    parsed = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise ConfigError(f"env_options ({option!r}) must be name=value.")
        if name in ("action_repeat", "episode_length"):
            raise ConfigError(f"env_options ({option}): that is an option of the task. Add {option} by itself.")
        parsed[name] = read_value(value)
    return parsed


def imported(module: str, package: str, *, extra: str) -> Any:
    """A module of an optional package. Raises ConfigError with the install command if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{package} cannot be imported: {error}. Run {install_command(extra)}.") from error


@contextlib.contextmanager
def external_errors(config: WrappedConfig, known: Iterable[str] = ()) -> Iterator[None]:
    """Turns an exception of an environment into a ConfigError with its options, the failing line, and known options."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        asked = f" with env_options ({', '.join(config.env_options)})" if config.env_options else ""
        knows = f" It knows the options {', '.join(sorted(known))}." if known and config.env_options else ""
        at, reason = traceback.extract_tb(error.__traceback__)[-1], str(error).rstrip(".")
        raise ConfigError(
            f"{config.env} cannot be used{asked}: {type(error).__name__}: {reason} ({at.filename}, line {at.lineno})."
            f"{knows} log_level=debug shows the traceback."
        ) from error


def main(task_class: type[WrappedTask[Any]], argv: Sequence[str] | None = None) -> None:
    """Runs the environment named first on the command line, with the options published for it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_first = bool(arguments) and "=" not in arguments[0] and not arguments[0].startswith("-")
    name = arguments.pop(0) if is_first else ""
    named = [name] * is_first + [argument[4:] for argument in arguments if argument.startswith("env=")]
    name = named[0] if named else ""
    arguments = [argument for argument in arguments if not argument.startswith("env=")]
    try:
        if len(set(named)) > 1:
            raise ConfigError(f"env is given twice: {' and '.join(map(repr, named))}. Leave one of them out.")
        config = task_class.published_config(name) if name else task_class.get_config_class()()
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(2)
    published = changed_defaults(config)
    # Options of a checkpoint replace the published ones.
    goes_on = any(argument.startswith(("resume=", "checkpoint=")) for argument in arguments)
    if published and not goes_on:
        print_line(f"Options for {name}, as far as none of yours replaces them: {published}")
    # Also as an override, so that a checkpoint of another environment is not taken for one of this environment.
    task_class.launch(dataclasses.replace(config, env=name), [*arguments, f"env={name}"] if name else arguments)


def changed_defaults(config: WrappedConfig) -> str:
    """The options that differ from ksim's defaults, in command-line form."""
    default = type(config)()
    names = [option.name for option in dataclasses.fields(config) if option.name != "env"]
    values = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(default, name)}
    return " ".join(as_argument(name, value) for name, value in values.items())
