"""Reference motions: resampling, and velocities by differences."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ksim.errors import ConfigError
from ksim.motion.motion import Motion
from tests.support.clips import spinning


def test_angular_velocity_of_a_constant_turn_is_its_rate_in_the_frame_of_the_base():
    motion = spinning(50.0)
    rotation = Rotation.from_quat(motion.root_quat, scalar_first=True)
    np.testing.assert_allclose(
        rotation.apply(motion.root_ang_vel_body()), np.tile([0.3, -0.5, 0.8], (101, 1)), atol=1e-9
    )


def test_angular_velocity_when_a_quaternion_changes_its_sign_is_the_same():
    motion = spinning(50.0)
    sign_t1 = np.where(np.arange(101) % 3 == 0, -1.0, 1.0)[:, None]
    flipped = Motion("spin", 50.0, ("hip",), motion.root_pos, sign_t1 * motion.root_quat, motion.joint_pos)
    np.testing.assert_allclose(flipped.root_ang_vel_body(), motion.root_ang_vel_body(), atol=1e-9)


def test_velocities_are_those_of_the_curves():
    motion = spinning(100.0)
    time = np.arange(201) / 100
    # Central differences of sin(w t) are off by (w dt)^2 / 6 of the velocity.
    np.testing.assert_allclose(motion.joint_vel()[1:-1, 0], 3 * np.cos(3 * time)[1:-1], atol=3 * 0.03**2 / 6 + 1e-9)
    np.testing.assert_allclose(motion.root_lin_vel()[1:-1, 2], 0.2 * time[1:-1], atol=1e-9)


@pytest.mark.parametrize(("fps", "new_fps"), [(30.0, 50.0), (120.0, 50.0), (50.0, 50.0)])
def test_resampled_motion_is_on_the_same_curves(fps, new_fps):
    resampled, expected = spinning(fps).resampled(new_fps), spinning(new_fps)
    assert resampled.fps == new_fps
    assert resampled.num_frames == expected.num_frames == 101
    np.testing.assert_allclose(resampled.joint_pos, expected.joint_pos, atol=2e-5)
    np.testing.assert_allclose(resampled.root_pos, expected.root_pos, atol=2e-5)
    turn = Rotation.from_quat(resampled.root_quat, scalar_first=True)
    off = (turn * Rotation.from_quat(expected.root_quat, scalar_first=True).inv()).magnitude()
    assert off.max() < 1e-6


def test_resampled_motion_ends_within_the_motion():
    # 0.99 s at 100 Hz hold 49 whole steps of 0.02 s.
    assert spinning(100.0, seconds=0.99).resampled(50.0).num_frames == 50


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("fps", 0.0, "frames per second"),
        ("root_quat", np.full((3, 4), 0.7), "unit quaternions"),
        ("joint_pos", np.zeros((3, 2)), r"shape \(3, 1\)"),
        ("root_pos", np.array([[0, 0, 1], [0, np.nan, 1], [0, 0, 1]]), "not finite in frame 1"),
    ],
)
def test_motion_when_a_field_cannot_be_right_is_an_error(field, value, message):
    upright = np.tile([1.0, 0, 0, 0], (3, 1))
    given = {"fps": 50.0, "root_pos": np.zeros((3, 3)), "root_quat": upright, "joint_pos": np.zeros((3, 1))}
    with pytest.raises(ConfigError, match=message):
        Motion("broken", joints=("hip",), **(given | {field: value}))
