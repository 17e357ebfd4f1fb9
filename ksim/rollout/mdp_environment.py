"""MDP terms and a physics engine, composed into an environment."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from ksim.errors import ConfigError
from ksim.keys import RESET
from ksim.mdp.actions import AbstractActionFilter
from ksim.mdp.commands import AbstractCommand
from ksim.mdp.curriculum import AbstractCurriculum, CurriculumContext
from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.events import AbstractEvent
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.randomizers import AbstractRandomizer
from ksim.mdp.resets import AbstractReset
from ksim.mdp.rewards import AbstractReward
from ksim.mdp.term import Context, Term
from ksim.mdp.term_errors import named_errors
from ksim.mdp.terminations import AbstractTermination
from ksim.parallel.collectives import DEVICE_AXIS, bind_axis
from ksim.physics.actuators import AbstractActuators
from ksim.physics.contact_sizes import ContactSizes
from ksim.physics.engine import AbstractEngine, control_step
from ksim.physics.model import PhysicsModel
from ksim.physics.names import is_physical
from ksim.physics.select import make_engine
from ksim.rollout.environment import Environment, Shown, traced_once
from ksim.rollout.levels import (
    LEVELS,
    drawn_levels,
    following_levels,
    full_levels,
    initial_levels,
    level_keys,
    moved_levels,
    step_bins,
)
from ksim.rollout.terms import TermCalls, checked_overrides, checked_physics, checked_scalar
from ksim.types import EnvState, Levels, Metrics, Observation, Overrides, PhysicsState, key_shape


@dataclasses.dataclass(frozen=True, eq=False)
class Mdp:
    """All terms of a task, by kind and name; `observations` by group as well."""

    observations: Mapping[str, Mapping[str, AbstractObservation]]
    rewards: Mapping[str, AbstractReward]
    commands: Mapping[str, AbstractCommand]
    terminations: Mapping[str, AbstractTermination]
    resets: Mapping[str, AbstractReset]
    events: Mapping[str, AbstractEvent]
    randomizers: Mapping[str, AbstractRandomizer]
    actuators: AbstractActuators
    action_filters: Mapping[str, AbstractActionFilter] = dataclasses.field(default_factory=dict)
    curricula: Mapping[str, AbstractCurriculum] = dataclasses.field(default_factory=dict)
    env_curricula: Mapping[str, AbstractEnvCurriculum] = dataclasses.field(default_factory=dict)

    def terms(self) -> dict[str, Term]:
        """Every term by its unique name, `kind/name`, in a fixed order."""
        named: dict[str, Term] = {}
        for group, terms in self.observations.items():
            named |= {f"observation/{group}/{name}": term for name, term in terms.items()}
        for kind in ("reward", "command", "termination", "reset", "event", "randomizer", "action_filter"):
            named |= {f"{kind}/{name}": term for name, term in getattr(self, f"{kind}s").items()}
        return named | {f"curriculum/{name}": term for name, term in self.env_curricula.items()}

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        """Adds the parts that the actuators and the terms need to the model, before it is compiled."""
        with named_errors("actuators", self.actuators):
            self.actuators.edit_spec(spec)
        for name, term in self.terms().items():
            with named_errors(name, term):
                term.edit_spec(spec)

    def control(self, action: Float[Array, " a"], model: PhysicsModel) -> Float[Array, " u"]:
        """The actuators' controls for an action."""
        with named_errors("actuators", self.actuators):
            return self.actuators(action, model)

    def make_engine(
        self,
        engine: str,
        model: PhysicsModel,
        *,
        num_devices: int = 1,
        also_needs: Sequence[str] = (),
        sizes: ContactSizes | None = None,
    ) -> AbstractEngine:
        """The engine with the needs of the terms and the actuators, and additional derived fields."""
        terms = [inner for term in self.terms().values() for inner in term.with_inner_terms()]
        return make_engine(
            engine,
            model,
            tuple(dict.fromkeys([*(name for term in terms for name in term.needs), *also_needs])),
            num_devices=num_devices,
            applies=tuple(dict.fromkeys(name for term in terms for name in term.applies)),
            motor_curve=self.actuators.motor_curve(model),
            sizes=sizes,
        )


class _Start(NamedTuple):
    """The state at the start of an episode, and its observations one by one, by group and name."""

    state: EnvState
    observations: dict[str, dict[str, Array]]


class MdpState(eqx.Module):
    """State of the composed environment.

    Attributes:
        key: This episode's key; each step folds in its number.
        commands: Values of the commands in force, by name.
        episode_step: Control steps since the reset.
        memories: Memories of the terms, by `kind/name`, and of the noise on observations.
        overrides: Model fields that randomizers have changed.
        levels: The present levels of all curricula.
        next_levels: Per-env levels of the next episode, if this one ended here.
        levels_above_one: Random levels, for per-env levels that would rise above 1 after this episode.
    """

    physics: PhysicsState
    key: Key[Array, "*e"]
    action: Float[Array, "*e a"]
    commands: dict[str, Array]
    episode_step: Int[Array, "*e"]
    memories: dict[str, PyTree]
    overrides: Overrides
    levels: Levels
    next_levels: Levels
    levels_above_one: Levels


class MdpEnvironment(Environment):
    """One robot under the terms of an MDP.

    The order of a step: action filters and actuators, events, physics, terminations, rewards (with the commands that
    were in force when the action was chosen), per-env levels, new commands, next observation.
    """

    mdp: Mdp = eqx.field(static=True)
    engine: AbstractEngine = eqx.field(static=True)
    _reset: Callable[[PRNGKeyArray, Levels], _Start] = eqx.field(static=True, init=False)
    _step: Callable[[EnvState, Array], EnvState] = eqx.field(static=True, init=False)

    def __post_init__(self) -> None:
        self._reset = traced_once(lambda key, levels: self._start(key, levels))
        self._step = traced_once(lambda state, action: self._next(state, action))

    @property
    def action_size(self) -> int:
        return self.mdp.actuators.action_size(self.engine.model)

    @property
    def engine_name(self) -> str:
        return self.engine.name

    def problem(self, metrics: Mapping[str, float]) -> str:
        return self.engine.problem(metrics)

    def shown(self) -> Shown:
        def ghost_of(state: EnvState) -> Float[Array, " q"] | None:
            """The target pose of the first command that has one."""
            poses = (term.shown_pose(state.inner.commands[name]) for name, term in self.mdp.commands.items())
            return next((pose for pose in poses if pose is not None), None)

        return Shown(self.engine.model, lambda state: state.inner.physics, ghost_of)

    def episode_groups(self) -> tuple[str, ...]:
        """The kinds of the first command that has any."""
        return next((term.groups() for term in self.mdp.commands.values() if term.groups()), ())

    def episode_group(self, state: EnvState) -> Int[Array, ""]:
        values, commands = state.inner.commands, self.mdp.commands
        return next((term.group(values[name]) for name, term in commands.items() if term.groups()), jnp.int32(0))

    def initial_levels(self) -> Levels:
        return initial_levels(self.mdp.curricula)

    def next_levels(self, levels: Levels, metrics: Metrics, iteration: Int[Array, ""]) -> Levels:
        return moved_levels(
            self.mdp.curricula, levels, CurriculumContext(iteration, metrics, self.engine.model.ctrl_dt)
        )

    def at_levels(self, state: EnvState, levels: Levels) -> EnvState:
        return dataclasses.replace(state, inner=dataclasses.replace(state.inner, levels=state.inner.levels | levels))

    def reset(self, key: PRNGKeyArray) -> EnvState:
        return self._reset(key, self._full_task(key)).state

    def first_episode(self, key: PRNGKeyArray) -> EnvState:
        own = {name: jnp.float32(curriculum.start) for name, curriculum in self.mdp.env_curricula.items()}
        return self._reset(key, self.initial_levels() | own).state

    def next_episode(self, state: EnvState, key: PRNGKeyArray) -> EnvState:
        return self._reset(key, _levels_after(state)).state

    def is_next_start(self, start: EnvState, state: EnvState) -> Bool[Array, ""]:
        same = [jnp.all(start.inner.levels[name] == level) for name, level in _levels_after(state).items()]
        return jnp.all(jnp.array(same, bool))

    def shapes(self, axis_name: str = DEVICE_AXIS) -> dict[str, tuple[int, ...]]:
        """Shapes of commands and observations by `kind/name`, from a trace of a reset over a device axis."""
        key = key_shape()
        full_task = lambda key: self._reset(key, self._full_task(key))
        state, values = jax.eval_shape(bind_axis(full_task, axis_name), key)
        named = {f"command/{name}": x.shape for name, x in state.inner.commands.items()}
        for group, terms in values.items():
            named |= {f"observation/{group}/{name}": x.shape for name, x in terms.items()}
        return named

    def columns(self, group: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, slice]:
        """The columns of each term in the vector of an observation group; `shapes` are those of `shapes()`."""
        columns, start = {}, 0
        for name in self.mdp.observations[group]:
            size = math.prod(shapes[f"observation/{group}/{name}"])
            columns[name] = slice(start, start + size)
            start += size
        return columns

    def _full_task(self, key: PRNGKeyArray) -> Levels:
        """The last levels of the common curricula, and per-env levels drawn by the key of the episode."""
        level_key, _ = level_keys(key)
        own = drawn_levels(self.mdp.env_curricula, level_key, self.engine.model)
        return full_levels(self.mdp.curricula) | own

    def _start(self, key: PRNGKeyArray, levels: Levels) -> _Start:
        mdp = self.mdp
        calls = TermCalls(mdp.terms(), jax.random.fold_in(key, RESET), memories=None)
        start = self._before_resets(key, levels)
        context = _randomized(mdp, calls, self._context(start, start.action))
        physics = self.engine.forward(context.physics, context.control, context.overrides)
        context = dataclasses.replace(context, physics=physics)
        for name in mdp.action_filters:
            calls.update_memory(f"action_filter/{name}", context)
        context = dataclasses.replace(context, commands=_commands(mdp, calls, context))
        for name in mdp.env_curricula:
            calls.update_memory(f"curriculum/{name}", context)
        _, _, metrics = _rewards_and_ends(mdp, calls, context, jnp.bool_(True))
        values = _observe(mdp, calls, context)
        no = jnp.bool_(False)
        state = EnvState(
            inner=_next_state(start, context, calls),
            obs=_concatenated(values),
            reward=jnp.zeros(()),
            terminated=no,
            truncated=no,
            metrics=metrics | self.engine.metrics(physics),
        )
        return _Start(state, values)

    def step(self, state: EnvState, action: Float[Array, " a"]) -> EnvState:
        return self._step(state, action)

    def _next(self, state: EnvState, action: Float[Array, " a"]) -> EnvState:
        mdp = self.mdp
        inner = dataclasses.replace(state.inner, episode_step=state.inner.episode_step + 1)
        calls = TermCalls(mdp.terms(), jax.random.fold_in(inner.key, inner.episode_step), inner.memories)
        context = self._context(inner, action)
        ctrl = _controls(mdp, calls, context)
        context = dataclasses.replace(context, control=ctrl if ctrl.ndim == 1 else ctrl[-1])
        events = [functools.partial(calls.apply_event, name, context) for name in mdp.events]
        physics, overrides = control_step(self.engine, inner.physics, ctrl, inner.overrides, events)
        context = dataclasses.replace(context, physics=physics, overrides=overrides)
        physical = is_physical(physics)
        reward, (terminated, truncated), metrics = _rewards_and_ends(mdp, calls, context, physical)
        next_levels = following_levels(
            mdp.env_curricula,
            calls,
            dataclasses.replace(context, terminated=terminated),
            before=inner.next_levels,
            beyond=inner.levels_above_one,
            is_physical=physical,
        )
        inner = dataclasses.replace(inner, next_levels=next_levels)
        context = dataclasses.replace(context, commands=_commands(mdp, calls, context))
        obs = _concatenated(_observe(mdp, calls, context))
        return EnvState(
            inner=_next_state(inner, context, calls),
            obs=obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            metrics=metrics | self.engine.metrics(physics),
        )

    def _before_resets(self, key: PRNGKeyArray, levels: Levels) -> MdpState:
        """The first keyframe or reference pose, before anything except levels is drawn."""
        _, beyond_key = level_keys(key)
        return MdpState(
            physics=self.engine.model.start(),
            key=key,
            action=jnp.zeros(self.action_size),
            commands={},
            episode_step=jnp.int32(0),
            memories={},
            overrides={},
            levels=levels,
            next_levels={name: levels[name] for name in self.mdp.env_curricula},
            levels_above_one=drawn_levels(self.mdp.env_curricula, beyond_key, self.engine.model),
        )

    def _context(self, state: MdpState, action: Float[Array, " a"]) -> Context:
        """The context of the terms at the start of a step, before physics."""
        model = self.engine.model
        return Context.at(
            model,
            state.physics,
            action=action,
            previous_action=state.action,
            control=self.mdp.control(action, model),
            commands=state.commands,
            episode_step=state.episode_step,
            overrides=state.overrides,
            key=state.key,
            levels=state.levels,
            episode_key=state.key,
            command_terms=self.mdp.commands,
        )


def _levels_after(state: EnvState) -> Levels:
    """The levels of the episode that follows after a state."""
    inner: MdpState = state.inner
    return inner.levels | inner.next_levels


def _randomized(mdp: Mdp, calls: TermCalls, context: Context) -> Context:
    """The start of an episode after resets, randomizers and events, before the physics is updated."""
    mj_model = context.model.mj_model
    for name in mdp.resets:
        physics = checked_physics("Reset", name, calls(f"reset/{name}", context), context.physics)
        context = dataclasses.replace(context, physics=physics)
    for name in mdp.randomizers:
        drawn = checked_overrides(name, calls(f"randomizer/{name}", context), mj_model)
        context = dataclasses.replace(context, overrides=context.overrides | drawn)
    for name, event in mdp.events.items():
        own = calls.update_memory(f"event/{name}", context)
        with named_errors(f"event/{name}", event):
            changed = event.overrides(own)
        changed = checked_overrides(name, changed, mj_model)
        context = dataclasses.replace(context, overrides=context.overrides | changed)
    if not context.model.loops.are_there:
        return context
    before = context.physics
    qpos, qvel = context.model.loops.close_traced(before.qpos, before.qvel, before.extra, context.overrides)
    return dataclasses.replace(context, physics=dataclasses.replace(before, qpos=qpos, qvel=qvel))


def _next_state(before: MdpState, context: Context, calls: TermCalls) -> MdpState:
    """The state that a reset or a step leaves, with what the terms have seen last and their memories."""
    return dataclasses.replace(
        before,
        physics=context.physics,
        action=context.action,
        commands=context.commands,
        memories=calls.new_memories,
        overrides=context.overrides,
    )


def _controls(mdp: Mdp, calls: TermCalls, context: Context) -> Float[Array, " u"] | Float[Array, "s u"]:
    """The actuators' controls for the filtered action, constant or one row per substep."""
    action = context.action
    for name in mdp.action_filters:
        if action.ndim != 1:
            raise ConfigError(f"Action filter {name!r} comes after one that acts per substep. Put that one last.")
        action = calls(f"action_filter/{name}", dataclasses.replace(context, action=action))
    to_ctrl = lambda action: mdp.control(action, context.model)
    return to_ctrl(action) if action.ndim == 1 else jax.vmap(to_ctrl)(action)


def _commands(mdp: Mdp, calls: TermCalls, context: Context) -> dict[str, Array]:
    return {name: calls(f"command/{name}", context) for name in mdp.commands}


def _rewards_and_ends(
    mdp: Mdp, calls: TermCalls, context: Context, physical: Bool[Array, ""]
) -> tuple[Float[Array, ""], tuple[Bool[Array, ""], Bool[Array, ""]], Metrics]:
    """Reward, (terminated, truncated) and metrics of the step that led to `context`."""
    metrics: Metrics = {}
    terminated, truncated = ~physical, jnp.bool_(False)
    for name, term in mdp.terminations.items():
        ends = checked_scalar("Termination", name, calls(f"termination/{name}", context), jnp.bool_)
        metrics[f"termination/{name}"] = ends.astype(jnp.float32)
        if term.truncates:
            truncated |= ends
        else:
            terminated |= ends
    metrics["termination/not_finite"] = (~physical).astype(jnp.float32)
    context = dataclasses.replace(context, terminated=terminated)
    total = jnp.zeros(())
    for name, term in mdp.rewards.items():
        value = checked_scalar("Reward", name, calls(f"reward/{name}", context), jnp.float32)
        # A non-finite state has no reward; its env is reset, and counted in termination/not_finite.
        per_second = jnp.where(physical, term.scale * value, 0.0)
        metrics[f"reward/{name}"] = per_second
        total += per_second * context.dt
    for name, term in mdp.commands.items():
        with named_errors(f"command/{name}", term):
            errors = term.errors(context, context.commands[name])
        for error, value in errors.items():
            metrics[f"error/{name}/{error}"] = jnp.where(physical, value, 0.0)
    metrics |= {f"{LEVELS}{name}": context.levels[name] for name in mdp.env_curricula}
    metrics |= step_bins(mdp.curricula, context)
    return total, (terminated, truncated & ~terminated), metrics


def _observe(mdp: Mdp, calls: TermCalls, context: Context) -> dict[str, dict[str, Array]]:
    """The observations with their noise, by group and name."""
    groups = {}
    for group, terms in mdp.observations.items():
        if not terms:
            raise ConfigError(f"Observation group {group!r} has no terms. Give it some, or leave it out.")
        groups[group] = values = {}
        for name, term in terms.items():
            full_name = f"observation/{group}/{name}"
            own = calls.update_memory(full_name, context)
            with named_errors(full_name, term):
                value = jnp.asarray(term(own))
            if not jnp.issubdtype(value.dtype, jnp.floating):
                raise ConfigError(f"Observation {name!r} must return floats, but returned {value.dtype}.")
            if term.noise is not None:
                value = calls.noisy(full_name, term.noise, value, own)
            values[name] = value
    return groups


def _concatenated(values: dict[str, dict[str, Array]]) -> Observation:
    """One vector per group."""
    return {group: jnp.concatenate([jnp.ravel(x) for x in terms.values()]) for group, terms in values.items()}
