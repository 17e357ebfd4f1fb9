import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.physics import compile_model
from ksim.physics.rotations import multiply_quaternions
from tests.support.contexts import DT, asking, biped, make_context, turned, values_over
from tests.support.robots import BIPED, biped_spec

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


# Poses and positions that are commanded.


def test_track_roll_pitch_when_base_leans_as_asked_is_1_whatever_its_heading():
    # Nose down by 30 degrees, facing the world's y.
    orientation = multiply_quaternions(jnp.array(turned("z", 90)), jnp.array(turned("y", 30)))
    context = make_context(orientation=orientation, commands={"lean": jnp.radians(jnp.array([0.0, 30.0]))})
    np.testing.assert_allclose(rewards.TrackRollPitch(command="lean")(context), 1.0, rtol=1e-5)


def test_track_roll_pitch_when_error_is_std_is_exp_of_minus_half():
    context = make_context(orientation=turned("x", 20), commands={"lean": jnp.zeros(2)})
    tracked = rewards.TrackRollPitch(command="lean", std=float(np.radians(20)))(context)
    np.testing.assert_allclose(tracked, np.exp(-0.5), rtol=1e-4)


def test_track_joint_pose_when_the_root_mean_square_is_std_is_exp_of_minus_half():
    # Errors of 0.3 and -0.1: sqrt((0.09 + 0.01) / 2)
    context = make_context(joint_pos=(0.5, 0.1), commands={"pose": jnp.array([0.2, 0.2])})
    tracked = rewards.TrackJointPose(command="pose", std=float(np.sqrt(0.05)))(context)
    np.testing.assert_allclose(tracked, np.exp(-0.5), rtol=1e-5)


def test_track_joint_pose_when_joints_are_named_follows_their_order():
    context = make_context(joint_pos=(0.5, 0.1), commands={"pose": jnp.array([0.1, 0.5])})
    tracked = rewards.TrackJointPose(command="pose", joints=("right_hip", "left_hip"))(context)
    np.testing.assert_allclose(tracked, 1.0, rtol=1e-6)


def test_track_joint_pose_when_the_command_is_of_another_size_is_an_error():
    with pytest.raises(ConfigError, match=r"'velocity' must have 2 components \(one for each joint\)"):
        rewards.TrackJointPose(command="velocity")(make_context(commands=WALK))


@pytest.mark.parametrize(("target", "expected"), [([0.3, 0.1, -0.2], 1.0), ([0.3, 0.1, -0.1], np.exp(-0.5))])
def test_track_position_when_base_has_moved_and_turned_measures_in_its_frame(target, expected):
    # The base at (1, 2, 0.5) faces the world's y: 0.3 forward is y, 0.1 leftward is -x.
    derived = {"site_xpos": [[0, 0, 0], [1 - 0.1, 2 + 0.3, 0.5 - 0.2], [9, 9, 9]]}
    context = make_context(
        ground_position=(1, 2), orientation=turned("z", 90), derived=derived, commands={"reach": jnp.array(target)}
    )
    tracked = rewards.TrackPosition(command="reach", site="left_foot", std=0.1)(context)
    np.testing.assert_allclose(tracked, expected, rtol=1e-4)


# Postures and accelerations.


@pytest.mark.parametrize(
    ("axis", "degrees", "roll", "pitch"), [("x", 30, 30, 0), ("y", -20, 0, 20), ("z", 50, 0, 0), ("x", 120, 120, 0)]
)
def test_base_roll_and_pitch_when_turned_are_squared_angles_apart(axis, degrees, roll, pitch):
    context = make_context(orientation=turned(axis, degrees))
    np.testing.assert_allclose(rewards.BaseRoll()(context), np.radians(roll) ** 2, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(rewards.BasePitch()(context), np.radians(pitch) ** 2, rtol=1e-4, atol=1e-9)


def test_base_pitch_when_target_is_nose_down_is_0_there():
    context = make_context(orientation=turned("y", 20))
    np.testing.assert_allclose(rewards.BasePitch(target=float(np.radians(20)))(context), 0.0, atol=1e-9)


def test_base_accelerations_when_velocities_change_are_squared_changes_per_second():
    # 0.3 / 0.02 = 15 and 0.4 / 0.02 = 20 of the linear velocity; 0.2 / 0.02 = 10 of the angular; then no change.
    moving = {"lin_vel_world": (0.3, 0, 0.4), "ang_vel_body": (0, 0.2, 0)}
    contexts = [make_context(), make_context(**moving), make_context(**moving)]
    np.testing.assert_allclose(values_over(rewards.BaseLinearAcceleration(), *contexts), [0, 625, 0], rtol=1e-4)
    np.testing.assert_allclose(values_over(rewards.BaseAngularAcceleration(), *contexts), [0, 100, 0], rtol=1e-4)


# More effort.


def test_action_jerk_when_actions_follow_sums_the_squared_third_differences():
    # Of 0, 1, 1, 3 the changes are 1, 0, 2, their changes 1, -1, 2, and theirs 1, -2, 3.
    action_t2 = jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    before_t2 = jnp.concatenate([jnp.zeros((1, 2)), action_t2[:-1]])
    contexts = [make_context(action=a, previous_action=b) for a, b in zip(action_t2, before_t2, strict=True)]
    np.testing.assert_array_equal(values_over(rewards.ActionJerk(), *contexts), [0, 1, 4, 9])


@pytest.mark.parametrize(("speed", "counted"), [(0.5, 0.5), (0.0, 0.2)])
def test_cost_of_transport_is_power_over_weight_and_speed_of_at_least_the_least(speed, counted):
    # |3 * 2| + |-4 * 1| = 10 W of a robot of 7.4 kg.
    context = make_context(lin_vel_world=(0, speed, 9), joint_vel=(2, 1), derived={"actuator_force": [3, -4]})
    paid = rewards.CostOfTransport(min_speed=0.2)(context)
    np.testing.assert_allclose(paid, 10 / (7.4 * 9.81 * counted), rtol=1e-5)


@pytest.mark.parametrize(
    ("forces", "expected"),
    # The range is -20 to 20 N m, of which 0.8 end at 16.
    [((16, -16), 0.0), ((18, 0), 0.1), ((0, -20), 0.2), ((18, -20), 0.3)],
)
def test_torque_limits_when_forces_leave_the_inner_range_sum_the_fractions(forces, expected):
    paid = rewards.TorqueLimits(soft_fraction=0.8)(make_context(derived={"actuator_force": forces}))
    np.testing.assert_allclose(paid, expected, atol=1e-6)


def test_torque_limits_when_an_actuator_has_several_forces_take_their_norm():
    head = '<body><joint name="ball" type="ball"/><geom size=".1"/></body><body name="left_leg"'
    turner = '<orientation joint="ball" kp="1" forcerange="0 10"/></actuator>'
    mjcf = BIPED.replace('<body name="left_leg"', head).replace("</actuator>", turner)
    model = compile_model(mujoco.MjSpec.from_string(mjcf), dt=0.004, ctrl_dt=DT)
    assert list(model.mj_model.actuator_outnum) == [1, 1, 3]
    paid = rewards.TorqueLimits(soft_fraction=0.8)(
        make_context(model=model, joint_pos=[0] * 6, joint_vel=[0] * 5, derived={"actuator_force": [99, 99, 0, 6, 8]})
    )
    # The norm is 10, which is 2 beyond 8; half of the range is 5.
    np.testing.assert_allclose(paid, 0.4, atol=1e-6)


def test_torque_limits_when_no_actuator_has_a_force_range_are_an_error():
    model = compile_model(biped_spec(), dt=0.004, ctrl_dt=DT)
    with pytest.raises(ConfigError, match=r"needs an actuator with a force range"):
        rewards.TorqueLimits()(make_context(model=model, derived={"actuator_force": [0, 0]}))


def test_joint_velocity_limits_when_joints_are_faster_than_the_inner_fraction_sum_by_how_much():
    # 0.9 * 10 = 9 rad/s: 0.5 on the left, 3 on the right.
    context = make_context(lin_vel_world=(99, 99, 99), joint_vel=(9.5, -12))
    np.testing.assert_allclose(rewards.JointVelocityLimits(max_vel=10.0)(context), 3.5, rtol=1e-5)
    left = rewards.JointVelocityLimits(max_vel=10.0, joints=("left_hip",))
    np.testing.assert_allclose(left(context), 0.5, rtol=1e-5)


# Rewards made of something else.


def test_clipped_when_the_reward_exceeds_its_bounds_keeps_them_and_the_scale():
    clipped = rewards.Clipped(rewards.VerticalVelocity(scale=-2.0), low=0.1, high=0.5)
    assert clipped.scale == -2.0
    paid = [clipped(make_context(lin_vel_world=(0, 0, speed))) for speed in (0.0, 0.6, 3.0)]
    np.testing.assert_allclose(paid, [0.1, 0.36, 0.5], rtol=1e-5)


def test_clipped_when_the_reward_has_memory_needs_and_sensors_passes_them_on():
    contexts = [make_context(joint_vel=joint_vel) for joint_vel in [(1, 2), (1.2, 1.6)]]
    inner = rewards.JointAcceleration()
    np.testing.assert_allclose(values_over(rewards.Clipped(inner, low=0.0, high=400.0), *contexts), [0, 400])
    clipped = rewards.Clipped(rewards.TorqueEffort(), low=0.0, high=1.0)
    assert [name for term in clipped.with_inner_terms() for name in term.needs] == ["actuator_force"]
    spec = biped_spec()
    rewards.Clipped(rewards.FootClearance(sites=("left_foot",)), low=0.0, high=1.0).edit_spec(spec)
    assert spec.sensor("ksim_left_foot_velocity") is not None


def test_custom_when_given_a_function_returns_what_it_does():
    term = rewards.Custom(lambda context: context.derived("xpos")[0, 2], scale=2.0, needs=("xpos",))
    assert (term.needs, term.scale) == (("xpos",), 2.0)
    np.testing.assert_allclose(term(make_context(derived={"xpos": [[0, 0, 0.25]]})), 0.25)
