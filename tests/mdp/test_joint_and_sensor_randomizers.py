"""Randomizers of masses, joints and sensors, by hand and in the motion of both engines."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp.randomizers import (
    RandomBodyMass,
    RandomImuAlignment,
    RandomJointFriction,
    RandomJointStiffness,
    RandomJointZero,
    RandomMassFactor,
)
from ksim.physics import compile_model
from ksim.physics.select import ENGINES, make_engine
from tests.support.contexts import DT, biped, draws, make_context
from tests.support.robots import ACTUATORS, biped_spec

MODEL = biped().mj_model
WORLD, TRUNK, LEFT_LEG, RIGHT_LEG = range(4)
LEFT_HIP, RIGHT_HIP = 1, 2  # among joints, of which the first is the base's


@functools.cache
def springy_biped():
    """The biped with a spring in its left hip, and friction where a randomizer wants some."""
    spec = biped_spec()
    spec.joint("left_hip").stiffness = [10.0, 0, 0]
    edits = [ACTUATORS.edit_spec, RandomJointFriction().edit_spec]
    return compile_model(spec, dt=0.004, ctrl_dt=DT, edits=edits)


def springy_context(**fields):
    return make_context(model=springy_biped(), **fields)


# Masses.


def test_random_mass_factor_when_drawn_multiplies_mass_and_inertia_alike_of_each_body_apart():
    term = RandomMassFactor(bodies=("trunk", "left_leg"), factor=(0.5, 2.0))
    drawn = draws(lambda key: term(make_context(key=key)))
    factor_nb = np.asarray(drawn["body_mass"])[:, 1:] / MODEL.body_mass[1:]
    np.testing.assert_allclose(
        drawn["body_inertia"][:, 1:] / MODEL.body_inertia[1:], np.repeat(factor_nb[..., None], 3, axis=2), rtol=1e-5
    )
    np.testing.assert_allclose(factor_nb.min(0), [0.5, 0.5, 1], atol=0.05)
    np.testing.assert_allclose(factor_nb.max(0), [2.0, 2.0, 1], atol=0.05)
    assert abs(np.corrcoef(factor_nb[:, :2].T)[0, 1]) < 0.25


def test_random_mass_factor_when_another_came_before_multiplies_what_it_left_and_sums_subtrees():
    before = RandomBodyMass(body="trunk", added=(1.0, 1.0))(make_context())
    after = RandomMassFactor(bodies=("trunk", "left_leg"), factor=(2.0, 2.0))(make_context(overrides=before))
    # (5 + 1) * 2 and 1.2 * 2 kg; the whole 12 + 2.4 + 1.2.
    np.testing.assert_allclose(after["body_mass"], [0, 12, 2.4, 1.2], rtol=1e-6)
    np.testing.assert_allclose(after["body_subtreemass"], [15.6, 15.6, 2.4, 1.2], rtol=1e-6)


# Joints.


def test_random_joint_friction_when_drawn_fills_its_range_for_each_joint_apart():
    drawn = draws(lambda key: RandomJointFriction(friction=(0.5, 2.0))(springy_context(key=key)))
    friction_nv = np.asarray(drawn["dof_frictionloss"])
    np.testing.assert_array_equal(friction_nv[:, :6], 0.0)
    np.testing.assert_allclose(friction_nv[:, 6:].min(0), 0.5, atol=0.05)
    np.testing.assert_allclose(friction_nv[:, 6:].max(0), 2.0, atol=0.05)
    assert abs(np.corrcoef(friction_nv[:, 6:].T)[0, 1]) < 0.25


def test_random_joint_friction_when_it_edits_a_model_keeps_friction_that_is_there():
    spec = biped_spec()
    spec.joint("left_hip").frictionloss = 0.3
    RandomJointFriction(joints=("left_hip",)).edit_spec(spec)
    assert (spec.joint("left_hip").frictionloss, spec.joint("right_hip").frictionloss) == (0.3, 0.0)
    RandomJointFriction().edit_spec(spec)
    assert (spec.joint("left_hip").frictionloss, spec.joint("root").frictionloss) == (0.3, 0.0)
    assert 0 < spec.joint("right_hip").frictionloss < 1e-5


def test_random_joint_friction_when_the_model_was_not_edited_is_an_error_that_says_how():
    with pytest.raises(ConfigError, match=r"Pass its edit_spec to compile_model"):
        RandomJointFriction()(make_context())


def test_random_joint_stiffness_when_some_joints_have_springs_multiplies_theirs():
    drawn = RandomJointStiffness(factor=(1.5, 1.5))(springy_context())
    np.testing.assert_allclose(drawn["jnt_stiffness"], [0, 15, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("term", "context", "message"),
    [
        (RandomJointStiffness(), make_context, r"a spring in any joint"),
        (RandomJointStiffness(joints=("left_hip", "right_hip")), springy_context, r"in each of left_hip, right_hip"),
        (RandomJointZero(joints=("left_hop",)), make_context, r"no joint 'left_hop'.*'left_hip'"),
        (RandomImuAlignment(site="imo"), make_context, r"no site 'imo'.*'imu'"),
        (RandomMassFactor(bodies=("trunc",)), make_context, r"no body 'trunc'.*'trunk'"),
    ],
)
def test_randomizer_when_it_cannot_do_what_it_is_asked_is_an_error(term, context, message):
    with pytest.raises(ConfigError, match=message):
        term(context())


def test_random_joint_zero_when_drawn_moves_zero_spring_and_limits_by_one_number_for_each_joint():
    drawn = draws(lambda key: RandomJointZero(max_offset=0.2)(springy_context(key=key)))
    offset_nj = np.asarray(drawn["qpos0"][:, 7:])
    np.testing.assert_allclose(offset_nj.min(0), -0.2, atol=0.02)
    np.testing.assert_allclose(offset_nj.max(0), 0.2, atol=0.02)
    np.testing.assert_allclose(drawn["qpos_spring"][:, 7:], offset_nj, atol=1e-6)
    moved_nj2 = drawn["jnt_range"][:, 1:] - springy_biped().mj_model.jnt_range[1:]
    np.testing.assert_allclose(moved_nj2, np.repeat(offset_nj[..., None], 2, axis=2), atol=1e-6)
    np.testing.assert_array_equal(drawn["qpos0"][:, :7], np.tile(MODEL.qpos0[:7].astype(np.float32), (300, 1)))


# Sensors.


def test_random_imu_alignment_when_drawn_turns_the_site_alone_about_all_axes_by_up_to_its_angle():
    quat_ns4 = np.asarray(
        draws(lambda key: RandomImuAlignment(site="imu", max_angle=0.3)(make_context(key=key)))["site_quat"]
    )
    np.testing.assert_array_equal(np.ptp(quat_ns4[:, 1:], axis=0), 0.0)
    # Of a turn by an angle about an axis: (cos(angle / 2), sin(angle / 2) axis).
    xyz_n3 = quat_ns4[:, 0, 1:]
    angle_n = 2 * np.arcsin(np.linalg.norm(xyz_n3, axis=1))
    np.testing.assert_allclose([angle_n.min(), angle_n.max()], [0, 0.3], atol=0.01)
    axis_n3 = xyz_n3 / np.linalg.norm(xyz_n3, axis=1, keepdims=True)
    # Means of 300, each with a standard deviation of sqrt(1 / 3 / 300) = 0.033.
    np.testing.assert_allclose(axis_n3.mean(0), 0.0, atol=0.15)


# In the motion.

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
