"""Calls of terms with their keys and memories, and checks of what they return."""

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from ksim.errors import ConfigError
from ksim.mdp.events import AbstractEvent
from ksim.mdp.noise import AbstractNoise, noise_key
from ksim.mdp.term import Context, Term
from ksim.mdp.term_errors import named_errors
from ksim.rollout.threefry import unrolled
from ksim.types import Overrides, PhysicsState


class TermCalls:
    """Calls terms within one trace of a reset (no memories yet) or of a step."""

    def __init__(self, terms: Mapping[str, Term], key: PRNGKeyArray, memories: dict[str, PyTree] | None) -> None:
        """Prepares the calls. `memories` are the terms' memories before this step, by name; None at a reset."""
        self._terms = terms
        self._keys = {name: jax.random.fold_in(unrolled(key), i) for i, name in enumerate(self._terms)}
        self._memories = memories
        self.new_memories: dict[str, PyTree] = {} if memories is None else dict(memories)

    def update_memory(self, name: str, context: Context) -> Context:
        """Makes the term's memory at a reset or updates it at a step; returns the term's own context."""
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
        context = self.update_memory(name, context)
        with named_errors(name, self._terms[name]), jax.named_scope(name):
            return self._terms[name](context)

    def apply_event(
        self, name: str, context: Context, physics: PhysicsState, overrides: Overrides
    ) -> tuple[PhysicsState, Overrides]:
        """The physics state and the overrides after an event."""
        context = dataclasses.replace(context, physics=physics, overrides=overrides)
        context = self.update_memory(f"event/{name}", context)
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
