import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import observations
from tests.support.contexts import TOUCH, asking, biped, make_context, turned, values_over


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (turned("z", 0), [0, 0, -1]),
        # A heading does not tilt.
        (turned("z", 90), [0, 0, -1]),
        # Nose down by 30 degrees: gravity pulls forward by sin 30.
        (turned("y", 30), [0.5, 0, -np.sqrt(0.75)]),
        # On its right side: the base's left points up.
        (turned("x", 90), [0, -1, 0]),
    ],
)
def test_projected_gravity_when_base_is_turned_is_seen_from_the_base(orientation, expected):
    gravity_3 = observations.ProjectedGravity()(make_context(orientation=orientation))
    np.testing.assert_allclose(gravity_3, expected, atol=1e-6)


def test_base_linear_velocity_when_base_faces_left_is_in_the_base_frame():
    # The base's forward is the world's y: what moves along x, moves to the base's right.
    context = make_context(orientation=turned("z", 90), lin_vel_world=(1, 0, 0.5))
    np.testing.assert_allclose(observations.BaseLinearVelocity()(context), [0, -1, 0.5], atol=1e-6)


def test_base_angular_velocity_when_base_is_turned_is_as_mujoco_stores_it():
    context = make_context(orientation=turned("z", 90), ang_vel_body=(1, 2, 3))
    np.testing.assert_array_equal(observations.BaseAngularVelocity()(context), [1, 2, 3])


def test_base_height_is_that_above_the_origin():
    np.testing.assert_allclose(observations.BaseHeight()(make_context(height=0.42)), 0.42, rtol=1e-6)


def test_joint_position_when_default_pose_is_bent_is_relative_to_it():
    # 0.5 - 0.3 and -0.5 + 0.3
    context = make_context(model=biped(knock_kneed=True), joint_pos=(0.5, -0.5))
    np.testing.assert_allclose(observations.JointPosition()(context), [0.2, -0.2], rtol=1e-6)


def test_joint_terms_when_joints_are_named_show_these_in_this_order():
    context = make_context(joint_pos=(0.1, 0.2), joint_vel=(3, 4))
    backwards = ("right_hip", "left_hip")
    np.testing.assert_allclose(observations.JointPosition(joints=backwards)(context), [0.2, 0.1], rtol=1e-6)
    np.testing.assert_array_equal(observations.JointVelocity(joints=("right_hip",))(context), [4])


def test_joint_velocity_when_base_moves_leaves_the_base_out():
    context = make_context(lin_vel_world=(9, 9, 9), ang_vel_body=(9, 9, 9), joint_vel=(3, 4))
    np.testing.assert_array_equal(observations.JointVelocity()(context), [3, 4])


def test_joint_terms_when_joint_is_unknown_name_the_near_misses():
    with pytest.raises(ConfigError, match=r"no joint 'left_hop'.*'left_hip'"):
        observations.JointVelocity(joints=("left_hop",))(make_context())


def test_actuator_force_is_the_field_it_declares():
    assert observations.ActuatorForce.needs == ("actuator_force",)
    context = make_context(derived={"actuator_force": [5, -6]})
    np.testing.assert_array_equal(observations.ActuatorForce()(context), [5, -6])


def test_sensor_reading_when_there_are_several_sensors_is_that_of_the_named_one():
    context = make_context(sensors={"gyro": [1, 2, 3], "left_touch": 4, "right_touch": 5})
    np.testing.assert_array_equal(observations.SensorReading(sensor="gyro")(context), [1, 2, 3])
    np.testing.assert_array_equal(observations.SensorReading(sensor="right_touch")(context), [5])


def test_foot_contact_when_force_is_above_the_threshold_is_1():
    context = make_context(sensors={"left_touch": 2.1, "right_touch": 1.9})
    np.testing.assert_array_equal(observations.FootContact(sensors=TOUCH, threshold=2.0)(context), [1, 0])


def test_foot_contact_when_force_is_at_the_threshold_is_0():
    context = make_context(sensors={"left_touch": 1.0})
    np.testing.assert_array_equal(observations.FootContact(sensors=TOUCH)(context), [0, 0])


def test_command_value_is_the_command_itself():
    context = make_context(commands=asking(forward=0.5, leftward=-0.25, yaw_rate=2.0))
    np.testing.assert_array_equal(observations.CommandValue(command="velocity")(context), [0.5, -0.25, 2.0])


def test_last_action_is_the_one_that_led_here():
    context = make_context(action=jnp.array([0.5, -2.0]), previous_action=jnp.array([9.0, 9.0]))
    np.testing.assert_array_equal(observations.LastAction()(context), [0.5, -2.0])


@pytest.mark.parametrize(
    ("episode_step", "expected"),
    # A turn of 0.8 s takes 40 steps of 0.02 s.
    [(0, [0, 1]), (10, [1, 0]), (20, [0, -1]), (30, [-1, 0]), (40, [0, 1])],
)
def test_phase_clock_when_a_quarter_of_the_period_has_passed_has_made_a_quarter_turn(episode_step, expected):
    clock_2 = observations.PhaseClock(period_s=0.8)(make_context(episode_step=jnp.int32(episode_step)))
    np.testing.assert_allclose(clock_2, expected, atol=1e-5)


# The base in the world.


def test_base_position_is_that_from_the_origin():
    context = make_context(ground_position=(1.5, -2), height=0.4, orientation=turned("z", 90))
    np.testing.assert_allclose(observations.BasePosition()(context), [1.5, -2, 0.4], rtol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_base_orientation_when_its_negative_is_the_same_rotation_has_w_above_zero(sign):
    # cos 45 and, about z, sin 45
    context = make_context(orientation=sign * turned("z", 90))
    np.testing.assert_allclose(observations.BaseOrientation()(context), [np.sqrt(0.5), 0, 0, np.sqrt(0.5)], rtol=1e-6)


def test_base_linear_velocity_world_when_base_is_turned_is_as_mujoco_stores_it():
    context = make_context(orientation=turned("z", 90), lin_vel_world=(1, 2, 3))
    np.testing.assert_array_equal(observations.BaseLinearVelocityWorld()(context), [1, 2, 3])


def test_base_angular_velocity_world_when_base_faces_left_turns_its_axes():
    # The base's forward is the world's y, and its left the world's -x.
    context = make_context(orientation=turned("z", 90), ang_vel_body=(1, 2, 3))
    np.testing.assert_allclose(observations.BaseAngularVelocityWorld()(context), [-2, 1, 3], atol=1e-6)


def test_base_linear_acceleration_when_velocity_changes_is_the_change_per_second():
    # (0.3 - 0.1) / 0.02 forward; at the reset and while the velocity stays, nothing.
    at_speed = [make_context(lin_vel_world=(speed, 0, 0)) for speed in (0.1, 0.3, 0.3)]
    acceleration_t3 = values_over(observations.BaseLinearAcceleration(), *at_speed)
    np.testing.assert_allclose(acceleration_t3, [[0, 0, 0], [10, 0, 0], [0, 0, 0]], atol=1e-4)


def test_base_linear_acceleration_when_base_faces_left_is_in_the_base_frame():
    # 0.2 / 0.02 along the world's x, which is the base's right.
    at_speed = [make_context(orientation=turned("z", 90), lin_vel_world=(speed, 0, 0)) for speed in (0, 0.2)]
    acceleration_t3 = values_over(observations.BaseLinearAcceleration(), *at_speed)
    np.testing.assert_allclose(acceleration_t3[1], [0, -10, 0], atol=1e-4)


# Bodies, sites and the centre of mass.


def test_body_position_when_bodies_are_named_shows_these_in_this_order_seen_from_the_base():
    # The base faces the world's y: 0.1 to its left is -0.1 along x.
    xpos_b3 = [[9, 9, 9], [1, 2, 0.5], [0.9, 2, 0.4], [1.1, 2, 0.3]]
    context = make_context(ground_position=(1, 2), orientation=turned("z", 90), derived={"xpos": xpos_b3})
    position_b3 = observations.BodyPosition(bodies=("right_leg", "left_leg"))(context)
    np.testing.assert_allclose(position_b3, [[0, -0.1, -0.2], [0, 0.1, -0.1]], atol=1e-6)


def test_site_position_when_base_is_nose_down_is_seen_from_the_base():
    # Nose down by 90 degrees the base's forward points down: what is 0.2 below it is 0.2 in front.
    site_xpos_s3 = [[9, 9, 9], [9, 9, 9], [1, 2, 0.3]]
    context = make_context(ground_position=(1, 2), orientation=turned("y", 90), derived={"site_xpos": site_xpos_s3})
    position_s3 = observations.SitePosition(sites=("right_foot",))(context)
    np.testing.assert_allclose(position_s3, [[0.2, 0, 0]], atol=1e-6)


def test_body_and_site_position_when_mujoco_placed_them_are_those_of_the_mjcf_file():
    model = biped()
    data = mujoco.MjData(model.mj_model)
    data.qpos[:7] = [1, 2, 3, *turned("x", 40)]
    mujoco.mj_forward(model.mj_model, data)
    placed = {"xpos": data.xpos, "site_xpos": data.site_xpos}
    context = make_context(ground_position=(1, 2), height=3, orientation=turned("x", 40), derived=placed)
    # The leg hangs 0.1 m left of and below the trunk, the foot 0.35 m further down.
    leg_b3 = observations.BodyPosition(bodies=("left_leg",))(context)
    foot_s3 = observations.SitePosition(sites=("left_foot",))(context)
    np.testing.assert_allclose([leg_b3[0], foot_s3[0]], [[0, 0.1, -0.1], [0, 0.1, -0.45]], atol=1e-5)


def test_body_orientation_when_bodies_are_named_shows_these_in_this_order():
    xquat_b4 = np.stack([turned("x", degrees) for degrees in (0, 10, 20, 30)])
    context = make_context(derived={"xquat": xquat_b4})
    orientation_b4 = observations.BodyOrientation(bodies=("right_leg", "trunk"))(context)
    np.testing.assert_allclose(orientation_b4, [turned("x", 30), turned("x", 10)], rtol=1e-6)


def test_center_of_mass_position_when_base_faces_left_is_that_of_the_whole_robot_seen_from_the_base():
    # 0.1 along the world's y is 0.1 forward.
    subtree_com_b3 = [[9, 9, 9], [1, 2.1, 0.4], [9, 9, 9], [9, 9, 9]]  # world, trunk and all it carries, legs
    derived = {"subtree_com": subtree_com_b3}
    context = make_context(ground_position=(1, 2), orientation=turned("z", 90), derived=derived)
    np.testing.assert_allclose(observations.CenterOfMassPosition()(context), [0.1, 0, -0.1], atol=1e-6)


@pytest.mark.parametrize(
    ("term", "field", "num_components"),
    [(observations.CenterOfMassInertia(), "cinert", 10), (observations.CenterOfMassVelocity(), "cvel", 6)],
    ids=["inertia", "velocity"],
)
def test_center_of_mass_inertia_and_velocity_leave_the_world_out(term, field, num_components):
    field_bn = np.arange(4 * num_components).reshape(4, num_components)
    np.testing.assert_array_equal(term(make_context(derived={field: field_bn})), field_bn[1:])


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (observations.BodyPosition(bodies=("left_lag",)), r"no body 'left_lag'.*'left_leg'"),
        (observations.BodyOrientation(bodies=("left_lag",)), r"no body 'left_lag'.*'left_leg'"),
        (observations.SitePosition(sites=("left_fot",)), r"no site 'left_fot'.*'left_foot'"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, observations.AbstractObservation) else "",
)
def test_body_and_site_terms_when_name_is_unknown_name_the_near_misses(term, message):
    context = make_context(derived={field: np.zeros((4, 3)) for field in term.needs})
    with pytest.raises(ConfigError, match=message):
        term(context)


# Feet.


def test_foot_force_when_sensors_are_named_is_their_readings_in_this_order():
    context = make_context(sensors={"left_touch": 30, "right_touch": 0.5})
    np.testing.assert_array_equal(observations.FootForce(sensors=TOUCH[::-1])(context), [0.5, 30])


def test_foot_air_time_when_a_foot_is_up_counts_its_seconds_and_starts_anew_at_a_contact():
    # At the reset 0; then the left foot is up for two steps of 0.02 s, lands, and is up again; the right stays down.
    left_t = [0, 0, 0, 5, 0]
    contexts = [make_context(sensors={"left_touch": left, "right_touch": 5}) for left in left_t]
    air_time_t2 = values_over(observations.FootAirTime(sensors=TOUCH), *contexts)
    np.testing.assert_allclose(air_time_t2.T, [[0, 0.02, 0.04, 0, 0.02], [0, 0, 0, 0, 0]], rtol=1e-5)


def test_foot_air_time_when_force_is_at_the_threshold_counts_as_in_the_air():
    contexts = [make_context(sensors={"left_touch": 2.0, "right_touch": 2.1})] * 2
    air_time_t2 = values_over(observations.FootAirTime(sensors=TOUCH, threshold=2.0), *contexts)
    np.testing.assert_allclose(air_time_t2[1], [0.02, 0], rtol=1e-5)


# Time.


@pytest.mark.parametrize(("episode_step", "expected"), [(0, 1.0), (10, 0.8), (50, 0.0)])
def test_time_left_when_steps_have_passed_is_the_limit_less_their_seconds(episode_step, expected):
    # 1 - 10 * 0.02 = 0.8; 50 steps of 0.02 s are the whole second.
    left = observations.TimeLeft(seconds=1.0)(make_context(episode_step=jnp.int32(episode_step)))
    np.testing.assert_allclose(left, expected, atol=1e-6)
