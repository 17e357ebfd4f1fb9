"""Commands: their ranges, when they are drawn anew, their errors, and how fast a velocity command may change."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp.commands import (
    CartesianCommand,
    GaitCommand,
    HeadingCommand,
    HeightCommand,
    JointPoseCommand,
    RollPitchCommand,
    VelocityCommand,
)
from tests.support.contexts import biped, draws, make_context, turned, values_over

UNIT = (0.0, 1.0)
CARTESIAN = {"x": UNIT, "y": UNIT, "z": UNIT}


def velocity_command(**fields: Any) -> VelocityCommand:
    """A velocity command that always moves and is drawn once, but for what is given."""
    steady = {"leftward": (0.0, 0.0), "yaw_rate": (-0.5, 0.5), "resample_s": (9.0, 9.0), "standing_fraction": 0.0}
    return VelocityCommand(**(steady | fields))


def heading_command(heading: float, **fields: Any) -> VelocityCommand:
    """Asks to walk at 1 m/s towards a heading, in degrees."""
    radians = float(np.radians(heading))
    asked = {"forward": (1.0, 1.0), "heading": (radians, radians), "heading_fraction": 1.0}
    return velocity_command(**(asked | fields))


def first_commands(term, num_draws=300, **context):
    """The commands that many episodes start with."""
    return np.asarray(draws(lambda key: term.init(make_context(key=key, **context))[0], num_draws))


def commands_over(term, num_steps):
    """The command at the start of an episode and after each step."""
    return values_over(term, *[make_context(key=jax.random.key(t)) for t in range(num_steps + 1)])


def changes_of(commands_tn):
    """Numbers of the steps, from 1, that brought another command."""
    return (np.flatnonzero(np.abs(np.diff(commands_tn, axis=0)).max(axis=1)) + 1).tolist()


JOINT = np.pi / 3
"""The limit of the hips either way, in rad: 60 degrees."""
# fmt: off
RANGES = {
    "velocity": (VelocityCommand(forward=(0.2, 1.2), leftward=(-0.3, 0.1), yaw_rate=(-1.5, 0.5), standing_fraction=0.0),
                 [0.2, -0.3, -1.5], [1.2, 0.1, 0.5]),
    "heading": (HeadingCommand(), [-np.pi], [np.pi]),
    "narrow heading": (HeadingCommand(heading=(0.5, 1.0)), [0.5], [1.0]),
    "height": (HeightCommand(height=(0.3, 0.4)), [0.3], [0.4]),
    "roll and pitch": (RollPitchCommand(roll=(-0.1, 0.2), pitch=(0.0, 0.3)), [-0.1, 0.0], [0.2, 0.3]),
    "place": (CartesianCommand(x=(0.1, 0.3), y=(-0.2, 0.2), z=(0.0, 0.4), site="left_foot"),
              [0.1, -0.2, 0.0], [0.3, 0.2, 0.4]),
    "joints up to their limits": (JointPoseCommand(fraction=1.0), [-JOINT] * 2, [JOINT] * 2),
    # By default the right hip is at -0.3 rad: half way from there to -1.047 and to 1.047 are -0.674 and 0.374.
    "joints half way from the default pose to the limits": (
        JointPoseCommand(joints=("right_hip",), fraction=0.5), [-0.6736], [0.3736], True),
    "gait, in the order of its fields": (
        GaitCommand(frequency=(1.0, 3.0), duty=(0.4, 0.6), offsets=((0.5, 0.5), (0.0, 0.25))),
        [1.0, 0.4, 0.5, 0.0], [3.0, 0.6, 0.5, 0.25]),
}
# fmt: on


@pytest.mark.parametrize(("term", "low_d", "high_d", "knees"), [(*x, False)[:4] for x in RANGES.values()], ids=RANGES)
def test_command_when_drawn_fills_its_ranges_and_stays_within(term, low_d, high_d, knees):
    drawn_nd = first_commands(term, model=biped(knock_kneed=knees))
    low_d, high_d = np.array(low_d, np.float32), np.array(high_d, np.float32)
    assert drawn_nd.shape == (300, len(low_d))
    assert ((drawn_nd >= low_d) & (drawn_nd <= high_d)).all()
    # Of 300 draws one is within a twentieth of each end, but for a chance of 0.95^300 = 2e-7.
    margin = 0.05 * (high_d - low_d)
    assert (drawn_nd.min(0) <= low_d + margin).all()
    assert (drawn_nd.max(0) >= high_d - margin).all()


SOON = {"resample_s": (0.06, 0.06)}


@pytest.mark.parametrize(
    ("term", "num_steps", "expected"),
    [
        # 0.095 s are nearest to five steps of 0.02 s.
        (VelocityCommand(resample_s=(0.095, 0.095), standing_fraction=0.0), 14, [5, 10]),
        (VelocityCommand(resample_s=(0.2, 0.2), standing_fraction=0.0), 25, [10, 20]),
        # 0.06 s are 3 steps.
        (HeadingCommand(**SOON), 10, [3, 6, 9]),
        (HeightCommand(height=(0.3, 0.4), **SOON), 10, [3, 6, 9]),
        (RollPitchCommand(**SOON), 7, [3, 6]),
        (GaitCommand(**SOON), 7, [3, 6]),
        (JointPoseCommand(**SOON), 7, [3, 6]),
        (CartesianCommand(**CARTESIAN, body="left_leg", **SOON), 7, [3, 6]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_command_when_its_time_is_over_is_drawn_anew(term, num_steps, expected):
    assert changes_of(commands_over(term, num_steps)) == expected


# Facing left, 0.3 in front of the base is 0.3 along the world's y. Asked: 0.3 in front and 0.4 to the left.
SEEN = {"ground_position": (1, 2), "orientation": turned("z", 90)}
IN_FRONT = [1, 2.3, 0.5]
# fmt: off
ERRORS = {
    # Facing left and moving along the world's y axis at 0.5 m/s: forward. Asked: 0.2 forward, 0.4 leftward.
    # sqrt(0.3^2 + 0.4^2)
    "velocity: in the heading frame": (
        VelocityCommand(), [0.2, 0.4, -0.1], {"lin_vel_m_s": 0.5, "yaw_rate_rad_s": 0.4},
        {"orientation": turned("z", 90), "lin_vel_world": (0.0, 0.5, 0.0), "ang_vel_body": (0.0, 0.0, 0.3)}),
    "heading: the short way round": (
        HeadingCommand(), np.radians([-170]), {"heading_rad": np.radians(20)}, {"orientation": turned("z", 170)}),
    "height": (HeightCommand(height=(0.4, 0.6)), [0.6], {"height_m": 0.1}, {"height": 0.5}),
    # Nose down by 20 degrees, asked for 5 to the right and 30 nose down.
    "roll and pitch: the base's less the command's": (
        RollPitchCommand(), np.radians([5, 30]), {"roll_rad": np.radians(5), "pitch_rad": np.radians(10)},
        {"orientation": turned("y", 20)}),
    "place of a site: in the base's frame": (
        CartesianCommand(**CARTESIAN, site="left_foot"), [0.3, 0.4, 0.0], {"position_m": 0.4},
        SEEN | {"derived": {"site_xpos": [[0] * 3, IN_FRONT, [0] * 3, [0] * 3]}}),
    "place of a body: in the base's frame": (
        CartesianCommand(**CARTESIAN, body="left_leg"), [0.3, 0.4, 0.0], {"position_m": 0.4},
        SEEN | {"derived": {"xpos": [[0] * 3, [0] * 3, IN_FRONT, [0] * 3]}}),
    # |0.1 - 0.3| and |0.2 - 0.0| are both 0.2; of the right hip alone, |0.2 + 0.2|.
    "joints: the mean": (JointPoseCommand(), [0.3, 0.0], {"joint_position_rad": 0.2}, {"joint_pos": (0.1, 0.2)}),
    "joints: named ones alone": (JointPoseCommand(joints=("right_hip",)), [-0.2], {"joint_position_rad": 0.4},
                                 {"joint_pos": (0.1, 0.2)}),
}
# fmt: on


@pytest.mark.parametrize(("term", "command", "expected", "context"), ERRORS.values(), ids=ERRORS)
def test_command_errors(term, command, expected, context):
    errors = term.errors(make_context(**context), jnp.array(command, jnp.float32))
    if isinstance(term, CartesianCommand):
        assert term.needs == tuple(context["derived"])
    for name, value in expected.items():
        np.testing.assert_allclose(errors[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "term",
    [VelocityCommand(), RollPitchCommand(), GaitCommand(), CartesianCommand(**CARTESIAN, body="trunk")],
    ids=lambda term: type(term).__name__,
)
def test_commands_tell_the_range_of_each_of_their_numbers(term):
    command_n = values_over(term, make_context())[0]
    low_n, high_n = np.array([*term.ranges().values()]).T
    assert low_n.shape == command_n.shape
    # A velocity command may also ask to stand.
    assert ((command_n >= np.minimum(low_n, 0)) & (command_n <= high_n)).all()


def test_joint_pose_command_when_a_joint_has_no_limits_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match=r"limits of joints, but right_hip has none"):
        JointPoseCommand().init(make_context(model=biped(free_right_hip=True)))


def test_velocity_command_when_drawn_draws_its_components_apart():
    term = VelocityCommand(forward=(-1.0, 1.0), leftward=(-1.0, 1.0), yaw_rate=(-1.0, 1.0), standing_fraction=0.0)
    correlation_33 = np.corrcoef(first_commands(term).T)
    # The standard error of a correlation over 300 draws is 1 / sqrt(300) = 0.06.
    assert (np.abs(correlation_33 - np.eye(3)) < 0.25).all()


# The standard error of 0.3 is sqrt(0.3 * 0.7 / 2000) = 0.01.
@pytest.mark.parametrize(("fraction", "num_draws", "error"), [(0.0, 300, 0), (1.0, 300, 0), (0.3, 2000, 0.05)])
def test_velocity_command_asks_the_given_fraction_to_stand(fraction, num_draws, error):
    stands_n = (first_commands(VelocityCommand(standing_fraction=fraction), num_draws) == 0).all(axis=1)
    assert abs(stands_n.mean() - fraction) <= error


def test_velocity_command_when_resampled_within_a_range_lasts_for_times_in_it():
    # 0.05 to 0.13 s, rounded to whole steps of 0.02 s: 3 to 6.
    commands_t3 = commands_over(VelocityCommand(resample_s=(0.05, 0.13), standing_fraction=0.0), 120)
    assert set(np.diff(changes_of(commands_t3))) == {3, 4, 5, 6}


def test_velocity_command_when_resampled_may_ask_to_stand_and_then_to_walk():
    commands_t3 = commands_over(VelocityCommand(resample_s=(0.01, 0.01), standing_fraction=0.5), 40)
    assert 0 < (commands_t3 == 0).all(axis=1).sum() < 41


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
    without_n3, some_n3 = (first_commands(velocity_command(heading_fraction=share)) for share in (0.0, 0.3))
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
    expected_t3 = [[0.4, 0, -0.1], [0.8, 0, -0.2], [1, 0, -0.25], [1, 0, -0.25]]
    np.testing.assert_allclose(values_over(term, *[make_context()] * 4), expected_t3, rtol=1e-5, atol=1e-6)


def test_velocity_command_when_its_acceleration_is_limited_moves_straight_to_the_target():
    # (0.3, 0.4) is 0.5 away: of that a step of 0.1 is (0.06, 0.08).
    term = velocity_command(forward=(0.3, 0.3), leftward=(0.4, 0.4), max_lin_acceleration=5.0)
    np.testing.assert_allclose(values_over(term, make_context())[0, :2], [0.06, 0.08], rtol=1e-5)


def test_velocity_command_when_redrawn_goes_on_from_the_command_in_force():
    term = VelocityCommand(forward=(-1.0, 1.0), resample_s=(0.06, 0.06), max_lin_acceleration=1.0)
    # 1 m/s^2 for 0.02 s.
    assert np.linalg.norm(np.diff(commands_over(term, 29)[:, :2], axis=0), axis=1).max() < 0.02 + 1e-5
