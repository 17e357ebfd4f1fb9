import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import resets
from ksim.physics import compile_model
from ksim.physics.names import Base
from ksim.physics.rotations import roll_pitch_of, rotate_inverse, yaw_of
from tests.support.contexts import DT, biped, draws, make_context, turned
from tests.support.robots import biped_spec

LIMIT = math.radians(60)
LEFT_HIP_QPOS, RIGHT_HIP_QPOS = 7, 8
LEFT_HIP_QVEL, RIGHT_HIP_QVEL = 6, 7

every_reset = pytest.mark.parametrize(
    ("term", "changed_qpos", "changed_qvel"),
    [
        (resets.RandomJointPositions(), [LEFT_HIP_QPOS, RIGHT_HIP_QPOS], []),
        (resets.RandomJointPositions(joints=("right_hip",)), [RIGHT_HIP_QPOS], []),
        (resets.RandomJointVelocities(), [], [LEFT_HIP_QVEL, RIGHT_HIP_QVEL]),
        (resets.RandomJointVelocities(joints=("left_hip",)), [], [LEFT_HIP_QVEL]),
        # From upright, a heading changes w and z of the orientation.
        (resets.RandomHeading(), [3, 6], []),
        (resets.RandomBasePosition(), [0, 1], []),
        (resets.RandomBasePosition(max_lift=0.1), [0, 1, 2], []),
        # Horizontal velocity, and angular velocity about the base's z.
        (resets.RandomBaseVelocity(), [], [0, 1, 5]),
        (resets.RandomBaseMotion(), [], [0, 1, 2, 3, 4, 5]),
        # From upright, a roll and a pitch one after the other change all of the orientation.
        (resets.RandomBaseTilt(), [3, 4, 5, 6], []),
    ],
    ids=lambda x: str(x) if isinstance(x, list) else type(x).__name__,
)


@every_reset
def test_reset_when_applied_changes_only_what_it_should(term, changed_qpos, changed_qvel):
    start = make_context(joint_pos=(0.1, -0.1)).physics
    physics = draws(lambda key: term(make_context(joint_pos=(0.1, -0.1), key=key)))
    for field, changed in {"qpos": changed_qpos, "qvel": changed_qvel}.items():
        varies = np.ptp(getattr(physics, field), axis=0) > 0
        np.testing.assert_array_equal(np.flatnonzero(varies), changed, err_msg=field)
        same = np.setdiff1d(np.arange(len(varies)), changed)
        np.testing.assert_array_equal(
            getattr(physics, field)[:, same], np.tile(getattr(start, field)[same], (300, 1)), err_msg=field
        )


JOINTS, BASE = slice(7, None), slice(0, 3)
# fmt: off
RANGES = {
    # 0.3 +- 0.2 and -0.3 +- 0.2
    "joint positions: around the pose": (
        resets.RandomJointPositions(magnitude=0.2), {"joint_pos": (0.3, -0.3)}, lambda physics: physics.qpos[JOINTS],
        [0.1, -0.5], [0.5, -0.1], {"atol": 0.02}),
    "joint positions: no further than the limits": (
        resets.RandomJointPositions(magnitude=2.0), {}, lambda physics: physics.qpos[JOINTS],
        [-LIMIT, -LIMIT], [LIMIT, LIMIT], {"rtol": 1e-6}),
    # 1 +- 0.5 and -1 +- 0.5
    "joint velocities: around those that they have": (
        resets.RandomJointVelocities(magnitude=0.5), {"joint_vel": (1, -1)}, lambda physics: physics.qvel[6:],
        [0.5, -1.5], [1.5, -0.5], {"atol": 0.05}),
    # pi / 2 +- 0.5
    "heading: either way from where the base faces": (
        resets.RandomHeading(max_yaw=0.5), {"orientation": turned("z", 90)}, lambda physics: yaw_of(physics.qpos[3:7]),
        np.pi / 2 - 0.5, np.pi / 2 + 0.5, {"atol": 0.05}),
    "base velocity: in the plane and about the base's z": (
        resets.RandomBaseVelocity(max_lin_vel=0.4, max_yaw_rate=2.0), {},
        lambda physics: physics.qvel[jnp.array([0, 1, 5])],
        [-0.4, -0.4, -2.0], [0.4, 0.4, 2.0], {"rtol": 0.05}),
    # 1 +- 0.5, 2 +- 0.5, and 0.5 to 0.5 + 0.2
    "base position: around where the base was, and never below": (
        resets.RandomBasePosition(max_offset=0.5, max_lift=0.2), {"ground_position": (1, 2)},
        lambda physics: physics.qpos[BASE], [0.5, 1.5, 0.5], [1.5, 2.5, 0.7], {"atol": 0.03}),
    "base motion: each component around what it was": (
        resets.RandomBaseMotion(max_lin_vel=(0.1, 0.2, 0.3), max_ang_vel=(1.0, 2.0, 3.0)),
        {"lin_vel_world": (1, 1, 1)}, lambda physics: physics.qvel[:6],
        [0.9, 0.8, 0.7, -1, -2, -3], [1.1, 1.2, 1.3, 1, 2, 3], {"rtol": 0.05}),
}
# fmt: on


@pytest.mark.parametrize(("term", "start", "pick", "low", "high", "options"), RANGES.values(), ids=RANGES)
def test_draws_fill_the_range(term, start, pick, *, low, high, options):
    drawn_n = np.asarray(draws(lambda key: pick(term(make_context(key=key, **start)))))
    np.testing.assert_allclose(drawn_n.min(0), low, **options)
    np.testing.assert_allclose(drawn_n.max(0), high, **options)
    assert ((drawn_n >= np.array(low) - 1e-6) & (drawn_n <= np.array(high) + 1e-6)).all()


def test_random_joint_positions_when_a_joint_has_no_limits_move_it_freely():
    term = resets.RandomJointPositions(magnitude=2.0)
    qpos_nq = draws(lambda key: term(make_context(model=biped(free_right_hip=True), key=key)).qpos)
    np.testing.assert_allclose(np.abs(qpos_nq[:, 7:]).max(0), [LIMIT, 2.0], rtol=0.05)


def test_random_heading_when_base_is_tilted_keeps_the_tilt_and_the_unit_norm():
    gravity_3 = jnp.array([0.0, 0.0, -1.0])
    tilted = turned("y", 30)
    orientation_n4 = draws(lambda key: resets.RandomHeading()(make_context(orientation=tilted, key=key)).qpos[3:7])
    np.testing.assert_allclose(np.linalg.norm(orientation_n4, axis=1), 1.0, rtol=1e-5)
    seen_n3 = jax.vmap(lambda orientation_4: rotate_inverse(gravity_3, orientation_4))(orientation_n4)
    # As before the turn: nose down by 30 degrees.
    np.testing.assert_allclose(seen_n3, np.tile([0.5, 0, -np.sqrt(0.75)], (300, 1)), atol=1e-5)


def test_random_heading_turns_the_velocity_with_the_base():
    start = lambda key: make_context(lin_vel_world=(1, 0, 0.2), ang_vel_body=(1, 2, 3), key=key)
    physics = draws(lambda key: resets.RandomHeading()(start(key)))
    forward_n3 = jax.vmap(lambda physics: Base(physics, biped().names).heading_velocity)(physics)
    np.testing.assert_allclose(forward_n3, np.tile([1, 0, 0.2], (300, 1)), atol=1e-5)
    np.testing.assert_allclose(physics.qvel[:, 3:6], np.tile([1, 2, 3], (300, 1)))


def test_random_base_position_when_base_is_turned_keeps_its_orientation():
    physics = resets.RandomBasePosition()(make_context(orientation=turned("x", 30)))
    np.testing.assert_allclose(physics.qpos[3:7], turned("x", 30), rtol=1e-6)


HOME = {"qpos": [0, 0, 0.5, 1, 0, 0, 0, 0, 0], "qvel": [0] * 8}
CROUCHED = {"qpos": [1, 2, 0.4, 0, 0, 0, 1, 0.3, -0.3], "qvel": [1, 2, 3, 4, 5, 6, 7, 8]}


@functools.cache
def biped_with_keyframes():
    spec = biped_spec()
    spec.add_key(name="home", **HOME)
    spec.add_key(name="crouched", **CROUCHED)
    return compile_model(spec, dt=0.004, ctrl_dt=DT)


def test_to_keyframe_when_there_is_one_starts_from_its_positions_and_velocities():
    physics = resets.ToKeyframe(keyframes=("crouched",))(make_context(model=biped_with_keyframes()))
    np.testing.assert_allclose(physics.qpos, CROUCHED["qpos"], rtol=1e-6)
    np.testing.assert_array_equal(physics.qvel, CROUCHED["qvel"])


def test_to_keyframe_when_there_are_several_picks_each_as_often():
    term = resets.ToKeyframe(keyframes=("crouched", "home"))
    height_n = draws(lambda key: term(make_context(model=biped_with_keyframes(), key=key)).qpos[2])
    # Of 300 half, with a standard deviation of sqrt(300 * 0.25) = 8.7.
    assert abs((height_n < 0.45).sum() - 150) < 45


def test_random_base_tilt_when_base_faces_left_fills_its_ranges_about_the_base_s_own_axes():
    term = resets.RandomBaseTilt(max_roll=0.2, max_pitch=0.4)
    tilted = lambda key: term(make_context(orientation=turned("z", 90), key=key)).qpos[3:7]
    orientation_n4 = draws(tilted)
    np.testing.assert_allclose(np.linalg.norm(orientation_n4, axis=1), 1.0, rtol=1e-5)
    roll_pitch_n2 = jax.vmap(roll_pitch_of)(orientation_n4)
    np.testing.assert_allclose(roll_pitch_n2.min(0), [-0.2, -0.4], atol=0.02)
    np.testing.assert_allclose(roll_pitch_n2.max(0), [0.2, 0.4], atol=0.02)
    np.testing.assert_allclose(jax.vmap(yaw_of)(orientation_n4), np.pi / 2, atol=1e-5)


def test_to_pose_when_joints_are_named_puts_these_there_and_leaves_the_others():
    physics = resets.ToPose(pose={"right_hip": -0.4})(make_context(joint_pos=(0.1, 0.2)))
    np.testing.assert_allclose(physics.qpos[7:], [0.1, -0.4], rtol=1e-6)


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (resets.ToPose(pose={"right_hop": 0.1}), r"no joint 'right_hop'.*'right_hip'"),
        (resets.ToPose(pose={"right_hip": 1.5}), r"'right_hip' at 1.5 rad, .* limits, -1.0472 to 1.0472"),
        (resets.ToKeyframe(keyframes=("crouch",)), r"no key 'crouch'.*'crouched'"),
    ],
)
def test_start_that_cannot_be_is_an_error(term, message):
    with pytest.raises(ConfigError, match=message):
        term(make_context(model=biped_with_keyframes()))
