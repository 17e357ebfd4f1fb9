"""Observations of accelerations, of moving bodies and sites, of an IMU, of actuators and of what was done."""

import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import observations
from ksim.physics import compile_model
from tests.support.contexts import make_context, turned, values_over
from tests.support.robots import ACTUATORS, biped_spec

LEGS, FEET = ("left_leg", "right_leg"), ("left_foot", "right_foot")
DERIVED = ("cvel", "subtree_com", "xpos", "xquat", "site_xpos")

# Accelerations.


def test_base_linear_acceleration_world_when_base_faces_left_is_in_the_world_frame():
    # 0.2 / 0.02 along the world's x.
    at_speed = [make_context(orientation=turned("z", 90), lin_vel_world=(speed, 0, 0)) for speed in (0, 0.2)]
    acceleration_t3 = values_over(observations.BaseLinearAccelerationWorld(), *at_speed)
    np.testing.assert_allclose(acceleration_t3, [[0, 0, 0], [10, 0, 0]], atol=1e-4)


@pytest.mark.parametrize(
    ("term", "expected"),
    # (0.3 - 0.1) / 0.02 about the base's forward, which is the world's y.
    [
        (observations.BaseAngularAcceleration(), [10, 0, 0]),
        (observations.BaseAngularAccelerationWorld(), [0, 10, 0]),
    ],
    ids=["body", "world"],
)
def test_base_angular_acceleration_when_base_faces_left_is_the_change_per_second_in_its_frame(term, expected):
    turning = [make_context(orientation=turned("z", 90), ang_vel_body=(rate, 0, 0)) for rate in (0.1, 0.3, 0.3)]
    np.testing.assert_allclose(values_over(term, *turning), [[0, 0, 0], expected, [0, 0, 0]], atol=1e-4)


def test_joint_acceleration_when_joints_are_named_is_the_change_per_second_of_these():
    # (4 - 2) / 0.02
    contexts = [make_context(joint_vel=(1, 2)), make_context(joint_vel=(1, 4))]
    acceleration_t1 = values_over(observations.JointAcceleration(joints=("right_hip",)), *contexts)
    np.testing.assert_allclose(acceleration_t1, [[0], [100]], rtol=1e-5)


# Bodies and sites.


@functools.cache
def moving():
    """MuJoCo's data of the biped amid a tumble, and a context that sees it."""
    motion = {
        "ground_position": (1, 2),
        "height": 3.0,
        "orientation": turned("y", 120),
        "lin_vel_world": (0.5, -1, 2),
        "ang_vel_body": (1, 2, -3),
        "joint_pos": (0.4, -0.2),
        "joint_vel": (2, -5),
    }
    physics = make_context(**motion).physics
    model = make_context().model.mj_model
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = physics.qpos, physics.qvel
    mujoco.mj_forward(model, data)
    return data, make_context(**motion, derived={name: getattr(data, name) for name in DERIVED})


def mujoco_velocity(kind, name):
    """Linear and angular velocity in the world frame, as MuJoCo itself tells."""
    data, context = moving()
    velocity_6 = np.zeros(6)
    index = context.model.names.index(kind, name)
    object_type = getattr(mujoco.mjtObj, {"body": "mjOBJ_XBODY", "site": "mjOBJ_SITE"}[kind])
    mujoco.mj_objectVelocity(context.model.mj_model, data, object_type, index, velocity_6, 0)
    return velocity_6[3:], velocity_6[:3]


def in_base_frame(vector_n3):
    data, context = moving()
    return vector_n3 @ data.xmat[context.model.names.index("body", "trunk")].reshape(3, 3)


@pytest.mark.parametrize(
    ("kind", "names", "world", "base", "which"),
    [
        ("body", LEGS, observations.BodyLinearVelocityWorld, observations.BodyLinearVelocity, 0),
        ("body", LEGS, observations.BodyAngularVelocityWorld, observations.BodyAngularVelocity, 1),
        ("site", FEET, observations.SiteLinearVelocityWorld, observations.SiteLinearVelocity, 0),
        ("site", FEET, observations.SiteAngularVelocityWorld, observations.SiteAngularVelocity, 1),
    ],
    ids=["body_linear", "body_angular", "site_linear", "site_angular"],
)
def test_body_and_site_velocities_when_all_moves_are_those_of_mujoco_in_the_frame_they_say(
    kind, names, world, base, which
):
    _, context = moving()
    expected_n3 = np.stack([mujoco_velocity(kind, name)[which] for name in names])
    np.testing.assert_allclose(world(names)(context), expected_n3, atol=1e-4)
    np.testing.assert_allclose(base(names)(context), in_base_frame(expected_n3), atol=1e-4)


def test_body_and_site_position_world_are_those_of_mujoco():
    data, context = moving()
    leg_b3 = observations.BodyPositionWorld(bodies=("left_leg",))(context)
    foot_s3 = observations.SitePositionWorld(sites=("left_foot",))(context)
    np.testing.assert_allclose(leg_b3[0], data.body("left_leg").xpos, rtol=1e-5)
    np.testing.assert_allclose(foot_s3[0], data.site("left_foot").xpos, rtol=1e-5)


def test_body_orientation_in_base_when_base_tumbles_is_the_joints_angle():
    # Hips turn about y, by 0.4 and by -0.2 rad: (cos 0.2, sin 0.2) and (cos 0.1, -sin 0.1).
    _, context = moving()
    orientation_b4 = observations.BodyOrientationInBase(bodies=LEGS)(context)
    expected_b4 = [[np.cos(0.2), 0, np.sin(0.2), 0], [np.cos(0.1), 0, -np.sin(0.1), 0]]
    np.testing.assert_allclose(orientation_b4, expected_b4, atol=1e-6)


@pytest.mark.parametrize(("degrees", "sign"), [(20, 1), (200, -1)])
def test_site_orientation_when_its_site_is_turned_in_its_body_is_both_turns_with_w_above_zero(degrees, sign):
    # A site turned by 20 degrees on a body turned by 30; in all 50. By 200: 230, whose w is negative.
    spec = biped_spec()
    spec.site("imu").quat = turned("x", degrees)
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[ACTUATORS.edit_spec])
    context = make_context(model=model, derived={"xquat": [turned("x", 30)] * 4})
    orientation_s4 = observations.SiteOrientation(sites=("imu",))(context)
    np.testing.assert_allclose(orientation_s4[0], sign * turned("x", 30 + degrees), atol=1e-6)


@pytest.mark.parametrize(
    "term",
    [
        observations.BodyLinearVelocity(bodies=("left_lag",)),
        observations.BodyOrientationInBase(bodies=("left_lag",)),
        observations.SiteLinearVelocity(sites=("left_fot",)),
        observations.SiteOrientation(sites=("left_fot",)),
    ],
    ids=lambda term: type(term).__name__,
)
def test_body_and_site_terms_when_name_is_unknown_name_the_near_misses(term):
    with pytest.raises(ConfigError, match=r"no (body 'left_lag'.*'left_leg'|site 'left_fot'.*'left_foot')"):
        term(moving()[1])


# The IMU.


def imu_data(spec, *terms):
    """A context of the biped with what the terms add, on its back in free fall and slowly turning."""
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[ACTUATORS.edit_spec, *(t.edit_spec for t in terms)])
    data = mujoco.MjData(model.mj_model)
    data.qpos[:7] = [0, 0, 3, *turned("y", -90)]
    data.qvel[3:6] = [0.1, 0.2, 0.3]
    mujoco.mj_forward(model.mj_model, data)
    return make_context(model=model, derived={"sensordata": data.sensordata})


def test_imu_gyro_when_its_site_is_turned_reads_in_the_sites_frame():
    # The site's x is the trunk's y, and its y the trunk's -x.
    spec, term = biped_spec(), observations.ImuGyro(site="imu")
    spec.site("imu").quat = turned("z", 90)
    np.testing.assert_allclose(term(imu_data(spec, term)), [0.2, -0.1, 0.3], atol=1e-6)


def test_imu_gyro_when_the_model_has_one_there_adds_none():
    spec, added = biped_spec(), observations.ImuGyro(site="left_foot")
    observations.ImuGyro(site="imu").edit_spec(spec)
    assert len(spec.sensors) == 3
    added.edit_spec(spec)
    added.edit_spec(spec)
    assert [sensor.name for sensor in spec.sensors][3:] == ["ksim_left_foot_gyro"]


def test_imu_accelerometer_when_the_robot_falls_freely_reads_almost_nothing_and_when_lifted_an_upward_pull():
    spec, term = biped_spec(), observations.ImuAccelerometer(site="imu")
    # Almost: the turning and the servos of the legs accelerate the trunk a little.
    falling_3 = term(imu_data(spec, term))
    assert np.linalg.norm(falling_3) < 2.0
    # Lifted by twice its weight it is accelerated up by 9.81 m/s^2, to which gravity adds as much.
    spec.body("trunk").gravcomp = 2.0
    for leg in LEGS:
        spec.body(leg).gravcomp = 2.0
    lifted_3 = term(imu_data(spec, term))
    # On its back the trunk's forward points up.
    np.testing.assert_allclose(lifted_3 - falling_3, [2 * 9.81, 0, 0], atol=0.05)


def test_imu_terms_when_the_site_is_unknown_name_the_near_misses():
    for term in (observations.ImuGyro(site="inu"), observations.ImuAccelerometer(site="inu")):
        with pytest.raises(ConfigError, match=r"no site 'inu'.*'imu'"):
            term.edit_spec(biped_spec())


# Actuators.


def test_actuator_control_is_what_the_context_says_the_actuators_were_given():
    np.testing.assert_array_equal(observations.ActuatorControl()(make_context(control=jnp.array([0.5, -2]))), [0.5, -2])


def test_joint_torque_when_joints_are_named_is_that_of_these_without_the_base():
    assert observations.JointTorque.needs == ("qfrc_actuator",)
    context = make_context(derived={"qfrc_actuator": [9, 9, 9, 9, 9, 9, 5, -6]})
    np.testing.assert_array_equal(observations.JointTorque()(context), [5, -6])
    np.testing.assert_array_equal(observations.JointTorque(joints=("right_hip",))(context), [-6])


# What was done, and what is asked.


def test_previous_action_is_the_one_before_the_last():
    context = make_context(action=jnp.array([9.0, 9.0]), previous_action=jnp.array([0.5, -2.0]))
    np.testing.assert_array_equal(observations.PreviousAction()(context), [0.5, -2.0])


def test_action_history_when_actions_follow_has_the_newest_first_and_zeros_before():
    contexts = [make_context(action=jnp.array([float(t), -float(t)])) for t in range(3)]
    history_t32 = values_over(observations.ActionHistory(steps=3), *contexts)
    np.testing.assert_array_equal(history_t32[0], np.zeros((3, 2)))
    np.testing.assert_array_equal(history_t32[2], [[2, -2], [1, -1], [0, 0]])


@pytest.mark.parametrize(("facing", "asked", "expected"), [(30, 90, 60), (90, 30, -60), (170, -170, 20)])
def test_heading_error_is_how_far_to_turn_left_the_short_way_round(facing, asked, expected):
    context = make_context(orientation=turned("z", facing), commands={"heading": jnp.array([np.radians(asked)])})
    error = observations.HeadingError(command="heading")(context)
    np.testing.assert_allclose(np.degrees(error), expected, atol=1e-3)


def gait(frequency, *offsets):
    return make_context(commands={"gait": jnp.array([frequency, 0.5, *offsets])})


def test_gait_clock_when_the_frequency_changes_adds_up_the_turns():
    # 2.5 Hz for 0.02 s are a 20th of a turn; then 5 Hz a 10th. A new frequency counts from the step after it is given.
    clock_t21 = values_over(observations.GaitClock(command="gait"), gait(2.5), gait(2.5), gait(5.0), gait(5.0))
    turns_t = np.array([0, 0.05, 0.1, 0.2])
    expected_t2 = np.stack([np.sin(2 * np.pi * turns_t), np.cos(2 * np.pi * turns_t)], axis=1)
    np.testing.assert_allclose(clock_t21[:, :, 0], expected_t2, atol=1e-5)


def test_gait_clock_when_feet_have_offsets_shows_each_ahead_by_its_own():
    # After one step of 12.5 Hz the clock is at a quarter: the feet at a quarter, three quarters, and a half.
    clock_23 = values_over(observations.GaitClock(command="gait"), gait(12.5, 0.5, 0.25), gait(12.5, 0.5, 0.25))[1]
    np.testing.assert_allclose(clock_23, [[1, -1, 0], [0, 0, -1]], atol=1e-5)
