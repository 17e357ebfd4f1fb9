"""Motions as read from a file, before units and quaternion order are known."""

from typing import Literal, NamedTuple

import numpy as np

Quaternions = Literal["wxyz", "xyzw"]
Angles = Literal["rad", "deg"]
QUATERNIONS: tuple[Quaternions, ...] = ("wxyz", "xyzw")
ANGLES: tuple[Angles, ...] = ("rad", "deg")


class RawMotion(NamedTuple):
    """The columns of a file.

    Attributes:
        layout: Description of the file's layout.
        root_pos: Positions of the base, (t, 3).
        root_quat: Orientations of the base, (t, 4), in the file's quaternion order.
        joint_pos: Positions of the joints, (t, j).
        quaternions: The quaternion order of the layout.
        fps: Frames per second; None if not in the file.
        joints: Names of the columns of `joint_pos`; None if not in the file.
        names_quaternions: Whether the file names the four components of quaternions.
        body_pos: Positions of all bodies in the world, (t, n, 3); None if not in the file.
    """

    layout: str
    root_pos: np.ndarray
    root_quat: np.ndarray
    joint_pos: np.ndarray
    quaternions: Quaternions = "wxyz"
    fps: float | None = None
    joints: tuple[str, ...] | None = None
    names_quaternions: bool = False
    body_pos: np.ndarray | None = None


class Reading(NamedTuple):
    """The user's settings for reading a file; None: as the file says.

    Attributes:
        fps: Frames per second.
        quaternions: The order of quaternions: wxyz or xyzw.
        angles: The unit of hinges: rad or deg.
        joints: Names of the columns of joints, in the file's order.
    """

    fps: float | None = None
    quaternions: str | None = None
    angles: str | None = None
    joints: tuple[str, ...] | None = None
