"""Calls of terms with keys, memories and checks; levels of curricula of single environments."""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from ksim.errors import ConfigError
from ksim.mdp.curriculum import AbstractBinCurriculum, AbstractCurriculum, CurriculumContext
from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.events import AbstractEvent
from ksim.mdp.noise import AbstractNoise, noise_key
from ksim.mdp.term import Context, Term
from ksim.mdp.term_errors import named_errors
from ksim.physics.model import PhysicsModel
from ksim.rollout.threefry import unrolled
from ksim.types import Levels, Metrics, Overrides, PhysicsState


class TermCalls:
    """Calls terms within one trace of a reset (no memories yet) or of a step."""

    def __init__(self, terms: Mapping[str, Term], key: PRNGKeyArray, memories: dict[str, PyTree] | None) -> None:
        """Prepares the calls. `memories` are the terms' memories before this step, by name; None at a reset."""
        self._terms = terms
        self._keys = {name: jax.random.fold_in(unrolled(key), i) for i, name in enumerate(self._terms)}
        self._memories = memories
        self.new_memories: dict[str, PyTree] = {} if memories is None else dict(memories)

    def start(self, name: str, context: Context) -> Context:
        """The term's own context: its key, and its memory of this step."""
        term = self._terms[name]
        context = dataclasses.replace(context, key=self._keys[name])
        with named_errors(name, term), jax.named_scope(name):
            if self._memories is None:
                memory = term.init(context)
            else:
                memory = term.update(dataclasses.replace(context, memory=self._memories.get(name)))
        if memory is not None:
            self.new_memories[name] = memory
        return dataclasses.replace(context, memory=memory)

    def __call__(self, name: str, context: Context) -> Any:
        """The term's value, with its memory brought up to date first."""
        context = self.start(name, context)
        with named_errors(name, self._terms[name]), jax.named_scope(name):
            return self._terms[name](context)

    def apply_event(
        self, name: str, context: Context, physics: PhysicsState, overrides: Overrides
    ) -> tuple[PhysicsState, Overrides]:
        """The physics state and the overrides after an event."""
        context = self.start(f"event/{name}", dataclasses.replace(context, physics=physics, overrides=overrides))
        event = self._terms[f"event/{name}"]
        assert isinstance(event, AbstractEvent)
        with named_errors(f"event/{name}", event), jax.named_scope(f"event/{name}"):
            physics, changed = event(context), event.overrides(context)
        physics = checked_physics("Event", name, physics, context.physics)
        return physics, overrides | checked_overrides(name, changed, context.model.mj_model)

    def noisy(self, name: str, noise: AbstractNoise, value: Array, own: Context) -> Array:
        """The value of the term `name` with its noise, whose memory is kept next to the term's memory."""
        place, key = f"{name}/noise", noise_key(own.key)
        with named_errors(name, noise), jax.named_scope(place):
            if self._memories is None:
                value, memory = noise.start(value, key)
            else:
                value, memory = noise.step(value, self._memories.get(place), key, own.dt)
        if memory is not None:
            self.new_memories[place] = memory
        return value


def checked_scalar(kind: str, name: str, value: Any, dtype: Any) -> Array:
    """A scalar that a term returned, as `dtype`; raises ConfigError if it is not one."""
    if value is None:
        raise ConfigError(f"{kind} {name!r} must return a scalar for one env, but returned None. Return its value.")
    value = jnp.asarray(value)
    if value.shape != ():
        raise ConfigError(
            f"{kind} {name!r} must return a scalar for one env, but returned shape {value.shape}. "
            "Reduce it, for example with jnp.sum or jnp.mean."
        )
    if dtype == jnp.bool_ and value.dtype != jnp.bool_:
        raise ConfigError(f"{kind} {name!r} must return a boolean, but returned {value.dtype}.")
    return value.astype(dtype)


def checked_physics(kind: str, name: str, after: Any, before: PhysicsState) -> PhysicsState:
    """A state that a reset or an event returned; raises ConfigError unless it is like the one `before`."""
    must = f"{kind} {name!r} must return the physics state, as dataclasses.replace(context.physics, ...) does"
    if not isinstance(after, PhysicsState):
        raise ConfigError(f"{must}, but returned {type(after).__name__}.")
    # Native MuJoCo reads a state's numbers by their positions in one row.
    expected, found = (
        {jax.tree_util.keystr(path): jnp.shape(x) for path, x in jax.tree.leaves_with_path(state)}
        for state in (before, after)
    )
    for field in expected | found:
        if expected.get(field) != found.get(field):
            raise ConfigError(
                f"{must}, with fields of the same shapes: physics{field} must have shape {expected.get(field)}, "
                f"but has {found.get(field)}."
            )
    return after


def checked_overrides(name: str, drawn: Overrides, mj_model: Any) -> Overrides:
    """Model fields that a term returned; raises ConfigError unless the model has them in these shapes."""
    for field, value in drawn.items():
        try:
            expected = np.shape(operator.attrgetter(field)(mj_model))
        except AttributeError:
            raise ConfigError(f"Term {name!r} returned {field!r}, which is no field of the model.") from None
        if jnp.shape(value) != expected:
            raise ConfigError(
                f"Term {name!r} must return the whole field {field} of the model, of shape {expected}, "
                f"but returned shape {jnp.shape(value)}."
            )
    return drawn


LEVELS = "curriculum/"
"""Prefix of level metrics. Their minimum and maximum are logged."""
BINS = "curriculum_bin/"
"""Prefix of the metrics that hold the bins of steps. They are counted, not averaged."""
_ROUNDING = 1e-4
"""A level above 1 by less than this counts as 1: sums of fractions such as 1/3 are not exact."""

Curricula = Mapping[str, AbstractCurriculum]
EnvCurricula = Mapping[str, AbstractEnvCurriculum]


def initial_levels(curricula: Curricula) -> Levels:
    """The levels of the curricula of all envs before the first iteration."""
    return {name: curriculum.initial() for name, curriculum in curricula.items()}


def full_levels(curricula: Curricula) -> Levels:
    """The last levels of the curricula of all envs."""
    return {name: jnp.ones_like(level) for name, level in initial_levels(curricula).items()}


def moved_levels(curricula: Curricula, levels: Levels, context: CurriculumContext) -> Levels:
    """The levels of the curricula of all envs after an iteration, whose metrics have the counts of bins."""
    moved = {}
    for name, level in levels.items():
        counts = (context.metrics.get(f"{BINS}{name}/{what}") for what in ("steps", "failures"))
        own = dataclasses.replace(context, **dict(zip(("num_steps", "num_failures"), counts, strict=True)))
        with named_errors(f"curriculum/{name}", curricula[name]):
            moved[name] = jnp.clip(curricula[name](level, own), 0.0, 1.0)
    return moved


def step_bins(curricula: Curricula, context: Context) -> Metrics:
    """The bin of a step for each curriculum that counts by bins."""
    bins = {}
    for name, curriculum in curricula.items():
        if isinstance(curriculum, AbstractBinCurriculum):
            with named_errors(f"curriculum/{name}", curriculum):
                bins[f"{BINS}{name}"] = checked_scalar("Curriculum", name, curriculum.bin_of(context), jnp.float32)
    return bins


def drawn_levels(curricula: EnvCurricula, key: PRNGKeyArray, model: PhysicsModel) -> Levels:
    """A level of each curriculum, drawn by the curriculum."""
    drawn = {}
    for i, (name, curriculum) in enumerate(curricula.items()):
        with named_errors(f"curriculum/{name}", curriculum):
            level = curriculum.draw(jax.random.fold_in(key, i), model)
        drawn[name] = jnp.clip(checked_scalar("Curriculum", name, level, jnp.float32), 0.0, 1.0)
    return drawn


def following_levels(
    curricula: EnvCurricula,
    calls: TermCalls,
    context: Context,
    *,
    before: Levels,
    beyond: Levels,
    is_physical: Bool[Array, ""],
) -> Levels:
    """The level of each curriculum in the next episode, if this one ends with this step.

    Args:
        context: The context after the step, with this episode's levels.
        before: The result for the previous step, or this episode's levels. It stays if the state is not physical or a
            change is non-finite.
        beyond: Levels for an env that rises above 1.
    """
    following = {}
    for name in curricula:
        change = checked_scalar("Curriculum", name, calls(f"curriculum/{name}", context), jnp.float32)
        level = context.levels[name] + change
        moved = jnp.where(level > 1 + _ROUNDING, beyond[name], jnp.clip(level, 0.0, 1.0))
        following[name] = jnp.where(is_physical & jnp.isfinite(change), moved, before[name])
    return following
