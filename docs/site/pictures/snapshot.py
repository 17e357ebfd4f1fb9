"""A term's context at one moment as numpy arrays, from which a `Context` is made when a term is called."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ksim.mdp.term import Context, Term
from ksim.physics import PhysicsModel
from ksim.types import PhysicsState


@dataclasses.dataclass(frozen=True)
class Physics:
    """The fields of a `PhysicsState`."""

    qpos: np.ndarray
    qvel: np.ndarray
    act: np.ndarray
    qacc_warmstart: np.ndarray
    time: np.ndarray
    derived: Mapping[str, np.ndarray]
    applied: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The fields of a `Context` but its key and its memory."""

    model: PhysicsModel
    physics: Physics
    action: np.ndarray
    previous_action: np.ndarray
    control: np.ndarray
    commands: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    episode_step: np.ndarray | np.int32 = dataclasses.field(default_factory=lambda: np.int32(0))
    terminated: np.ndarray | np.bool_ = dataclasses.field(default_factory=lambda: np.bool_(False))
    overrides: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    levels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def dt(self) -> float:
        """Seconds per control step."""
        return self.model.ctrl_dt

    def sensor(self, name: str) -> np.ndarray:
        """A sensor's readings."""
        return self.physics.derived["sensordata"][self.model.names.sensor(name)]

    def with_physics(self, **fields: Any) -> "Snapshot":
        """The same but for these fields of the physics state."""
        return dataclasses.replace(self, physics=dataclasses.replace(self.physics, **fields))

    def arrays(self) -> dict[str, Any]:
        """All arrays: the fields of the context, and of the physics state in it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "model"}
        physics = {field.name: getattr(self.physics, field.name) for field in dataclasses.fields(Physics)}
        return fields | {"physics": physics}

    def as_context(self, key: Any) -> Context:
        """The context of it."""
        return context_of(self.model, jax.tree.map(jnp.asarray, self.arrays()), key)


QUICKLY = {"xla_backend_optimization_level": 0}
"""Options for XLA: half the compile time, for programs that run for a hundred steps at most."""


def context_of(model: PhysicsModel, arrays: dict[str, Any], key: Any) -> Context:
    """The context of a snapshot's arrays, which may be traced."""
    fields: dict[str, Any] = {**arrays, "physics": PhysicsState(**arrays["physics"])}
    return Context(model=model, key=key, **fields)


def values_over(term: Any, seen: Sequence[Snapshot], read: Any = lambda value, _: value) -> np.ndarray:
    """The term's value at a reset, for the first snapshot, and after each step, for the others.

    Args:
        term: A term with or without memory.
        seen: In the order of time.
        read: What to keep, from the value and its context with the memory.
    """
    if type(term).init is Term.init:
        return values_apart(term, seen, read)
    model = seen[0].model

    def value_in(context: Context, memory: Any) -> Any:
        context = dataclasses.replace(context, memory=memory)
        return read(term(context), context), memory

    def step(arrays: Any, key: Any, memory: Any) -> Any:
        context = dataclasses.replace(context_of(model, arrays, key), memory=memory)
        return value_in(context, term.update(context))

    def start(arrays: Any, key: Any) -> Any:
        context = context_of(model, arrays, key)
        return value_in(context, term.init(context))

    start, step = (jax.jit(function, compiler_options=QUICKLY) for function in (start, step))
    keys = jax.random.split(jax.random.key(0), len(seen))
    value, memory = start(seen[0].arrays(), keys[0])
    values = [value]
    for snapshot, key in zip(seen[1:], keys[1:], strict=True):
        value, memory = step(snapshot.arrays(), key, memory)
        values.append(value)
    return np.stack([np.asarray(value) for value in values])


def values_apart(term: Any, seen: Sequence[Snapshot], read: Any = lambda value, _: value) -> np.ndarray:
    """The term's value in each of several snapshots, each with the memory of a reset."""
    model = seen[0].model

    def value(arrays: Any, key: Any) -> Any:
        context = context_of(model, arrays, key)
        context = dataclasses.replace(context, memory=term.init(context))
        return read(term(context), context)

    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *[snapshot.arrays() for snapshot in seen])
    values = jax.jit(jax.vmap(value), compiler_options=QUICKLY)
    return np.asarray(values(stacked, jax.random.split(jax.random.key(0), len(seen))))


def values_drawn(function: Any, seen: Snapshot, num: int) -> Any:
    """The values that a function of the context draws for many keys, in rows."""
    keys = jax.random.split(jax.random.key(3), num)
    context = seen.as_context(keys[0])
    drawn = jax.vmap(lambda key: function(dataclasses.replace(context, key=key)))
    return jax.tree.map(np.asarray, jax.jit(drawn, compiler_options=QUICKLY)(keys))
