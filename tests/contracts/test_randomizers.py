"""Randomizers by twos, in both orders: every engine moves a model as if their numbers had been written into it."""

import copy
import dataclasses
import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.mdp import observations, randomizers
from ksim.mdp.randomizers import AbstractRandomizer, RandomCenterOfMass, RandomFriction
from ksim.mdp.term import named_terms, snake_case
from ksim.physics.select import make_engine
from tests.contracts.test_terms import concrete_terms, make_environment, make_term
from tests.support.contexts import make_context
from tests.support.engines import MJX, WARP
from tests.support.scale import scale

CLASSES = concrete_terms(randomizers)
PAIRS = list(itertools.permutations(CLASSES, 2))
DERIVED = ("sensordata", "subtree_com", "xpos", "actuator_force")
START = {"qpos": [0, 0, 0.49, 1, 0, 0, 0, 0.2, -0.1], "qvel": [0.5, 0, 0, 0.3, -0.2, 0.4, 1, -1]}
CTRL = [0.4, -0.4]


@functools.cache
def model():
    """The biped, with what every randomizer asks of a model."""
    terms = {snake_case(cls.__name__): make_term(cls) for cls in CLASSES}
    return make_environment("mujoco", {"randomizer": terms}).engine.model


@functools.cache
def engine_of(name):
    return make_engine(name, model(), DERIVED)


@functools.cache
def drawn_in_pairs():
    """For each of `PAIRS` the overrides as a reset collects them, in the order of the terms."""
    context = lambda cls: make_context(model=model(), key=jax.random.key(CLASSES.index(cls)))
    drawn = {cls: make_term(cls)(context(cls)) for cls in CLASSES}
    return [drawn[first] | drawn[second] for first, second in PAIRS]


def reset_and_step(name, overrides):
    """Derived fields at a reset, and the motion after one control step."""
    engine = engine_of(name)
    moved = {name: jnp.asarray(x, jnp.float32) for name, x in START.items()}
    start = engine.forward(dataclasses.replace(engine.model.start(), **moved), jnp.array(CTRL), overrides)
    end = engine.substeps(start, jnp.array(CTRL), overrides)
    return start.derived, {"qpos": end.qpos, "qvel": end.qvel}


def in_plain_mujoco(overrides, ctrl=CTRL):
    mj_model = copy.copy(model().mj_model)
    for name, value in overrides.items():
        operator.attrgetter(name)(mj_model)[:] = value
    data = mujoco.MjData(mj_model)
    data.qpos, data.qvel, data.ctrl = START["qpos"], START["qvel"], ctrl
    mujoco.mj_forward(mj_model, data)
    start = {name: np.array(getattr(data, name)) for name in DERIVED}
    mujoco.mj_step(mj_model, data, nstep=model().decimation)
    return start, {"qpos": data.qpos, "qvel": data.qvel}


def in_native():
    # Outside of jit, which sorts a dict's names: the engine is given them in the order of the terms.
    return [reset_and_step("mujoco", overrides) for overrides in drawn_in_pairs()]


def in_one_program(engine):
    """One program for all pairs, which overrides the fields of all randomizers, against the order of their names."""
    engine_of(engine)
    fields = sorted({name for overrides in drawn_in_pairs() for name in overrides}, reverse=True)
    compiled = {name: jnp.asarray(operator.attrgetter(name)(model().mj_model), jnp.float32) for name in fields}
    whole = jax.tree.map(lambda *x: jnp.stack(x), *[compiled | overrides for overrides in drawn_in_pairs()])
    run = lambda overrides: reset_and_step(engine, {name: overrides[name] for name in fields})
    results = jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(whole))
    return [jax.tree.map(lambda x: x[i], results) for i in range(len(PAIRS))]  # noqa: B023


@pytest.mark.long
@pytest.mark.parametrize("engine", ["mujoco", *scale([], [MJX, WARP])])
def test_two_randomizers_in_any_order_change_the_model_as_if_it_were_written_to_at_a_reset_and_in_a_step(engine):
    results = in_native() if engine == "mujoco" else in_one_program(engine)
    for (first, second), overrides, (start, end) in zip(PAIRS, drawn_in_pairs(), results, strict=True):
        pair = f"{first.__name__}, {second.__name__}"
        expected_start, expected_end = in_plain_mujoco(overrides)
        for name, value in expected_start.items():
            atol = 1e-3 * np.abs(value).max()
            np.testing.assert_allclose(start[name], value, rtol=1e-3, atol=atol, err_msg=f"{pair}: {name}")
        np.testing.assert_allclose(end["qpos"], expected_end["qpos"], atol=1e-4, err_msg=pair)
        np.testing.assert_allclose(end["qvel"], expected_end["qvel"], atol=1e-2, err_msg=pair)


@pytest.mark.parametrize("cls", CLASSES)
def test_randomizer_changes_the_state_or_the_sensors_after_the_next_step(cls):
    drawn = make_term(cls)(make_context(model=model(), key=jax.random.key(0)))
    # One control that reaches the force range, and one that does not.
    (start, end), (own_start, own_end) = (in_plain_mujoco(overrides, [5.0, -0.4]) for overrides in (drawn, {}))
    moved = [np.abs(end[name] - own_end[name]).max() for name in end]
    sensed = np.abs(start["sensordata"] - own_start["sensordata"]).max()
    assert max(*moved, sensed) > 1e-5


@pytest.mark.parametrize("order", [1, -1])
def test_first_observation_after_a_reset_is_that_of_the_randomized_model_whatever_the_order(order):
    terms = [RandomFriction(), RandomCenterOfMass(body="trunk", max_offset=0.1)][::order]
    seen = {"com": observations.CenterOfMassPosition()}
    env = make_environment("mujoco", {"randomizer": named_terms(terms, AbstractRandomizer), "observation": seen})
    start = env.reset(jax.random.key(0))
    mj_model = copy.copy(env.engine.model.mj_model)
    mj_model.body_ipos[:] = start.inner.overrides["body_ipos"]
    data = mujoco.MjData(mj_model)
    data.qpos = start.inner.physics.qpos
    mujoco.mj_forward(mj_model, data)
    base = mj_model.body("trunk").id
    # The base is upright, so that its frame is the world's.
    np.testing.assert_allclose(start.obs["actor"], data.subtree_com[base] - data.xpos[base], atol=1e-5)
