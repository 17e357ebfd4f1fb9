import dataclasses
import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.mdp import rewards
from ksim.physics import compile_model
from ksim.types import ConfigError
from tests.mdp.contexts import DT, TOUCH, asking, biped, feet, make_context, turned, values_over
from tests.robots import BIPED, biped_spec

WALK = asking(forward=0.5)
STAND = asking()


# Tracking.


def test_track_linear_velocity_when_base_moves_as_asked_in_its_heading_is_1():
    # The base faces the world's y, so that forward is y and leftward is -x.
    context = make_context(
        orientation=turned("z", 90), lin_vel_world=(-0.2, 0.5, 0), commands=asking(forward=0.5, leftward=0.2)
    )
    np.testing.assert_allclose(rewards.TrackLinearVelocity(command="velocity")(context), 1.0, rtol=1e-5)


def test_track_linear_velocity_when_error_is_std_is_exp_of_minus_half():
    # The error has length sqrt(0.3^2 + 0.4^2) = 0.5.
    context = make_context(lin_vel_world=(0.8, -0.4, 0), commands=asking(forward=0.5))
    np.testing.assert_allclose(
        rewards.TrackLinearVelocity(command="velocity", std=0.5)(context), np.exp(-0.5), rtol=1e-5
    )


def test_track_linear_velocity_when_base_is_pitched_measures_along_the_ground():
    context = make_context(orientation=turned("y", 30), lin_vel_world=(0.5, 0, 0), commands=WALK)
    np.testing.assert_allclose(rewards.TrackLinearVelocity(command="velocity")(context), 1.0, rtol=1e-5)


def test_track_linear_velocity_when_base_hops_and_spins_does_not_care():
    context = make_context(lin_vel_world=(0.5, 0, 3), ang_vel_body=(1, 2, 3), commands=WALK)
    np.testing.assert_allclose(rewards.TrackLinearVelocity(command="velocity")(context), 1.0, rtol=1e-5)


def test_track_yaw_rate_when_base_turns_as_asked_is_1():
    context = make_context(ang_vel_body=(0, 0, 0.4), commands=asking(yaw_rate=0.4))
    np.testing.assert_allclose(rewards.TrackYawRate(command="velocity")(context), 1.0, rtol=1e-5)


def test_track_yaw_rate_when_error_is_std_is_exp_of_minus_half():
    context = make_context(ang_vel_body=(0, 0, -0.2), commands=asking(yaw_rate=0.3))
    np.testing.assert_allclose(rewards.TrackYawRate(command="velocity", std=0.5)(context), np.exp(-0.5), rtol=1e-5)


def test_track_yaw_rate_when_base_lies_on_its_side_measures_about_the_vertical():
    # On its right side, the base's left (y) points up.
    context = make_context(orientation=turned("x", 90), ang_vel_body=(0, 0.4, 9), commands=asking(yaw_rate=0.4))
    np.testing.assert_allclose(rewards.TrackYawRate(command="velocity")(context), 1.0, rtol=1e-5)


def test_track_heading_when_base_faces_as_asked_is_1():
    context = make_context(orientation=turned("z", 90), commands={"heading": jnp.array([np.pi / 2])})
    np.testing.assert_allclose(rewards.TrackHeading(command="heading")(context), 1.0, rtol=1e-5)


def test_track_heading_when_error_is_std_the_short_way_round_is_exp_of_minus_half():
    # From 170 to -170 degrees it is 20 degrees over the back.
    context = make_context(orientation=turned("z", 170), commands={"heading": jnp.radians(jnp.array([-170.0]))})
    tracked = rewards.TrackHeading(command="heading", std=float(np.radians(20)))(context)
    np.testing.assert_allclose(tracked, np.exp(-0.5), rtol=1e-4)


@pytest.mark.parametrize(("height", "expected"), [(0.45, 1.0), (0.40, np.exp(-0.5)), (0.55, np.exp(-2.0))])
def test_track_height_when_off_is_a_gaussian_of_the_error(height, expected):
    # Of std 0.05: errors of 0, 1 and 2 std.
    context = make_context(height=height, commands={"height": jnp.array([0.45])})
    np.testing.assert_allclose(rewards.TrackHeight(command="height", std=0.05)(context), expected, rtol=1e-4)


def test_stand_still_when_asked_to_stand_sums_the_distances_from_the_default_pose():
    # |0.4 - 0.3| + |-0.5 + 0.3|
    context = make_context(model=biped(knock_kneed=True), joint_pos=(0.4, -0.5), commands=STAND)
    np.testing.assert_allclose(rewards.StandStill(command="velocity")(context), 0.3, rtol=1e-5)


@pytest.mark.parametrize(("yaw_rate", "expected"), [(0.09, 0.3), (0.11, 0.0)])
def test_stand_still_when_asked_for_more_than_a_tenth_of_motion_is_0(yaw_rate, expected):
    context = make_context(joint_pos=(0.1, -0.2), commands=asking(yaw_rate=yaw_rate))
    np.testing.assert_allclose(rewards.StandStill(command="velocity")(context), expected, rtol=1e-5)


def test_stand_still_when_joints_are_named_leaves_the_others_out():
    context = make_context(joint_pos=(0.1, -0.2), commands=STAND)
    still = rewards.StandStill(command="velocity", joints=("right_hip",))(context)
    np.testing.assert_allclose(still, 0.2, rtol=1e-5)


# Posture.


@pytest.mark.parametrize(("terminated", "alive", "fallen"), [(False, 1.0, 0.0), (True, 0.0, 1.0)])
def test_alive_and_termination_penalty_when_the_robot_falls_change_places(terminated, alive, fallen):
    context = make_context(terminated=jnp.bool_(terminated))
    assert rewards.Alive()(context) == alive
    assert rewards.TerminationPenalty()(context) == fallen


@pytest.mark.parametrize(("axis", "expected"), [("x", 0.25), ("y", 0.25), ("z", 0.0)])
def test_base_tilt_when_turned_by_30_degrees_is_the_squared_sine_but_not_for_a_heading(axis, expected):
    # sin^2 30 = 0.25
    tilt = rewards.BaseTilt()(make_context(orientation=turned(axis, 30)))
    np.testing.assert_allclose(tilt, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("axis", "degrees", "expected"),
    # cos 60 = 0.5
    [("x", 0, 1), ("x", 60, 0.5), ("y", -60, 0.5), ("z", 60, 1), ("x", 90, 0), ("y", 180, -1)],
)
def test_upright_when_turned_is_the_cosine_of_the_tilt(axis, degrees, expected):
    upright = rewards.Upright()(make_context(orientation=turned(axis, degrees)))
    np.testing.assert_allclose(upright, expected, atol=1e-6)


@pytest.mark.parametrize("height", [0.3, 0.5])
def test_base_height_error_when_off_by_a_tenth_either_way_is_a_hundredth(height):
    error = rewards.BaseHeightError(target=0.4)(make_context(height=height))
    np.testing.assert_allclose(error, 0.01, rtol=1e-5)


def test_vertical_velocity_is_squared_and_leaves_the_horizontal_out():
    # (-0.3)^2
    context = make_context(lin_vel_world=(5, 6, -0.3))
    np.testing.assert_allclose(rewards.VerticalVelocity()(context), 0.09, rtol=1e-5)


def test_roll_pitch_rate_is_squared_and_leaves_the_yaw_out():
    # 3^2 + 4^2
    assert rewards.RollPitchRate()(make_context(ang_vel_body=(3, -4, 7))) == 25.0


def test_joint_deviation_when_default_pose_is_bent_sums_the_distances_from_it():
    # |0.4 - 0.3| + |-0.5 + 0.3|
    context = make_context(model=biped(knock_kneed=True), joint_pos=(0.4, -0.5))
    np.testing.assert_allclose(rewards.JointDeviation()(context), 0.3, rtol=1e-5)


def test_joint_deviation_when_joints_are_named_leaves_the_others_out():
    context = make_context(joint_pos=(0.1, -0.2))
    np.testing.assert_allclose(rewards.JointDeviation(joints=("right_hip",))(context), 0.2, rtol=1e-5)


# Effort.


def test_action_rate_sums_the_squared_changes():
    # (1 - 0)^2 + (-1 - 1)^2
    context = make_context(action=jnp.array([1.0, -1.0]), previous_action=jnp.array([0.0, 1.0]))
    assert rewards.ActionRate()(context) == 5.0


def test_action_acceleration_when_actions_follow_sums_the_squared_second_differences():
    # From rest: (1, 0) - 0, then (0, 2) - (1, 0), then no change after (0, 2).
    action_t2 = jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [1.0, 2.0]])
    before_t2 = jnp.concatenate([jnp.zeros((1, 2)), action_t2[:-1]])
    contexts = [make_context(action=a, previous_action=b) for a, b in zip(action_t2, before_t2, strict=True)]
    np.testing.assert_array_equal(values_over(rewards.ActionAcceleration(), *contexts), [0, 1, 1 + 4, 4])


def test_joint_acceleration_when_velocities_change_sums_the_squared_changes_per_second():
    # (1.2 - 1) / 0.02 = 10 and (1.6 - 2) / 0.02 = -20; the episode starts without, and so does what keeps its speed.
    contexts = [make_context(joint_vel=joint_vel) for joint_vel in [(1, 2), (1.2, 1.6), (1.2, 1.6)]]
    np.testing.assert_allclose(values_over(rewards.JointAcceleration(), *contexts), [0, 100 + 400, 0], rtol=1e-4)


def test_joint_acceleration_when_joints_are_named_leaves_the_others_and_the_base_out():
    # -20^2
    contexts = [make_context(joint_vel=(1, 2)), make_context(lin_vel_world=(9, 9, 9), joint_vel=(1.2, 1.6))]
    paid_t = values_over(rewards.JointAcceleration(joints=("right_hip",)), *contexts)
    np.testing.assert_allclose(paid_t[1], 400, rtol=1e-4)


def test_mechanical_power_when_actuators_drive_and_brake_sums_what_each_does():
    # |3 * 2| + |-4 * 1|
    assert rewards.MechanicalPower.needs == ("actuator_force",)
    context = make_context(lin_vel_world=(9, 9, 9), joint_vel=(2, 1), derived={"actuator_force": [3, -4]})
    assert rewards.MechanicalPower()(context) == 10.0


def test_mechanical_power_when_actuators_are_in_another_order_than_joints_matches_them():
    swapped = BIPED.replace('joint="left_hip"', 'joint="it"').replace('joint="right_hip"', 'joint="left_hip"')
    spec = mujoco.MjSpec.from_string(swapped.replace('joint="it"', 'joint="right_hip"'))
    model = compile_model(spec, dt=0.004, ctrl_dt=DT)
    # |3 * 1| on the right, |-4 * 2| on the left
    context = make_context(model=model, joint_vel=(2, 1), derived={"actuator_force": [3, -4]})
    assert rewards.MechanicalPower()(context) == 11.0


def test_torque_effort_sums_the_squared_forces_of_the_field_it_declares():
    # 3^2 + 4^2
    assert rewards.TorqueEffort.needs == ("actuator_force",)
    assert rewards.TorqueEffort()(make_context(derived={"actuator_force": [3, -4]})) == 25.0


def test_joint_velocity_effort_when_base_moves_sums_the_squared_velocities_of_joints_alone():
    # 1^2 + 2^2
    context = make_context(lin_vel_world=(9, 9, 9), ang_vel_body=(9, 9, 9), joint_vel=(1, -2))
    assert rewards.JointVelocityEffort()(context) == 5.0
    assert rewards.JointVelocityEffort(joints=("left_hip",))(context) == 1.0


@pytest.mark.parametrize(
    ("joint_pos_degrees", "expected_degrees"),
    [
        # The range is -60 to 60 degrees, of which the inner nine tenths end at -54 and 54.
        ((0, 0), 0),
        ((53, -53), 0),
        ((57, 0), 3),
        ((0, -58), 4),
        ((57, -58), 3 + 4),
    ],
)
def test_joint_limits_when_joints_leave_the_inner_range_sum_how_far(joint_pos_degrees, expected_degrees):
    context = make_context(joint_pos=np.radians(joint_pos_degrees))
    over = rewards.JointLimits(soft_fraction=0.9)(context)
    np.testing.assert_allclose(over, np.radians(expected_degrees), rtol=1e-4, atol=1e-6)


def test_joint_limits_when_a_joint_has_no_limits_counts_the_others_only():
    context = make_context(model=biped(free_right_hip=True), joint_pos=np.radians([57, 500]))
    np.testing.assert_allclose(rewards.JointLimits(soft_fraction=0.9)(context), np.radians(3), rtol=1e-4)


def test_joint_limits_when_joints_are_named_leave_the_others_out():
    context = make_context(joint_pos=np.radians([60, 57]))
    over = rewards.JointLimits(joints=("right_hip",))(context)
    np.testing.assert_allclose(over, np.radians(3), rtol=1e-4)


# Feet.


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
