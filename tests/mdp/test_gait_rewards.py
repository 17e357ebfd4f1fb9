import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.physics import compile_model
from tests.support.contexts import DT, TOUCH, asking, feet, make_context, turned, values_over
from tests.support.robots import biped_spec

WALK, STAND = asking(forward=0.5), asking()
SITES = ("left_foot", "right_foot")
# The clock turns in 40 steps of 0.02 s.
CLOCK = {"command": "velocity", "period_s": 0.8, "duty": 0.5}


def site_positions(left, right):
    """Positions of the biped's sites, of which the first is the IMU."""
    return {"site_xpos": [[0, 0, 9], left, right]}


def at(episode_step, **context):
    return make_context(commands=context.pop("commands", WALK), episode_step=jnp.int32(episode_step), **context)


# Feet that follow a clock.


@pytest.mark.parametrize(("left", "right", "expected"), [(True, True, 1.0), (True, False, 0.5), (False, False, 0.0)])
def test_feet_phase_when_offsets_are_equal_has_feet_down_together(left, right, expected):
    # After a quarter turn both have phase 0.25.
    term = rewards.FeetPhase(sensors=TOUCH, offsets=(0.0, 0.0), **CLOCK)
    assert term(at(10, sensors=feet(left, right))) == expected


def test_feet_phase_when_four_feet_trot_has_diagonal_ones_down_together():
    # After a quarter turn: phases 0.25, 0.75, 0.75, 0.25.
    term = rewards.FeetPhase(
        sensors=("left_touch", "right_touch", "right_touch", "left_touch"), offsets=(0.0, 0.5, 0.5, 0.0), **CLOCK
    )
    assert term(at(10, sensors=feet(left=True, right=False))) == 1.0


def test_feet_phase_force_when_the_swinging_foot_presses_by_std_costs_half_of_a_gaussian():
    # After a quarter turn the left foot is in the middle of its stance and the right of its swing: 1 - exp(-1/2) of
    # one of two feet. Edges are five standard deviations away.
    term = rewards.FeetPhaseForce(sensors=TOUCH, std=50.0, edge_std=0.05, **CLOCK)
    paid = term(at(10, sensors={"left_touch": 300, "right_touch": 50}))
    np.testing.assert_allclose(paid, (1 - np.exp(-0.5)) / 2, rtol=1e-4)


def test_feet_phase_force_when_a_swing_is_about_to_end_weights_by_half():
    # After half a turn the right foot's stance begins, and the left's ends: both half.
    term = rewards.FeetPhaseForce(sensors=TOUCH, std=50.0, **CLOCK)
    paid = term(at(20, sensors={"left_touch": 0, "right_touch": 50}))
    np.testing.assert_allclose(paid, (1 - np.exp(-0.5)) / 4, rtol=1e-4)


def test_feet_phase_force_when_asked_to_stand_is_0():
    term = rewards.FeetPhaseForce(sensors=TOUCH, **CLOCK)
    assert term(at(10, sensors=feet(left=True, right=True), commands=STAND)) == 0.0


VELOCITY = rewards.FeetPhaseVelocity(sites=SITES, std=0.5, **CLOCK)


@pytest.mark.parametrize(
    ("commands", "expected"),
    # Only the left foot's stance counts while walking; both feet's while standing. Speeds of 0.5 and 1 are 1 and 2 std.
    [(WALK, (1 - np.exp(-0.5)) / 2), (STAND, (1 - np.exp(-0.5) + 1 - np.exp(-2.0)) / 2)],
)
def test_feet_phase_velocity_when_feet_slide_counts_those_that_should_stand(commands, expected):
    model = compile_model(biped_spec(), dt=0.004, ctrl_dt=DT, edits=[VELOCITY.edit_spec])
    velocities = {"ksim_left_foot_velocity": [0.3, 0.4, 7], "ksim_right_foot_velocity": [1, 0, 7]}
    paid = VELOCITY(at(10, model=model, sensors=velocities, commands=commands))
    np.testing.assert_allclose(paid, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("episode_step", "left", "right", "expected"),
    [
        # A quarter turn: the right foot is in the middle of its swing, at 0.02 + 0.08; the left stands and is free.
        (10, 0.5, 0.10, 0.0),
        (10, 0.5, 0.07, 0.03**2),
        # An eighth turn: the right foot is at a quarter of its swing, sin(pi / 4) = 0.7071 of 0.08.
        (5, 0.5, 0.02 + 0.08 * 0.70710678 + 0.01, 0.01**2),
        # Three quarters: now the left.
        (30, 0.13, 0.5, 0.03**2),
    ],
)
def test_foot_swing_height_when_a_foot_swings_is_off_from_half_a_sine(episode_step, left, right, expected):
    term = rewards.FootSwingHeight(sites=SITES, height=0.08, rest_height=0.02, **CLOCK)
    context = at(episode_step, derived=site_positions([0, 0, left], [0, 0, right]))
    np.testing.assert_allclose(term(context), expected, rtol=1e-3, atol=1e-9)


def test_foot_swing_height_when_asked_to_stand_is_0():
    term = rewards.FootSwingHeight(sites=SITES, **CLOCK)
    assert term(at(10, derived=site_positions([0, 0, 5], [0, 0, 5]), commands=STAND)) == 0.0


# Symmetry.


def symmetry_over(joint_pos_t2, commands=WALK, **arguments):
    # Half a turn is 2 steps.
    term = rewards.Symmetry(pairs=(("left_hip", "right_hip"),), command="velocity", period_s=0.08, **arguments)
    contexts = [at(t, joint_pos=joint_pos, commands=commands) for t, joint_pos in enumerate(joint_pos_t2)]
    return values_over(term, *contexts)


def test_symmetry_when_left_does_what_right_did_half_a_turn_ago_is_0():
    left_t, right_t = [0.1, 0.2, -0.3, 0.4, 0.1], [-0.3, 0.4, 0.1, 0.2, -0.3]
    np.testing.assert_allclose(symmetry_over(list(zip(left_t, right_t, strict=True))), 0.0, atol=1e-9)


def test_symmetry_when_it_is_not_so_sums_both_squared_differences_after_half_a_turn():
    # At step 2: left 0.3 - right 0.1 before = 0.2, right 0.0 - left 0.4 before = -0.4.
    paid_t = symmetry_over([(0.4, 0.1), (0.0, 0.0), (0.3, 0.0)])
    np.testing.assert_allclose(paid_t, [0, 0, 0.2**2 + 0.4**2], rtol=1e-5)


def test_symmetry_when_mirror_images_have_opposite_signs_compares_them_so():
    paid_t = symmetry_over([(0.4, 0.1), (0.0, 0.0), (-0.1, -0.4)], signs=(-1.0,))
    np.testing.assert_allclose(paid_t, 0.0, atol=1e-9)


def test_symmetry_when_asked_to_stand_is_0():
    np.testing.assert_array_equal(symmetry_over([(0.4, 0.1), (0, 0), (0.3, 0)], commands=STAND), 0.0)


# Landing and lifting.


def over_contacts(term, contacts_tf, commands=WALK, heights_tf=None):
    contexts = []
    for t, (left, right) in enumerate(contacts_tf):
        heights = heights_tf[t] if heights_tf else (0.0, 0.0)
        derived = site_positions([0, 0, heights[0]], [0, 0, heights[1]])
        contexts.append(make_context(sensors=feet(left, right), commands=commands, derived=derived))
    return values_over(term, *contexts)


def test_air_time_variance_when_only_one_foot_swings_is_that_of_its_time_and_0():
    # The left swings for 2 steps, 0.04 s: variance of (0.04, 0) is 0.02^2, from the landing on. Before that its stance
    # of one step ends: variance of (0.02, 0) is 0.01^2.
    paid_t = over_contacts(
        rewards.AirTimeVariance(sensors=TOUCH, command="velocity"), [(1, 1), (1, 1), (0, 1), (0, 1), (1, 1)]
    )
    np.testing.assert_allclose(paid_t, [0, 0, 0.01**2, 0.01**2, 0.02**2 + 0.01**2], rtol=1e-4)


def test_air_time_variance_when_a_swing_is_longer_than_max_counts_as_max():
    contacts_tf = [(0, 1)] * 30 + [(1, 1)]
    paid_t = over_contacts(rewards.AirTimeVariance(sensors=TOUCH, command="velocity", max_s=0.1), contacts_tf)
    np.testing.assert_allclose(paid_t[-1], 0.05**2, rtol=1e-4)


def test_air_time_variance_when_asked_to_stand_is_0():
    contacts_tf = [(0, 1)] * 30 + [(1, 1)]
    term = rewards.AirTimeVariance(sensors=TOUCH, command="velocity")
    assert over_contacts(term, contacts_tf, commands=STAND)[-1] == 0.0


@pytest.mark.parametrize(
    ("left", "right", "commands", "expected"),
    [(1, 0, WALK, 1), (0, 1, WALK, 1), (1, 1, WALK, 0), (0, 0, WALK, 0), (1, 1, STAND, 1), (1, 0, STAND, 0)],
)
def test_single_support_when_one_foot_is_down_is_1_and_when_standing_when_all_are(left, right, commands, expected):
    context = make_context(sensors=feet(left, right), commands=commands)
    assert rewards.SingleSupport(sensors=TOUCH, command="velocity")(context) == expected


APEX = rewards.FootApexHeight(sensors=TOUCH, sites=SITES, command="velocity", target=0.1)


@pytest.mark.parametrize(("commands", "paid"), [(WALK, 0.03**2 / DT), (STAND, 0.0)])
def test_foot_apex_height_when_a_foot_lands_pays_the_error_of_its_highest_point_once(commands, paid):
    # The left foot's highest point is 0.07; what it is at the landing itself, and the right foot's, do not count.
    contacts_tf = [(1, 1), (0, 1), (0, 1), (1, 1), (1, 1)]
    heights_tf = [(0.5, 0.5), (0.07, 0.5), (0.04, 0.5), (0.3, 0.5), (0.3, 0.5)]
    paid_t = over_contacts(APEX, contacts_tf, commands, heights_tf)
    np.testing.assert_allclose(paid_t, [0, 0, 0, paid, 0], rtol=1e-3, atol=1e-7)


# Where feet are.


@pytest.mark.parametrize(
    ("left_y", "right_y", "expected"),
    # Between 0.2 and 0.3 is right; crossed feet are at a negative distance.
    [(0.1, -0.15, 0.0), (0.1, -0.05, 0.05), (0.3, -0.2, 0.2), (-0.1, 0.1, 0.4)],
)
def test_feet_distance_when_too_close_crossed_or_too_wide_is_how_far(left_y, right_y, expected):
    term = rewards.FeetDistance(sites=SITES, distance=(0.2, 0.3))
    context = make_context(derived=site_positions([0.5, left_y, 0], [-0.5, right_y, 0]))
    np.testing.assert_allclose(term(context), expected, atol=1e-6)


def test_feet_distance_when_base_faces_left_measures_along_its_own_left():
    # Facing the world's y, its left is -x.
    term = rewards.FeetDistance(sites=SITES, distance=(0.2, 0.3))
    context = make_context(orientation=turned("z", 90), derived=site_positions([-0.1, 0.5, 0], [0.15, -0.5, 0]))
    np.testing.assert_allclose(term(context), 0.0, atol=1e-6)


def tilted_sites():
    c, s = np.cos(np.radians(30)), np.sin(np.radians(30))
    # The left foot rolled by 30 degrees, the right one turned about the vertical.
    return {"site_xmat": [np.eye(3).ravel(), [1, 0, 0, 0, c, -s, 0, s, c], [c, -s, 0, s, c, 0, 0, 0, 1]]}


@pytest.mark.parametrize(("sensors", "left", "expected"), [(None, False, 0.25), (TOUCH, True, 0.25), (TOUCH, False, 0)])
def test_feet_flat_when_a_foot_is_tilted_is_the_squared_sine_of_those_that_count(sensors, left, expected):
    context = make_context(derived=tilted_sites(), sensors=feet(left, right=True))
    np.testing.assert_allclose(rewards.FeetFlat(sites=SITES, sensors=sensors)(context), expected, rtol=1e-5)


def gait(frequency, duty=0.5, offset=0.5):
    return {"gait": jnp.array([frequency, duty, offset])}


@pytest.mark.parametrize(
    ("num_steps", "left", "right", "expected"),
    [
        # At 2 Hz and 0.02 s per step, 10 steps are 0.4 of a turn: left is down until 0.5, right at 0.9 in the air.
        (10, True, False, 1.0),
        (10, True, True, 0.5),
        (10, False, True, 0.0),
        # 20 steps are 0.8: left in the air, right at 0.3 down.
        (20, False, True, 1.0),
    ],
)
def test_track_gait_follows_the_clock_that_the_command_s_frequency_turns(num_steps, left, right, expected):
    term = rewards.TrackGait(sensors=TOUCH, command="gait")
    contexts = [make_context(sensors=feet(left, right), commands=gait(2.0)) for _ in range(num_steps + 1)]
    assert values_over(term, *contexts)[-1] == expected


def test_track_gait_when_the_frequency_changes_goes_on_from_its_phase():
    # 10 steps at 2 Hz are 0.4 of a turn, 7 more at 1 Hz 0.14: at 0.54 the left foot has lifted, the right one landed.
    term = rewards.TrackGait(sensors=TOUCH, command="gait")
    before = [make_context(commands=gait(2.0)) for _ in range(11)]
    after = [make_context(sensors=feet(left=False, right=True), commands=gait(1.0)) for _ in range(7)]
    assert values_over(term, *before, *after)[-1] == 1.0


@pytest.mark.parametrize(("forward", "expected"), [(0.0, 1.0), (0.5, 0.5)])
def test_track_gait_when_asked_to_stand_wants_all_feet_down(forward, expected):
    term = rewards.TrackGait(sensors=TOUCH, command="gait", velocity="velocity")
    commands = gait(2.0) | asking(forward=forward)
    contexts = [make_context(sensors=feet(left=True, right=True), commands=commands) for _ in range(11)]
    assert values_over(term, *contexts)[-1] == expected


def test_track_gait_of_more_feet_than_the_command_has_is_an_error():
    term = rewards.TrackGait(sensors=(*TOUCH, *TOUCH), command="gait")
    with pytest.raises(ConfigError, match="4 sensors, but command 'gait' sets the gait of 2 feet"):
        values_over(term, make_context(commands=gait(2.0)))
