import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp.terminations import (
    BaseTilted,
    BaseTooFast,
    BaseTooHigh,
    BaseTooLow,
    Custom,
    FarFromStart,
    JointOutOfRange,
    JointTooFast,
    SensorAbove,
    TimeLimit,
    TooFar,
)
from tests.support.contexts import biped, make_context, turned


@pytest.mark.parametrize(("episode_step", "expected"), [(2, False), (3, True), (4, True)])
def test_time_limit_when_reached_ends_at_the_exact_step(episode_step, expected):
    # 0.06 s are 3 steps of 0.02 s.
    assert TimeLimit(seconds=0.06)(make_context(episode_step=jnp.int32(episode_step))) == expected


def test_time_limit_when_reached_truncates_and_a_fall_does_not():
    assert TimeLimit(seconds=1.0).truncates
    assert not BaseTooLow(height=0.3).truncates
    assert not BaseTilted().truncates


@pytest.mark.parametrize(("height", "expected"), [(0.29, True), (0.31, False)])
def test_base_too_low_when_below_the_height_ends(height, expected):
    assert BaseTooLow(height=0.3)(make_context(height=height)) == expected


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(
    ("degrees", "expected"), [(0, False), (44, False), (-44, False), (46, True), (-46, True), (180, True)]
)
def test_base_tilted_when_it_leans_further_than_allowed_ends(axis, degrees, expected):
    # pi / 4 is 45 degrees.
    assert BaseTilted(max_tilt=np.pi / 4)(make_context(orientation=turned(axis, degrees))) == expected


def test_base_tilted_when_base_has_turned_around_does_not_end():
    assert not BaseTilted()(make_context(orientation=turned("z", 180)))


@pytest.mark.parametrize(
    ("lin_vel_world", "ang_vel_body", "expected"),
    # Lengths of 5 m/s and of 3 rad/s.
    [((3, 0, -4), (0, 0, 0), True), ((0, 0, 0), (2, -2, 1), True), ((3, 0, -3.9), (2, -2, 0.9), False)],
)
def test_base_too_fast_when_it_moves_or_turns_faster_than_allowed_ends(lin_vel_world, ang_vel_body, expected):
    context = make_context(lin_vel_world=lin_vel_world, ang_vel_body=ang_vel_body)
    assert BaseTooFast(max_lin_vel=4.99, max_ang_vel=2.99)(context) == expected


@pytest.mark.parametrize(("distance", "expected"), [(4.9, True), (5.1, False)])
def test_too_far_when_the_base_is_farther_than_the_distance_ends_whatever_its_height(distance, expected):
    # sqrt(3^2 + 4^2) = 5
    context = make_context(ground_position=(3, -4), height=99)
    assert TooFar(distance=distance)(context) == expected


@pytest.mark.parametrize(("distance", "expected"), [(4.9, True), (5.1, False)])
def test_far_from_start_ends_at_a_distance_from_where_the_episode_began(distance, expected):
    term = FarFromStart(distance=distance)
    start = term.init(make_context(ground_position=(10, 10)))
    # sqrt(3^2 + 4^2) = 5
    assert term(make_context(ground_position=(13, 6), height=99, memory=start)) == expected
    assert term.truncates


def test_too_far_truncates_and_a_broken_rule_does_not():
    assert TooFar(distance=5.0).truncates
    assert not any(term.truncates for term in (BaseTooFast(), JointOutOfRange(), SensorAbove(sensor="gyro")))


@pytest.mark.parametrize(
    ("joint_pos_degrees", "expected"),
    # The range is -60 to 60 degrees, and 0.1 rad are 5.7.
    [((65, -65), False), ((66, 0), True), ((0, 66), True), ((-66, 0), True)],
)
def test_joint_out_of_range_when_a_joint_is_beyond_its_limits_by_more_than_the_margin_ends(joint_pos_degrees, expected):
    assert JointOutOfRange(margin=0.1)(make_context(joint_pos=np.radians(joint_pos_degrees))) == expected


def test_joint_out_of_range_when_joints_are_named_leaves_the_others_out():
    assert not JointOutOfRange(joints=("left_hip",))(make_context(joint_pos=np.radians((0, 90))))


def test_joint_out_of_range_when_a_joint_has_no_limits_does_not_end_for_it():
    assert not JointOutOfRange()(make_context(model=biped(free_right_hip=True), joint_pos=np.radians((0, 500))))


@pytest.mark.parametrize(("reading", "expected"), [((0, 0, 2.1), True), ((2, 2, 2), False), ((-9, -9, -9), False)])
def test_sensor_above_when_any_component_is_above_the_threshold_ends(reading, expected):
    assert SensorAbove(sensor="gyro", threshold=2.0)(make_context(sensors={"gyro": reading})) == expected


@pytest.mark.parametrize(("height", "expected"), [(1.1, True), (0.9, False)])
def test_base_too_high_when_above_the_height_ends(height, expected):
    assert BaseTooHigh(height=1.0)(make_context(height=height)) == expected


@pytest.mark.parametrize(("joint_vel", "expected"), [((0, -11), True), ((11, 0), True), ((9, -9), False)])
def test_joint_too_fast_when_a_joint_exceeds_the_limit_either_way_ends(joint_vel, expected):
    context = make_context(lin_vel_world=(99, 99, 99), joint_vel=joint_vel)
    assert JointTooFast(max_vel=10.0)(context) == expected


def test_joint_too_fast_when_joints_are_named_leaves_the_others_out():
    assert not JointTooFast(max_vel=10.0, joints=("left_hip",))(make_context(joint_vel=(0, 99)))


@pytest.mark.parametrize("truncates", [True, False])
def test_custom_when_given_a_function_ends_where_it_says_and_cuts_as_asked(truncates):
    term = Custom(lambda context: context.physics.qpos[2] > 1.0, truncates=truncates, needs=("xpos",))
    assert (term.truncates, term.needs) == (truncates, ("xpos",))
    assert [bool(term(make_context(height=height))) for height in (0.9, 1.1)] == [False, True]
