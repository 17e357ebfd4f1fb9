"""Randomizers of masses, joints and sensors, in the motion of both engines."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.mdp.randomizers import (
    RandomImuAlignment,
    RandomJointFriction,
    RandomJointStiffness,
    RandomJointZero,
    RandomMassFactor,
)
from ksim.physics import compile_model
from ksim.physics.select import make_engine
from tests.mdp.test_randomizers import springy_biped
from tests.support.contexts import DT, biped, make_context
from tests.support.engines import ENGINES
from tests.support.robots import ACTUATORS, biped_spec

MODEL = biped().mj_model


def springy_context(**fields):
    return make_context(model=springy_biped(), **fields)


START = {"qpos": [0, 0, 0.49, 1, 0, 0, 0, 0.2, -0.1], "qvel": [0.5, 0, 0, 0.3, -0.2, 0.4, 1, -1]}
CASES = {
    "friction": RandomJointFriction(friction=(1.0, 2.0)),
    "no_friction": RandomJointFriction(friction=(0.0, 0.0)),
    "stiffness": RandomJointStiffness(factor=(3.0, 3.0)),
    "zero": RandomJointZero(max_offset=0.3),
    "imu": RandomImuAlignment(site="imu", max_angle=1.0),
    "mass": RandomMassFactor(bodies=("trunk", "left_leg"), factor=(0.5, 2.0)),
}
FIELDS = ("dof_frictionloss", "jnt_stiffness", "qpos0", "qpos_spring", "jnt_range", "site_quat", "body_mass",
          "body_inertia", "body_subtreemass")  # fmt: skip


@functools.cache
def whole_overrides(case):
    """All fields that any case changes, so that one program serves all."""
    mj_model = springy_biped().mj_model
    compiled = {name: jnp.asarray(getattr(mj_model, name), jnp.float32) for name in FIELDS}
    # Of this key the IMU's turn is a large one.
    return compiled | ({} if case == "compiled" else CASES[case](springy_context(key=jax.random.key(2))))


@functools.cache
def runner(engine_name):
    engine = make_engine(engine_name, springy_biped(), ("xpos",), num_devices=1)

    def run(overrides):
        moved = {name: jnp.asarray(START[name], jnp.float32) for name in ("qpos", "qvel")}
        start = engine.forward(dataclasses.replace(springy_biped().start(), **moved), jnp.zeros(2), overrides)
        return start, engine.substeps(start, jnp.zeros(2), overrides)

    return jax.jit(run)


def plain_mujoco(case):
    """The same with plain MuJoCo, of a model whose fields are written before it steps."""
    model = biped_model_for(case)
    data = mujoco.MjData(model)
    data.qpos, data.qvel = START["qpos"], START["qvel"]
    mujoco.mj_forward(model, data)
    start = {"sensordata": data.sensordata.copy(), "xpos": data.xpos.copy()}
    data = mujoco.MjData(model)
    data.qpos, data.qvel = START["qpos"], START["qvel"]
    mujoco.mj_step(model, data, nstep=springy_biped().decimation)
    return start, data


def biped_model_for(case):
    model = copy.copy(springy_biped().mj_model)
    for name, value in whole_overrides(case).items():
        getattr(model, name)[:] = value
    return model


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_randomized_model_moves_and_senses_as_a_model_compiled_so(engine, case):
    start, state = runner(engine)(whole_overrides(case))
    expected_start, expected = plain_mujoco(case)
    np.testing.assert_allclose(state.qpos, expected.qpos, atol=1e-4)
    np.testing.assert_allclose(state.qvel, expected.qvel, atol=1e-2)
    for field, value in expected_start.items():
        np.testing.assert_allclose(start.derived[field], value, rtol=1e-3, atol=1e-3 * np.abs(value).max())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", [case for case in CASES if case != "no_friction"])
def test_randomized_model_moves_or_senses_otherwise_than_the_compiled_one(engine, case):
    changed, compiled = (runner(engine)(whole_overrides(name))[1] for name in (case, "compiled"))
    differences = [changed.qvel - compiled.qvel, changed.derived["sensordata"] - compiled.derived["sensordata"]]
    assert max(float(jnp.abs(x).max()) for x in differences) > 1e-2


@pytest.mark.parametrize("engine", ENGINES)
def test_joint_without_friction_moves_as_one_that_never_had_any(engine):
    frictionless = compile_model(biped_spec(), dt=0.004, ctrl_dt=DT, edits=[ACTUATORS.edit_spec])
    frictionless.mj_model.jnt_stiffness[:] = springy_biped().mj_model.jnt_stiffness
    data = mujoco.MjData(frictionless.mj_model)
    data.qpos, data.qvel = START["qpos"], START["qvel"]
    mujoco.mj_step(frictionless.mj_model, data, nstep=frictionless.decimation)
    _, state = runner(engine)(whole_overrides("no_friction"))
    np.testing.assert_allclose(state.qvel, data.qvel, atol=1e-2)


@pytest.mark.parametrize("engine", ENGINES)
def test_joint_whose_zero_is_off_is_where_the_encoder_without_error_says(engine):
    overrides = whole_overrides("zero")
    start, _ = runner(engine)(overrides)
    offset_2 = overrides["qpos0"][7:]
    data = mujoco.MjData(MODEL)
    data.qpos = START["qpos"]
    data.qpos[7:] -= offset_2
    mujoco.mj_forward(MODEL, data)
    np.testing.assert_allclose(start.derived["xpos"], data.xpos, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_gyro_that_is_turned_reads_the_turned_angular_velocity(engine):
    overrides = whole_overrides("imu")
    start, _ = runner(engine)(overrides)
    quat_4, turned_3 = np.asarray(overrides["site_quat"][0], np.float64), np.zeros(3)
    mujoco.mju_rotVecQuat(turned_3, START["qvel"][3:6], quat_4 * [1, -1, -1, -1])
    np.testing.assert_allclose(start.derived["sensordata"][:3], turned_3, atol=1e-5)
