"""Evaluation of a policy over whole episodes in native MuJoCo, and in the training engine if that differs."""

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import equinox as eqx
import jax
import mujoco
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from scipy.special import stdtrit

from ksim.host.terminal import Activity
from ksim.keys import EVALUATION
from ksim.log.logger import error_names
from ksim.mdp.commands import VelocityCommand, unscaled
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.parallel.collectives import DEVICE_AXIS, bind_axis
from ksim.physics import PhysicsModel
from ksim.physics.names import Base
from ksim.physics.rotations import yaw_of
from ksim.policy.load import PolicyContext
from ksim.rollout.environment import Environment
from ksim.rollout.episodes import advance_episodes, start_episodes
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from ksim.types import Device, EnvState, PhysicsState

T = TypeVar("T")

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean and the bounds of its 95 % confidence interval. The bounds are NaN for a single value."""

    mean: float
    low: float
    high: float

    def record(self) -> dict[str, float | None]:
        """The estimate for JSON, with null for NaN."""
        return {name: x if math.isfinite(x) else None for name, x in dataclasses.asdict(self).items()}

    @classmethod
    def of_record(cls, record: Mapping[str, float | None]) -> Self:
        """The estimate from JSON, with NaN for null."""
        return cls(*(math.nan if x is None else float(x) for x in (record["mean"], record["low"], record["high"])))

    def minus(self, other: Self) -> Self:
        """The difference of two independent estimates, with an interval from the bounds of both.

        By Zou and Donner (2008, doi:10.1002/sim.3095); for fractions it is Newcombe's interval.
        """
        mean = self.mean - other.mean
        low = mean - math.hypot(self.mean - self.low, other.high - other.mean)
        high = mean + math.hypot(self.high - self.mean, other.mean - other.low)
        return type(self)(mean, low, high)

    def words(self, digits: int = 2) -> str:
        """The mean and half the width of the interval, as text."""
        half_width = f" ± {(self.high - self.low) / 2:.{digits}f}" if math.isfinite(self.high) else ""
        return f"{self.mean:.{digits}f}{half_width}"

    def rounded_words(self) -> str:
        """As `words`, with the decimals that the interval leaves."""
        return self.words(self._decimals())

    def change_words(self) -> str:
        """A difference and its interval with signs, such as `+0.03 (-0.01 to +0.07)`."""
        mean, low, high = (f"{x:+.{self._decimals()}f}" for x in (self.mean, self.low, self.high))
        return f"{mean} ({low} to {high})" if math.isfinite(self.low) else mean

    def _decimals(self) -> int:
        """Decimals for two significant digits of half the interval, or for three of a mean without one."""
        half_width = (self.high - self.low) / 2
        scale = half_width if math.isfinite(half_width) and half_width > 0 else abs(self.mean) / 10
        return min(max(1 - math.floor(math.log10(scale)), 0), 9) if scale > 0 else 0

    def count_words(self, num_episodes: int | None, verb: str = "") -> str:
        """A fraction as a count and its interval, such as `64 of 64 survived (95 % interval 94-100 %)`.

        The count is a percentage if the number of episodes is None.
        """
        count = f"{self.mean:.0%}" if num_episodes is None else f"{self.mean * num_episodes:.0f} of {num_episodes}"
        bounds = f"({100 * CONFIDENCE:.0f} % interval {100 * self.low:.0f}-{100 * self.high:.0f} %)"
        return " ".join(filter(None, (count, verb, bounds if math.isfinite(self.low) else "")))

    def percent_words(self) -> str:
        """A fraction and its interval in per cent, with one decimal if it would otherwise round to 0 or 100 %."""
        is_between = 0 < self.mean < 1 and f"{self.mean:.0%}" in ("0%", "100%")
        mean = f"{self.mean:.1%}" if is_between else f"{self.mean:.0%}"
        return f"{mean} ({self.low:.0%} to {self.high:.0%})"


def estimate_mean(values: np.ndarray) -> Estimate:
    """The mean of independent values, with Student's interval."""
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    quantile = stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)
    half_width = float(quantile * values.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, mean - half_width, mean + half_width)


def estimate_fraction(is_true: np.ndarray) -> Estimate:
    """The fraction of true values among independent ones, with Wilson's interval (1927), also valid near 0 and 1."""
    n, fraction, z = len(is_true), float(np.mean(is_true)), float(stdtrit(np.inf, (1 + CONFIDENCE) / 2))
    centre = (fraction + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z / (1 + z**2 / n) * math.sqrt(fraction * (1 - fraction) / n + z**2 / (4 * n**2))
    # Rounding must not push a bound past the fraction.
    return Estimate(fraction, min(centre - half_width, fraction), max(centre + half_width, fraction))


logger = logging.getLogger(__name__)

MAX_EPISODE_STEPS = 20_000
"""Maximum length of an episode in an evaluation, in control steps."""
CHUNK_STEPS = 50
"""Control steps per compiled call. Between calls the host checks whether episodes have ended or a stop is requested."""

SHORTFALL = 0.3
"""Relative shortfall of the reward per step, compared with training, from which an evaluation warns."""

ShouldStop = Callable[[], bool]


@dataclasses.dataclass(frozen=True)
class EpisodeResults:
    """Results of each episode; rows are envs.

    Attributes:
        total_reward: Undiscounted returns.
        length: Control steps.
        fell: The episode ended by termination.
        errors: Metrics named `error/...`, averaged over the episode.
        num_unfinished: Episodes stopped after `MAX_EPISODE_STEPS`.
        seconds: Duration, including compilation in the first run.
        group: The kind of each episode, as an index into `Environment.episode_groups`.
    """

    total_reward: np.ndarray
    length: np.ndarray
    fell: np.ndarray
    errors: Mapping[str, np.ndarray]
    num_unfinished: int
    seconds: float
    group: np.ndarray

    def figures(self, which: np.ndarray | slice = slice(None)) -> dict[str, Estimate]:
        """Estimates over some of the episodes: `return`, `length`, `survival` and `error/...`."""
        return {
            "return": estimate_mean(self.total_reward[which]),
            "length": estimate_mean(self.length[which]),
            "survival": estimate_fraction(~self.fell[which]),
            **{name: estimate_mean(error[which]) for name, error in self.errors.items()},
        }


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        figures: `return`, `length` (control steps), `survival` (fraction that did not fall) and `error/...`.
        gap: Sim-to-sim gap: return in this engine minus return in the training engine, over pairs of episodes with the
            same start; None if the engines are the same.
        groups: The same figures by kind of episode, such as the clips of a motion library. Kinds without an episode are
            left out.
    """

    engine: str
    training_engine: str
    num_episodes: int
    num_unfinished: int
    seed: int
    figures: Mapping[str, Estimate]
    gap: Estimate | None
    seconds: float
    groups: Mapping[str, Mapping[str, Estimate]] = dataclasses.field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The results for JSON."""
        return {
            "engine": self.engine,
            "training_engine": self.training_engine,
            "num_episodes": self.num_episodes,
            "num_unfinished": self.num_unfinished,
            "seed": self.seed,
            "figures": {name: estimate.record() for name, estimate in self.figures.items()},
            "return_gap": None if self.gap is None else self.gap.record(),
            "seconds": self.seconds,
            "groups": {
                group: {name: estimate.record() for name, estimate in figures.items()}
                for group, figures in self.groups.items()
            },
        }

    def gap_words(self) -> str:
        """The gap to the training engine as text, also in per cent of the return there."""
        if self.gap is None:
            hint = "; engine=mjx compares the two" if self.engine == "mujoco" else ""
            return f"none, trained in {self.training_engine} as well{hint}"
        training_return = self.figures["return"].mean - self.gap.mean
        # Rounded first, then + 0.0, so that -0.0 prints without a minus sign.
        percent = f" ({round(100 * self.gap.mean / abs(training_return), 1) + 0.0:.1f} %)" if training_return else ""
        return f"{self.gap.words()}{percent} in {self.engine} against {self.training_engine}"


def evaluation_line(iteration: int, evaluation: Evaluation) -> str:
    """One line about an evaluation: return, length, survival, errors and gap, with 95 % confidence intervals."""
    estimates = evaluation.figures
    errors = error_names(name for name in estimates if name.startswith("error/"))
    parts = [
        f"evaluation at iteration {iteration} ({evaluation.num_episodes} episodes in {evaluation.engine})",
        f"return {estimates['return'].words()}",
        f"length {estimates['length'].words(0)} steps",
        estimates["survival"].count_words(evaluation.num_episodes, "survived"),
        *(f"{error} {estimates[name].words()} {unit}".rstrip() for name, (error, unit) in errors.items()),
    ]
    if evaluation.gap is not None:
        parts.append(f"gap {evaluation.gap_words()}")
    return " · ".join(parts)


def shortfall_message(evaluation: Evaluation, trained: Mapping[str, float]) -> str | None:
    """A warning if the deterministic policy earns much less per step than in training; None otherwise.

    `trained` has `episode/return` and `episode/length` of training episodes, with exploration noise.
    """
    if not trained.get("episode/length"):
        return None
    length = evaluation.figures["length"].mean
    returns = evaluation.figures["return"]
    earned, with_noise = returns.mean / length, trained["episode/return"] / trained["episode/length"]
    least = with_noise - SHORTFALL * abs(with_noise)
    # For a single episode the bound is NaN, and the second comparison is false.
    if not earned < least or returns.high / length >= least:
        return None
    return (
        f"Warning: the deterministic policy earns {earned:.3g} per step, training episodes {with_noise:.3g}. Under the "
        "same conditions this means that it needs its noise: train longer, or lower init_std and entropy_coef (see "
        "docs/tuning.md)."
    )


class EpisodeRunner:
    """A runner of whole episodes in one environment. The first call compiles, for any parameters of the policy."""

    def __init__(self, env: Environment, *, num_envs: int, seed: int, device: Device, axis_name: str) -> None:
        self._seed, self._device = seed, device
        start = lambda model, key: start_episodes(env, model, key, num_envs)
        advance = lambda model, at: advance_episodes(env, model, at, CHUNK_STEPS)[0]
        # The policy is an argument, so a changed policy does not recompile.
        self._start = eqx.filter_jit(bind_axis(start, axis_name))
        self._advance = eqx.filter_jit(bind_axis(advance, axis_name))
        self._group_of = jax.vmap(env.episode_group)

    def __call__(self, model: AbstractActorCritic, should_stop: ShouldStop) -> EpisodeResults | None:
        """Runs all episodes; returns None if stopped before the last one ended."""
        start_s = time.perf_counter()
        with jax.default_device(self._device):
            model, key = on_device((model, episode_key(self._seed)), self._device)
            episodes = self._start(model, key)
            for _ in range(MAX_EPISODE_STEPS // CHUNK_STEPS):
                episodes = self._advance(model, episodes)
                is_running_e = np.asarray(episodes.is_running)
                Activity.tell(f"Evaluating: {(~is_running_e).sum()} of {len(is_running_e)} episodes ...")
                if not is_running_e.any():
                    break
                if should_stop():
                    return None
        length = np.asarray(episodes.length)
        num_unfinished = int(np.asarray(episodes.is_running).sum())
        if num_unfinished:
            logger.warning("%d episodes ran for more than %d steps.", num_unfinished, MAX_EPISODE_STEPS)
        return EpisodeResults(
            total_reward=np.asarray(episodes.total_reward),
            length=length,
            fell=np.asarray(episodes.fell),
            errors={name: np.asarray(total) / length for name, total in episodes.error_sums.items()},
            num_unfinished=num_unfinished,
            seconds=time.perf_counter() - start_s,
            group=np.asarray(self._group_of(episodes.env_state)),
        )


class Evaluator:
    """An evaluator of policies in a context, always with the same episode keys, without effect on training."""

    def __init__(self, context: PolicyContext) -> None:
        task, env, config = context.task, context.env, context.task.config
        runner = functools.partial(
            EpisodeRunner, num_envs=config.eval_num_envs, seed=config.eval_seed, axis_name=task.device_axis
        )
        self._seed, self._groups = config.eval_seed, env.episode_groups()
        self._runner = runner(env, device=context.device)
        self._training_runner: EpisodeRunner | None = None
        if env.engine_name is None:  # an environment of the task's own, without engines
            self._engine = self._training_engine = type(env).__name__
            return
        self._engine, self._training_engine = env.engine_name, context.training_engine
        if self._training_engine != self._engine:
            training_env = task.get_eval_environment(self._training_engine)
            self._training_runner = runner(training_env, device=context.training_device)

    def __call__(self, model: AbstractActorCritic, should_stop: ShouldStop = lambda: False) -> Evaluation | None:
        """Evaluates a policy; returns None if stopped before the end."""
        results, gap = self._runner(model, should_stop), None
        if results is None:
            return None
        seconds = results.seconds
        if self._training_runner is not None:
            others = self._training_runner(model, should_stop)
            if others is None:
                return None
            gap = estimate_mean(results.total_reward - others.total_reward)
            seconds += others.seconds
        return Evaluation(
            engine=self._engine,
            training_engine=self._training_engine,
            num_episodes=len(results.length),
            num_unfinished=results.num_unfinished,
            seed=self._seed,
            figures=results.figures(),
            gap=gap,
            seconds=seconds,
            groups={
                group: results.figures(results.group == i)
                for i, group in enumerate(self._groups)
                if (results.group == i).any()
            },
        )


def episode_key(seed: int) -> PRNGKeyArray:
    """The key of an evaluation's episodes. It differs from all training keys of the same seed."""
    return jax.random.fold_in(jax.random.key(seed), EVALUATION)


def on_device(tree: T, device: Device) -> T:
    """A pytree with its arrays on a device.

    What a program is given at first must be where its outputs are, or JAX compiles it again for these.
    """
    is_array = lambda x: isinstance(x, np.ndarray | np.generic | jax.Array)
    return jax.tree.map(lambda x: jax.device_put(x, device) if is_array(x) else x, tree)


@dataclasses.dataclass(frozen=True)
class Recording:
    """The recording of one episode. Every array has one row per control step.

    Attributes:
        metrics: The environment's metrics; rewards by name are per second.
        model: The robot's model; None for an environment that shows none. Then everything below is empty.
        qpos: Generalized positions, in m and rad.
        extra: State that only some models have, as in `PhysicsState`.
        ghost: Target generalized positions, in m and rad; empty if the environment has none.
        base_position: In the world, in m; empty without a free joint, like the next two.
        heading: Heading of the base in the world, in rad.
        velocity: Velocity of the base in its level heading frame: forward and leftward in m/s, yaw rate in rad/s.
        commanded_velocity: The same for the first velocity command; empty without one.
        touch: Readings of the feet's touch sensors, in N, by name; see `foot_sensors`. Empty if the environment is not
            made of ksim's terms.
    """

    reward: np.ndarray
    metrics: Mapping[str, np.ndarray]
    action: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    model: PhysicsModel | None = None
    qpos: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    extra: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    ghost: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    base_position: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3)))
    heading: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    velocity: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3)))
    commanded_velocity: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3)))
    touch: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def dt(self) -> float | None:
        """Seconds per control step, if known."""
        return None if self.model is None else self.model.ctrl_dt

    @property
    def actions(self) -> dict[str, np.ndarray]:
        """The elements of the action by the name of the actuator, else of its joint, else by index."""
        size = self.action.shape[1]
        found: list[str | None] = [None] * size
        if self.model is not None and len(self.model.names.actuators) == size:
            names = self.model.names
            found = [name or names.actuator_joint(i) for i, name in enumerate(names.actuators)]
        return {name or str(i): self.action[:, i] for i, name in enumerate(found)}


class Recorder:
    """A recorder of the first envs' episodes of an evaluation; it runs them again."""

    def __init__(
        self, env: Environment, *, seed: int, device: Device, axis_name: str = DEVICE_AXIS, num_envs: int = 1
    ) -> None:
        self._env, self._seed, self._device = env, seed, device
        self._shown = env.shown()
        start = lambda model, key: start_episodes(env, model, key, num_envs)
        advance = lambda model, at: advance_episodes(env, model, at, CHUNK_STEPS, self._record)
        self._start = eqx.filter_jit(bind_axis(start, axis_name))
        self._advance = eqx.filter_jit(bind_axis(advance, axis_name))

    def __call__(self, model: AbstractActorCritic, should_stop: ShouldStop) -> Recording | None:
        """The episode of the first env under a policy; None if stopped before its end."""
        recordings = self.episodes(model, should_stop)
        return recordings[0] if recordings else None

    def episodes(self, model: AbstractActorCritic, should_stop: ShouldStop) -> list[Recording]:
        """The episode of each env under a policy; empty if stopped before their end."""
        chunks = []
        with jax.default_device(self._device):
            model, key = on_device((model, episode_key(self._seed)), self._device)
            episodes = self._start(model, key)
            for _ in range(MAX_EPISODE_STEPS // CHUNK_STEPS):
                episodes, recorded_te = self._advance(model, episodes)
                chunks.append(jax.tree.map(np.asarray, recorded_te))
                if not np.asarray(episodes.is_running).any():
                    break
                if should_stop():
                    return []
        fields_te = jax.tree.map(lambda *xs: np.concatenate(xs), *chunks)
        robot = None if self._shown is None else self._shown.model
        return [
            Recording(model=robot, **jax.tree.map(lambda x, env=env, length=length: x[:length, env], fields_te))
            for env, length in enumerate(np.asarray(episodes.length))
        ]

    def _record(self, before_e: EnvState, action_ea: Array, after_e: EnvState) -> dict[str, Any]:
        recorded: dict[str, Any] = {"reward": after_e.reward, "metrics": after_e.metrics, "action": action_ea}
        if self._shown is None:
            return recorded
        model, physics_e = self._shown.model, jax.vmap(self._shown.physics_of)(after_e)
        recorded |= {"qpos": physics_e.qpos, "extra": physics_e.extra}
        # The target pose at the time of the action that led to this state.
        ghost_e = jax.vmap(self._shown.ghost_of)(before_e)
        if ghost_e is not None:
            recorded["ghost"] = ghost_e
        if model.names.has_base:
            recorded |= jax.vmap(lambda physics: _base_motion(physics, model))(physics_e)
        if not isinstance(self._env, MdpEnvironment):
            return recorded
        recorded["touch"] = {
            name: model.names.reading(physics_e.derived["sensordata"], name)[:, 0]
            for name in foot_sensors(self._env.mdp, model)
        }
        for name, command in self._env.mdp.commands.items():
            if isinstance(unscaled(command), VelocityCommand):
                recorded.setdefault("commanded_velocity", before_e.inner.commands[name])
        return recorded


def _base_motion(physics: PhysicsState, model: PhysicsModel) -> dict[str, Array]:
    base = Base(physics, model.names)
    yaw_rate = base.ang_vel_world[2]
    return {
        "base_position": base.position,
        "heading": yaw_of(base.orientation),
        "velocity": base.heading_velocity.at[2].set(yaw_rate),
    }


def foot_sensors(mdp: Mdp, model: PhysicsModel) -> list[str]:
    """Names of the feet's touch sensors, from the first reward, else the first observation, that names touch sensors.

    If no term does, all touch sensors of the robot's file.
    """
    touch = touch_sensors(model)
    observations = [term for group in mdp.observations.values() for term in group.values()]
    for term in (*mdp.rewards.values(), *observations):
        for part in term.with_inner_terms():
            sensors = getattr(part, "sensors", None) or ()
            if sensors and set(sensors) <= set(touch):
                return list(sensors)
    return [name for name in touch if not name.startswith("ksim_")]


def touch_sensors(model: PhysicsModel) -> list[str]:
    """Names of the model's named touch sensors."""
    kinds = model.mj_model.sensor_type
    names = [model.mj_model.sensor(i).name for i in np.flatnonzero(kinds == int(mujoco.mjtSensor.mjSENS_TOUCH))]
    return [name for name in names if name]
