import dataclasses
import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.physics import compile_model
from tests.support.contexts import DT, TOUCH, asking, biped, feet, make_context, turned
from tests.support.robots import biped_spec

WALK = asking(forward=0.5)
STAND = asking()


def air_time_rewards(term, contacts_tf, commands=WALK):
    """The reward at each step of an episode in which the feet are down as given."""
    memory, paid_t = term.init(make_context()), []
    for left, right in contacts_tf:
        context = make_context(sensors=feet(left, right), commands=commands, memory=memory)
        memory = term.update(context)
        paid_t.append(float(term(dataclasses.replace(context, memory=memory))))
    return np.array(paid_t)


def left_foot_lands_after(num_steps):
    """Both feet are down, the left is in the air until it lands so many steps later, and both stay down."""
    return [(1, 1)] + [(0, 1)] * (num_steps - 1) + [(1, 1), (1, 1)]


AIR_TIME = rewards.FeetAirTime(sensors=TOUCH, command="velocity", threshold_s=0.2, max_s=0.5)


def test_feet_air_time_when_a_foot_lands_is_paid_at_that_step_only():
    # 15 steps of 0.02 s are 0.3 s, of which 0.1 s are beyond the threshold; a reward is per second: 0.1 / 0.02.
    paid_t = air_time_rewards(AIR_TIME, left_foot_lands_after(15))
    np.testing.assert_allclose(paid_t, [0] * 15 + [5.0, 0], atol=1e-4)


def test_feet_air_time_when_a_foot_is_up_longer_than_max_earns_no_more():
    # (0.5 - 0.2) / 0.02, though it was up for 0.8 s.
    np.testing.assert_allclose(air_time_rewards(AIR_TIME, left_foot_lands_after(40)).sum(), 15.0, rtol=1e-4)


def test_feet_air_time_when_a_foot_is_up_for_less_than_the_threshold_earns_nothing():
    # 9 steps are 0.18 s.
    np.testing.assert_array_equal(air_time_rewards(AIR_TIME, left_foot_lands_after(9)), 0.0)


def test_feet_air_time_when_both_feet_land_pays_for_both():
    # 2 * (0.3 - 0.2) / 0.02
    contacts_tf = [(1, 1)] + [(0, 0)] * 14 + [(1, 1)]
    np.testing.assert_allclose(air_time_rewards(AIR_TIME, contacts_tf).sum(), 10.0, rtol=1e-4)


def test_feet_air_time_when_a_foot_never_lands_pays_nothing():
    np.testing.assert_array_equal(air_time_rewards(AIR_TIME, [(1, 1)] + [(0, 1)] * 40), 0.0)


def test_feet_air_time_when_the_robot_stands_pays_nothing_even_without_a_threshold():
    term = rewards.FeetAirTime(sensors=TOUCH, command="velocity", threshold_s=0.0)
    np.testing.assert_array_equal(air_time_rewards(term, [(1, 1)] * 10), 0.0)


def test_feet_air_time_when_a_foot_chatters_pays_nothing():
    np.testing.assert_array_equal(air_time_rewards(AIR_TIME, [(1, 1), (0, 1)] * 20), 0.0)


def test_feet_air_time_when_asked_to_stand_pays_nothing_for_a_landing():
    np.testing.assert_array_equal(air_time_rewards(AIR_TIME, left_foot_lands_after(15), STAND), 0.0)


@pytest.mark.parametrize(
    ("episode_step", "left", "right", "expected"),
    [
        # The clock turns in 40 steps. At its start the left foot has phase 0 and the right 0.5, below 0.55: both down.
        (0, True, True, 1.0),
        (0, True, False, 0.5),
        # After a quarter turn, phases 0.25 and 0.75: left down, right up.
        (10, True, False, 1.0),
        (10, True, True, 0.5),
        (10, False, True, 0.0),
        # After three quarters, phases 0.75 and 0.25: left up, right down.
        (30, False, True, 1.0),
        (30, True, False, 0.0),
    ],
)
def test_feet_phase_when_walking_is_the_fraction_of_feet_that_follow_the_clock(episode_step, left, right, expected):
    term = rewards.FeetPhase(sensors=TOUCH, command="velocity", period_s=0.8, duty=0.55)
    context = make_context(sensors=feet(left, right), commands=WALK, episode_step=jnp.int32(episode_step))
    assert term(context) == expected


@pytest.mark.parametrize(("left", "right", "expected"), [(True, True, 1.0), (True, False, 0.5), (False, False, 0.0)])
def test_feet_phase_when_asked_to_stand_is_the_fraction_of_feet_that_are_down(left, right, expected):
    term = rewards.FeetPhase(sensors=TOUCH, command="velocity")
    context = make_context(sensors=feet(left, right), commands=STAND, episode_step=jnp.int32(10))
    assert term(context) == expected


def swing_pose(**fields):
    return rewards.SwingPose(legs=(("left_hip",), ("right_hip",)), bend=(0.6,), command="velocity", duty=0.5, **fields)


@pytest.mark.parametrize(
    ("episode_step", "joint_pos", "expected"),
    [
        # After a quarter of 40 steps, phases 0.25 and 0.75: left down, right in mid-swing and bent by all of 0.6 rad.
        (10, (0.0, 0.6), 0.0),
        (10, (0.0, 0.0), 0.36),
        (10, (0.6, 0.0), 0.72),
        # After three quarters the other way round.
        (30, (0.6, 0.0), 0.0),
        # Phases 1/12 and 7/12, the swing a sixth done: sin(pi / 6) = 1/2 of the bend, 0.3 rad.
        (5, (0.0, 0.3), 0.0),
    ],
)
def test_swing_pose_when_walking_is_the_squared_distance_from_the_pose_of_the_clock(episode_step, joint_pos, expected):
    period_s = 0.8 if episode_step != 5 else 5 * DT * 12
    context = make_context(joint_pos=joint_pos, commands=WALK, episode_step=jnp.int32(episode_step))
    np.testing.assert_allclose(swing_pose(period_s=period_s)(context), expected, atol=1e-6)


def test_swing_pose_when_asked_to_stand_is_the_squared_distance_from_the_default_pose():
    # The default pose is (0.3, -0.3): 0.2^2 + 0.3^2.
    context = make_context(
        model=biped(knock_kneed=True), joint_pos=(0.5, 0.0), commands=STAND, episode_step=jnp.int32(10)
    )
    np.testing.assert_allclose(swing_pose()(context), 0.13, rtol=1e-5)


@pytest.mark.parametrize(("episode_step", "joint_pos"), [(10, (0.0, -0.2)), (30, (0.6, 0.0))])
def test_swing_pose_when_each_leg_has_its_own_bend_follows_it(episode_step, joint_pos):
    # As above: the right leg is in mid-swing after a quarter, the left one after three.
    term = dataclasses.replace(swing_pose(period_s=0.8), bend=((0.6,), (-0.2,)))
    context = make_context(joint_pos=joint_pos, commands=WALK, episode_step=jnp.int32(episode_step))
    np.testing.assert_allclose(term(context), 0.0, atol=1e-6)


SLIP = rewards.FeetSlip(sensors=TOUCH, sites=("left_foot", "right_foot"))


@functools.cache
def biped_with_velocity_sensors():
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=DT, edits=[SLIP.edit_spec, SLIP.edit_spec])


def test_feet_slip_when_one_foot_is_down_counts_its_horizontal_velocity_alone():
    # 0.3^2 + 0.4^2, without the vertical and without the right foot.
    velocities = {"ksim_left_foot_velocity": [0.3, -0.4, 7], "ksim_right_foot_velocity": [5, 5, 5]}
    context = make_context(model=biped_with_velocity_sensors(), sensors=feet(left=True, right=False) | velocities)
    np.testing.assert_allclose(SLIP(context), 0.25, rtol=1e-5)


def test_feet_slip_when_both_feet_are_down_sums_them():
    # 0.3^2 + 0.4^2
    velocities = {"ksim_left_foot_velocity": [0.3, 0, 0], "ksim_right_foot_velocity": [0, 0.4, 0]}
    context = make_context(model=biped_with_velocity_sensors(), sensors=feet(left=True, right=True) | velocities)
    np.testing.assert_allclose(SLIP(context), 0.25, rtol=1e-5)


def test_feet_slip_when_it_edits_the_model_twice_adds_each_sensor_once():
    # The biped has 3 sensors of its own.
    assert biped_with_velocity_sensors().mj_model.nsensor == 3 + 2


def test_feet_slip_when_base_faces_left_has_sensors_of_the_world_frame():
    model = biped_with_velocity_sensors()
    data = mujoco.MjData(model.mj_model)
    data.qpos[3:7] = turned("z", 90)
    data.qvel[0] = 2.0
    mujoco.mj_forward(model.mj_model, data)
    reading_3 = data.sensordata[model.names.sensor("ksim_left_foot_velocity")]
    np.testing.assert_allclose(reading_3, [2, 0, 0], atol=1e-6)


def test_feet_terms_when_sensor_is_unknown_name_the_near_misses():
    with pytest.raises(ConfigError, match=r"no sensor 'left_tuch'.*'left_touch'"):
        rewards.FeetPhase(sensors=("left_tuch",), command="velocity")(make_context(commands=WALK))


CLEARANCE = rewards.FootClearance(sites=("left_foot", "right_foot"), target=0.08)


@pytest.mark.parametrize(
    ("left_height", "right_height", "expected"),
    [
        # Speeds of sqrt(0.3^2 + 0.4^2) = 0.5 and of 2: 0.05^2 * 0.5
        (0.03, 0.10, 0.00125),
        # 0.01^2 * 2
        (0.08, 0.07, 0.0002),
        # 0.05^2 * 0.5 + 0.01^2 * 2
        (0.03, 0.07, 0.00145),
        (0.09, 0.10, 0.0),
    ],
)
def test_foot_clearance_when_feet_move_weights_their_squared_shortfalls_by_speed(left_height, right_height, expected):
    velocities = {"ksim_left_foot_velocity": [0.3, -0.4, 7], "ksim_right_foot_velocity": [0, 2, 7]}
    site_xpos_s3 = [[0, 0, 9], [5, 5, left_height], [5, 5, right_height]]
    context = make_context(model=biped_with_velocity_sensors(), sensors=velocities, derived={"site_xpos": site_xpos_s3})
    np.testing.assert_allclose(CLEARANCE(context), expected, rtol=1e-4, atol=1e-9)


def test_foot_clearance_when_feet_rest_is_0_however_low():
    context = make_context(model=biped_with_velocity_sensors(), derived={"site_xpos": np.zeros((3, 3))})
    assert CLEARANCE(context) == 0.0


def test_foot_clearance_when_feet_slip_has_the_sensors_shares_them():
    spec = biped_spec()
    SLIP.edit_spec(spec)
    CLEARANCE.edit_spec(spec)
    # The biped has 3 sensors of its own.
    assert len(spec.sensors) == 3 + 2


@pytest.mark.parametrize("kind", [rewards.FeetSlip, rewards.FootClearance], ids=lambda kind: kind.__name__)
def test_feet_terms_when_site_is_unknown_name_the_near_misses(kind):
    sensors = {"sensors": TOUCH} if kind is rewards.FeetSlip else {}
    with pytest.raises(ConfigError, match=r"no site 'left_fot'.*'left_foot'"):
        kind(sites=("left_fot", "right_foot"), **sensors).edit_spec(biped_spec())


@pytest.mark.parametrize(("left", "right", "expected"), [(120, 90, 20), (120, 130, 50), (100, 0, 0)])
def test_impact_force_when_feet_press_harder_than_allowed_sums_the_excess(left, right, expected):
    # Of each over 100 N: 20 alone, 20 + 30, and nothing at the threshold itself.
    context = make_context(sensors={"left_touch": left, "right_touch": right})
    assert rewards.ImpactForce(sensors=TOUCH, threshold=100.0)(context) == expected
