"""Reference motions for tests."""

import numpy as np
from scipy.spatial.transform import Rotation

from ksim.motion.motion import Motion

JOINTS = ("left_hip", "right_hip")


def swaying(num_frames: int = 11, fps: float = 50.0, name: str = "sway") -> Motion:
    """The biped moves forward at 1 m/s and turns while its legs swing apart."""
    time = np.arange(num_frames) / fps
    position = np.stack([time, 0 * time, 0.5 + 0 * time], axis=1)
    turn = Rotation.from_rotvec(np.outer(time, [0, 0, 1])).as_quat(scalar_first=True)
    return Motion(name, fps, JOINTS, position, turn, np.stack([0.5 * time, -0.5 * time], axis=1))


def spinning(fps: float, *, rate_world=(0.3, -0.5, 0.8), seconds: float = 2.0) -> Motion:
    """A base that turns at a constant rate in the world, in rad/s, from a tilt; one joint that swings."""
    time = np.arange(round(seconds * fps) + 1) / fps
    turn = Rotation.from_rotvec(np.outer(time, rate_world)) * Rotation.from_rotvec([0.4, 0.0, 0.2])
    position = np.stack([0.5 * time, np.sin(2 * time), 1 + 0.1 * time**2], axis=1)
    return Motion("spin", fps, ("hip",), position, turn.as_quat(scalar_first=True), np.sin(3 * time)[:, None])
