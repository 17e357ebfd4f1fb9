import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp import observations
from ksim.types import ConfigError
from tests.mdp.contexts import TOUCH, asking, biped, make_context, turned


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
