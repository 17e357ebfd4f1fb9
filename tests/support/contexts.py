"""Contexts made by hand: a term sees the small biped in a given state, without any physics."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.mdp.term import Context
from ksim.physics import PhysicsModel, Terrain, compile_model
from ksim.types import PhysicsState
from tests.support.robots import ACTUATORS, biped_spec

DT = 0.02
TOUCH = ("left_touch", "right_touch")


def turned(axis: str, degrees: float) -> np.ndarray:
    """The orientation after a turn about the world's `x`, `y` or `z`."""
    half = math.radians(degrees) / 2
    return np.array([math.cos(half), *(math.sin(half) * np.eye(3)["xyz".index(axis)])])


@functools.cache
def biped(knock_kneed: bool = False, free_right_hip: bool = False, terrain: Terrain | None = None) -> PhysicsModel:
    """The biped; with a default pose of (0.3, -0.3) rad at the hips, a right hip without limits, or on a terrain."""
    spec = biped_spec()
    if knock_kneed:
        spec.add_key(name="home", qpos=[0, 0, 0.5, 1, 0, 0, 0, 0.3, -0.3])
    if free_right_hip:
        spec.joint("right_hip").limited = mujoco.mjtLimited.mjLIMITED_FALSE
    return compile_model(spec, dt=0.004, ctrl_dt=DT, edits=[ACTUATORS.edit_spec], terrain=terrain)


def make_context(
    *,
    model: PhysicsModel | None = None,
    ground_position: Any = (0, 0),
    height: float = 0.5,
    orientation: Any = (1, 0, 0, 0),
    lin_vel_world: Any = (0, 0, 0),
    ang_vel_body: Any = (0, 0, 0),
    joint_pos: Any = (0, 0),
    joint_vel: Any = (0, 0),
    sensors: dict[str, Any] | None = None,
    derived: dict[str, Any] | None = None,
    applied: dict[str, Any] | None = None,
    **fields: Any,
) -> Context:
    """A context of the biped upright and at rest, but for what is given.

    Args:
        sensors: Readings by the sensor's name; zero where not given.
        derived: Derived fields besides sensordata.
        applied: Forces from outside, by the name of their field.
        fields: Fields of `Context`.
    """
    model = model or biped()
    floats = lambda x: jnp.asarray(x, jnp.float32)
    sensordata = np.zeros(model.mj_model.nsensordata, np.float32)
    for name, reading in (sensors or {}).items():
        sensordata[model.names.sensor(name)] = reading
    physics = PhysicsState(
        qpos=floats([*ground_position, height, *orientation, *joint_pos]),
        qvel=floats([*lin_vel_world, *ang_vel_body, *joint_vel]),
        act=jnp.zeros(0),
        qacc_warmstart=jnp.zeros(model.mj_model.nv),
        time=jnp.zeros(()),
        derived={"sensordata": floats(sensordata)} | {name: floats(x) for name, x in (derived or {}).items()},
        applied={name: floats(x) for name, x in (applied or {}).items()},
    )
    return Context.at(model, physics, **fields)


def feet(left: bool, right: bool) -> dict[str, float]:
    """Readings of the touch sensors, in N: 10 under a foot that is down."""
    return {"left_touch": 10.0 * left, "right_touch": 10.0 * right}


def asking(forward: float = 0.0, leftward: float = 0.0, yaw_rate: float = 0.0) -> dict[str, jax.Array]:
    """Commands of which one, `velocity`, asks for this."""
    return {"velocity": jnp.array([forward, leftward, yaw_rate])}


def values_over(term: Any, *contexts: Context) -> np.ndarray:
    """The term's value at a reset, which the first context is of, and after each step, which the others are of."""
    memory, values = term.init(contexts[0]), []
    for t, context in enumerate(contexts):
        if t > 0:
            memory = term.update(dataclasses.replace(context, memory=memory))
        values.append(term(dataclasses.replace(context, memory=memory)))
    return np.stack(values)


def draws(function: Any, num_draws: int = 300) -> Any:
    """The values of a function of a key for many keys, in rows."""
    # Half the compile time: each of these programs runs once.
    quickly = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.vmap(function), compiler_options=quickly)(jax.random.split(jax.random.key(1), num_draws))


def case(
    sentence: str, term: Any, expected: Any, *, episode: list[dict[str, Any]] | None = None, **context: Any
) -> Any:
    """A case of a table for `check_value`, with its sentence as its id.

    Args:
        expected: The value in a context with these arguments of `make_context`, of which the model may be a function
            that makes it. For an episode the values at a reset and at the steps after it, by their arguments.
    """
    return pytest.param(term, episode or context, expected, id=sentence)


def check_value(term: Any, given: Any, expected: Any) -> None:
    """Compares the value of a term, or its values over an episode, with a `case`."""
    value = values_over(term, *map(_made, given)) if isinstance(given, list) else term(_made(given))
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


def _made(given: dict[str, Any]) -> Context:
    model = given.get("model")
    return make_context(**given | {"model": model() if callable(model) else model})
