"""A motion as its file has it, before it is known what its numbers mean."""

from typing import Literal, NamedTuple

import numpy as np

Quaternions = Literal["wxyz", "xyzw"]
Angles = Literal["rad", "deg"]
QUATERNIONS: tuple[Quaternions, ...] = ("wxyz", "xyzw")
ANGLES: tuple[Angles, ...] = ("rad", "deg")


class RawMotion(NamedTuple):
    """The columns of a file.

    Attributes:
        layout: Whose layout it is, in words.
        root_pos: Positions of the base, (t, 3).
        root_quat: Its orientations, (t, 4), in the order of the file.
        joint_pos: Positions of the joints, (t, j).
        quaternions: The order that the layout has.
        fps: Frames per second; None where the file does not say.
        joints: Names of the columns of `joint_pos`; None where the file does not say.
        names_quaternions: Whether the file itself names the four numbers.
        body_pos: Positions of all bodies in the world, (t, n, 3), where the file has them.
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
    """The user's word on a file; None leaves it to the file.

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
