"""Commands of headings, gaits, poses and places, and how fast a velocity command may change."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp.commands import CartesianCommand, GaitCommand, JointPoseCommand, RollPitchCommand, VelocityCommand
from tests.support.contexts import biped, draws, make_context, turned, values_over

UNIT = (0.0, 1.0)


def velocity_command(**fields: Any) -> VelocityCommand:
    """A velocity command that always moves and is drawn once, but for what is given."""
    steady = {"leftward": (0.0, 0.0), "yaw_rate": (-0.5, 0.5), "resample_s": (9.0, 9.0), "standing_fraction": 0.0}
    return VelocityCommand(**(steady | fields))


def heading_command(heading: float, **fields: Any) -> VelocityCommand:
    """Asks to walk at 1 m/s towards a heading, in degrees."""
    radians = float(np.radians(heading))
    asked = {"forward": (1.0, 1.0), "heading": (radians, radians), "heading_fraction": 1.0}
    return velocity_command(**(asked | fields))


def first_commands(term):
    """The commands that 300 episodes start with."""
    return np.asarray(draws(lambda key: term.init(make_context(key=key))[0]))


@pytest.mark.parametrize(
    ("facing", "heading", "expected"),
    # 0.5/s times 30 degrees = 0.524 rad is 0.262 rad/s; of 90 degrees the yaw rate's limit; the short way round.
    [(0, 30, 0.2618), (30, 0, -0.2618), (0, 90, 0.5), (170, -170, 0.1745)],
)
def test_velocity_command_when_a_heading_is_asked_turns_in_proportion_to_its_error(facing, heading, expected):
    context = make_context(orientation=turned("z", facing))
    command_3 = values_over(heading_command(heading), context)[0]
    np.testing.assert_allclose(command_3, [1, 0, expected], atol=1e-4)


def test_velocity_command_when_the_base_turns_asks_for_less():
    contexts = [make_context(orientation=turned("z", facing)) for facing in (0, 15, 30)]
    # 0.5/s times 30, 15 and 0 degrees.
    np.testing.assert_allclose(values_over(heading_command(30), *contexts)[:, 2], [0.2618, 0.1309, 0], atol=1e-4)


def test_velocity_command_when_some_have_headings_leaves_the_other_draws_as_they_are():
    without, some = (velocity_command(heading_fraction=share) for share in (0.0, 0.3))
    without_n3, some_n3 = first_commands(without), first_commands(some)
    np.testing.assert_array_equal(some_n3[:, :2], without_n3[:, :2])
    # The standard error is sqrt(0.3 * 0.7 / 300) = 0.026.
    assert abs((some_n3[:, 2] != without_n3[:, 2]).mean() - 0.3) < 0.1


def test_velocity_command_when_it_asks_to_stand_asks_for_no_heading():
    np.testing.assert_array_equal(first_commands(heading_command(90, standing_fraction=1.0)), np.zeros((300, 3)))


def test_velocity_command_when_its_acceleration_is_limited_starts_from_standing_and_reaches_the_target():
    # 20 m/s^2 are 0.4 m/s a step of 0.02 s; 5 rad/s^2 are 0.1 rad/s.
    term = velocity_command(
        forward=(1.0, 1.0), yaw_rate=(-0.25, -0.25), max_lin_acceleration=20.0, max_yaw_acceleration=5.0
    )
    command_t3 = values_over(term, *[make_context()] * 4)
    expected_t3 = [[0.4, 0, -0.1], [0.8, 0, -0.2], [1, 0, -0.25], [1, 0, -0.25]]
    np.testing.assert_allclose(command_t3, expected_t3, rtol=1e-5, atol=1e-6)


def test_velocity_command_when_its_acceleration_is_limited_moves_straight_to_the_target():
    # (0.3, 0.4) is 0.5 away: of that a step of 0.1 is (0.06, 0.08).
    term = velocity_command(forward=(0.3, 0.3), leftward=(0.4, 0.4), max_lin_acceleration=5.0)
    np.testing.assert_allclose(values_over(term, make_context())[0, :2], [0.06, 0.08], rtol=1e-5)


def test_velocity_command_when_redrawn_goes_on_from_the_command_in_force():
    term = VelocityCommand(forward=(-1.0, 1.0), resample_s=(0.06, 0.06), max_lin_acceleration=1.0)
    command_t3 = values_over(term, *[make_context(key=jax.random.key(t)) for t in range(30)])
    # 1 m/s^2 for 0.02 s.
    assert np.linalg.norm(np.diff(command_t3[:, :2], axis=0), axis=1).max() < 0.02 + 1e-5


def within(drawn_nd, low_d, high_d):
    """Whether 300 draws fill a box: one within a twentieth of each end, but for a chance of 2e-7."""
    low_d, high_d = np.array(low_d), np.array(high_d)
    assert ((drawn_nd >= low_d - 1e-6) & (drawn_nd <= high_d + 1e-6)).all()
    margin = 0.05 * (high_d - low_d) + 1e-6
    assert (drawn_nd.min(0) <= low_d + margin).all()
    assert (drawn_nd.max(0) >= high_d - margin).all()


def test_roll_pitch_command_when_drawn_fills_its_ranges():
    within(first_commands(RollPitchCommand(roll=(-0.1, 0.2), pitch=(0.0, 0.3))), [-0.1, 0.0], [0.2, 0.3])


def test_roll_pitch_command_errors_are_the_base_angles_less_the_command():
    # Nose down by 20 degrees, asked for 5 to the right and 30 nose down.
    context = make_context(orientation=turned("y", 20))
    errors = RollPitchCommand().errors(context, jnp.radians(jnp.array([5.0, 30.0])))
    np.testing.assert_allclose([errors["roll_rad"], errors["pitch_rad"]], np.radians([5, 10]), rtol=1e-4)


def test_cartesian_command_when_drawn_fills_its_box():
    term = CartesianCommand(x=(0.1, 0.3), y=(-0.2, 0.2), z=(0.0, 0.4), site="left_foot")
    within(first_commands(term), [0.1, -0.2, 0.0], [0.3, 0.2, 0.4])


@pytest.mark.parametrize(
    ("named", "field", "index"), [({"site": "left_foot"}, "site_xpos", 1), ({"body": "left_leg"}, "xpos", 2)]
)
def test_cartesian_command_errors_are_distances_in_the_base_frame(named, field, index):
    # Facing left: 0.3 in front of the base is 0.3 along the world's y. Asked: 0.3 in front and 0.4 to the left.
    position_n3 = np.zeros((4, 3))
    position_n3[index] = [1, 2.3, 0.5]
    term = CartesianCommand(x=UNIT, y=UNIT, z=UNIT, **named)
    context = make_context(ground_position=(1, 2), orientation=turned("z", 90), derived={field: position_n3})
    assert term.needs == (field,)
    np.testing.assert_allclose(term.errors(context, jnp.array([0.3, 0.4, 0.0]))["position_m"], 0.4, rtol=1e-5)


def test_joint_pose_command_when_the_fraction_is_one_fills_the_joints_limits():
    # 60 degrees either way.
    within(first_commands(JointPoseCommand(fraction=1.0)), [-np.pi / 3] * 2, [np.pi / 3] * 2)


def test_joint_pose_command_when_the_fraction_is_a_half_goes_half_way_from_the_default_pose_to_the_limits():
    # By default the right hip is at -0.3 rad: half way from there to -1.047 and to 1.047 are -0.674 and 0.374.
    term = JointPoseCommand(joints=("right_hip",), fraction=0.5)
    drawn_n1 = draws(lambda key: term.init(make_context(model=biped(knock_kneed=True), key=key))[0])
    within(np.asarray(drawn_n1), [-0.6736], [0.3736])


def test_joint_pose_command_errors_are_the_mean_distance_of_its_joints():
    # |0.1 - 0.3| and |0.2 - 0.0| are both 0.2; of the right hip alone, |0.2 + 0.2|.
    context = make_context(joint_pos=(0.1, 0.2))
    both = JointPoseCommand().errors(context, jnp.array([0.3, 0.0]))
    right = JointPoseCommand(joints=("right_hip",)).errors(context, jnp.array([-0.2]))
    np.testing.assert_allclose([both["joint_position_rad"], right["joint_position_rad"]], [0.2, 0.4], rtol=1e-5)


def test_joint_pose_command_when_a_joint_has_no_limits_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match=r"limits of joints, but right_hip has none"):
        JointPoseCommand().init(make_context(model=biped(free_right_hip=True)))


def test_gait_command_when_drawn_fills_its_ranges_in_their_order():
    term = GaitCommand(frequency=(1.0, 3.0), duty=(0.4, 0.6), offsets=((0.5, 0.5), (0.0, 0.25)))
    within(first_commands(term), [1.0, 0.4, 0.5, 0.0], [3.0, 0.6, 0.5, 0.25])


@pytest.mark.parametrize(
    "term",
    [
        RollPitchCommand(resample_s=(0.06, 0.06)),
        GaitCommand(resample_s=(0.06, 0.06)),
        JointPoseCommand(resample_s=(0.06, 0.06)),
        CartesianCommand(x=UNIT, y=UNIT, z=UNIT, body="left_leg", resample_s=(0.06, 0.06)),
    ],
    ids=lambda term: type(term).__name__,
)
def test_commands_when_their_time_is_over_are_drawn_anew(term):
    # 0.06 s are 3 steps of 0.02 s.
    command_tn = values_over(term, *[make_context(key=jax.random.key(t)) for t in range(8)])
    assert (np.flatnonzero(np.abs(np.diff(command_tn, axis=0)).max(axis=1)) + 1).tolist() == [3, 6]


@pytest.mark.parametrize(
    "term",
    [VelocityCommand(), RollPitchCommand(), GaitCommand(), CartesianCommand(x=UNIT, y=UNIT, z=UNIT, body="trunk")],
    ids=lambda term: type(term).__name__,
)
def test_commands_tell_the_range_of_each_of_their_numbers(term):
    command_n = values_over(term, make_context())[0]
    low_n, high_n = np.array([*term.ranges().values()]).T
    assert low_n.shape == command_n.shape
    # A velocity command may also ask to stand.
    assert ((command_n >= np.minimum(low_n, 0)) & (command_n <= high_n)).all()
