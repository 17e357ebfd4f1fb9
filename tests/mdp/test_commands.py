import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp.commands import HeadingCommand, HeightCommand, VelocityCommand
from tests.support.contexts import draws, make_context, turned


def command_of(term):
    """The command that an episode starts with, by the episode's key."""
    return lambda key: term.init(make_context(key=key))[0]


def commands_over(term, num_steps):
    """The command at the start of an episode and after each step."""
    context = make_context(key=jax.random.key(0))
    memory = term.init(context)
    commands = [term(dataclasses.replace(context, memory=memory))]
    for t in range(num_steps):
        context = make_context(key=jax.random.key(1 + t), memory=memory)
        memory = term.update(context)
        commands.append(term(dataclasses.replace(context, memory=memory)))
    return np.stack(commands)


def changes_of(commands_tn):
    """Numbers of the steps, from 1, that brought another command."""
    return (np.flatnonzero(np.abs(np.diff(commands_tn, axis=0)).max(axis=1)) + 1).tolist()


def test_velocity_command_when_drawn_fills_its_ranges_and_stays_within():
    low, high = np.array([0.2, -0.3, -1.5]), np.array([1.2, 0.1, 0.5])
    term = VelocityCommand(forward=(0.2, 1.2), leftward=(-0.3, 0.1), yaw_rate=(-1.5, 0.5), standing_fraction=0.0)
    drawn_n3 = draws(command_of(term))
    assert ((drawn_n3 >= low) & (drawn_n3 <= high)).all()
    # Of 300 draws one is within a twentieth of each end; that none is has a chance of 0.95^300 = 2e-7.
    assert (drawn_n3.min(0) < low + 0.05 * (high - low)).all()
    assert (drawn_n3.max(0) > high - 0.05 * (high - low)).all()


def test_velocity_command_when_drawn_draws_its_components_apart():
    term = VelocityCommand(forward=(-1.0, 1.0), leftward=(-1.0, 1.0), yaw_rate=(-1.0, 1.0), standing_fraction=0.0)
    correlation_33 = np.corrcoef(draws(command_of(term)).T)
    # The standard error of a correlation over 300 draws is 1 / sqrt(300) = 0.06.
    assert (np.abs(correlation_33 - np.eye(3)) < 0.25).all()


@pytest.mark.parametrize(("standing_fraction", "expected"), [(0.0, 0), (1.0, 300)])
def test_velocity_command_when_standing_is_certain_or_out_of_the_question_obeys(standing_fraction, expected):
    drawn_n3 = draws(command_of(VelocityCommand(standing_fraction=standing_fraction)))
    assert (drawn_n3 == 0).all(axis=1).sum() == expected


def test_velocity_command_when_some_stand_asks_the_given_fraction():
    drawn_n3 = draws(command_of(VelocityCommand(standing_fraction=0.3)), 2000)
    # The standard error is sqrt(0.3 * 0.7 / 2000) = 0.01.
    assert abs((drawn_n3 == 0).all(axis=1).mean() - 0.3) < 0.05


def test_velocity_command_when_its_time_is_over_is_drawn_anew():
    # 0.095 s are nearest to five steps of 0.02 s: the fifth brings a new one, and so does the fifth after that.
    commands_t3 = commands_over(VelocityCommand(resample_s=(0.095, 0.095), standing_fraction=0.0), 14)
    changes = np.flatnonzero(np.abs(np.diff(commands_t3, axis=0)).max(axis=1)) + 1
    np.testing.assert_array_equal(changes, [5, 10])


def test_velocity_command_when_resampled_within_a_range_lasts_for_times_in_it():
    # 0.05 to 0.13 s, rounded to whole steps of 0.02 s: 3 to 6.
    commands_t3 = commands_over(VelocityCommand(resample_s=(0.05, 0.13), standing_fraction=0.0), 120)
    changes = np.flatnonzero(np.abs(np.diff(commands_t3, axis=0)).max(axis=1)) + 1
    assert set(np.diff(changes)) == {3, 4, 5, 6}


def test_velocity_command_when_resampled_may_ask_to_stand_and_then_to_walk():
    commands_t3 = commands_over(VelocityCommand(resample_s=(0.01, 0.01), standing_fraction=0.5), 40)
    assert 0 < (commands_t3 == 0).all(axis=1).sum() < 41


def test_velocity_command_when_its_time_is_whole_steps_is_drawn_anew_after_these():
    # 0.2 s are 10 steps of 0.02 s.
    commands_t3 = commands_over(VelocityCommand(resample_s=(0.2, 0.2), standing_fraction=0.0), 25)
    assert changes_of(commands_t3) == [10, 20]


@pytest.mark.parametrize(
    ("term", "low", "high"),
    [
        (HeadingCommand(), -np.pi, np.pi),
        (HeadingCommand(heading=(0.5, 1.0)), 0.5, 1.0),
        (HeightCommand(height=(0.3, 0.4)), 0.3, 0.4),
    ],
    ids=["heading", "narrow_heading", "height"],
)
def test_posture_commands_when_drawn_fill_their_range_and_stay_within(term, low, high):
    drawn_n1 = draws(command_of(term))
    assert drawn_n1.shape == (300, 1)
    assert ((drawn_n1 >= low - 1e-6) & (drawn_n1 <= high + 1e-6)).all()
    # Of 300 draws one is within a twentieth of each end, but for a chance of 2e-7.
    np.testing.assert_allclose([drawn_n1.min(), drawn_n1.max()], [low, high], atol=0.05 * (high - low))


@pytest.mark.parametrize(
    "term",
    [HeadingCommand(resample_s=(0.06, 0.06)), HeightCommand(height=(0.3, 0.4), resample_s=(0.06, 0.06))],
    ids=["heading", "height"],
)
def test_posture_commands_when_their_time_is_over_are_drawn_anew(term):
    # 0.06 s are 3 steps of 0.02 s.
    assert changes_of(commands_over(term, 10)) == [3, 6, 9]


def test_velocity_command_errors_are_in_the_heading_frame():
    # Facing left and moving along the world's y axis at 0.5 m/s: forward. Asked: 0.2 forward, 0.4 leftward.
    context = make_context(orientation=turned("z", 90), lin_vel_world=(0.0, 0.5, 0.0), ang_vel_body=(0.0, 0.0, 0.3))
    errors = VelocityCommand().errors(context, jnp.array([0.2, 0.4, -0.1]))
    np.testing.assert_allclose(errors["lin_vel_m_s"], 0.5, rtol=1e-5)  # sqrt(0.3^2 + 0.4^2)
    np.testing.assert_allclose(errors["yaw_rate_rad_s"], 0.4, rtol=1e-5)


def test_heading_and_height_command_errors_are_distances_the_short_way_round():
    context = make_context(orientation=turned("z", 170), height=0.5)
    errors = HeadingCommand().errors(context, jnp.array([np.radians(-170)]))
    np.testing.assert_allclose(errors["heading_rad"], np.radians(20), rtol=1e-4)
    errors = HeightCommand(height=(0.4, 0.6)).errors(context, jnp.array([0.6]))
    np.testing.assert_allclose(errors["height_m"], 0.1, rtol=1e-5)
