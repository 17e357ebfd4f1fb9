"""Motions of a robot, and the units and quaternion order of a file's numbers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline
from scipy.spatial.transform import Rotation, RotationSpline

from ksim.checks import check_choice, check_positive, check_rule
from ksim.errors import ConfigError
from ksim.host.terminal import print_line
from ksim.motion.formats import ANGLES, QUATERNIONS, RawMotion, Reading, wxyz
from ksim.physics.model import PhysicsModel
from ksim.physics.names import base_of_qpos


@dataclasses.dataclass(frozen=True, eq=False)
class Motion:
    """Poses of a robot at a constant rate.

    Attributes:
        name: Name of the motion in tables and metrics.
        fps: Frames per second.
        joints: Names of the joints, in the order of `joint_pos`.
        root_pos: Position of the base in the world, in m, (t, 3).
        root_quat: Orientation of the base in the world, unit quaternions (w, x, y, z), (t, 4).
        joint_pos: Positions of the joints, in rad (m for slides), (t, j).
    """

    name: str
    fps: float
    joints: tuple[str, ...]
    root_pos: Float[np.ndarray, "t 3"]
    root_quat: Float[np.ndarray, "t 4"]
    joint_pos: Float[np.ndarray, "t j"]

    def __post_init__(self) -> None:
        what = f"Motion {self.name!r}"
        check_positive(f"{what}: frames per second", self.fps)
        num_frames = len(self.root_pos) if self.root_pos.ndim else "frames"
        for field, width in (("root_pos", 3), ("root_quat", 4), ("joint_pos", len(self.joints))):
            array = getattr(self, field)
            rule = f"of shape ({num_frames}, {width})"
            check_rule(f"{what}: {field} of shape {array.shape}", array.shape == (num_frames, width), rule)
            if not np.isfinite(array).all():
                bad = int(np.argwhere(~np.isfinite(array))[0][0])
                raise ConfigError(f"{what}: {field} is not finite in frame {bad}. Cut or repair these frames.")
        check_rule(f"{what} has {self.num_frames} frames, which", self.num_frames >= 2, "at least 2")
        norm_t = np.linalg.norm(self.root_quat, axis=1)
        is_met = bool((np.abs(norm_t - 1) < 0.01).all())
        check_rule(f"{what}: root_quat with norms {norm_t.min():.3g} to {norm_t.max():.3g}", is_met, "unit quaternions")

    @property
    def num_frames(self) -> int:
        """Number of frames."""
        return len(self.root_pos)

    @property
    def duration_s(self) -> float:
        """Seconds from the first frame to the last."""
        return (self.num_frames - 1) / self.fps

    def resampled(self, fps: float) -> "Motion":
        """The motion at another rate: cubic splines of positions, and of rotations on SO(3).

        The last frame is the last one within the motion's duration.

        Raises:
            ConfigError: Fewer than two frames would be left.
        """
        if abs(fps - self.fps) < 1e-6 * fps:
            return self
        num_new = int(self.duration_s * fps + 1e-6) + 1
        time_t, new_t = np.arange(self.num_frames) / self.fps, np.arange(num_new) / fps
        turn = RotationSpline(time_t, _rotations(self.root_quat))(new_t)
        return dataclasses.replace(
            self,
            fps=fps,
            root_pos=CubicSpline(time_t, self.root_pos)(new_t),
            root_quat=turn.as_quat(scalar_first=True),
            joint_pos=CubicSpline(time_t, self.joint_pos)(new_t),
        )

    def root_lin_vel(self) -> Float[np.ndarray, "t 3"]:
        """Velocity of the base in the world frame, in m/s, by central differences."""
        return np.gradient(self.root_pos, 1 / self.fps, axis=0)

    def joint_vel(self) -> Float[np.ndarray, "t j"]:
        """Velocities of the joints, in rad/s, by central differences."""
        return np.gradient(self.joint_pos, 1 / self.fps, axis=0)

    def root_ang_vel_body(self) -> Float[np.ndarray, "t 3"]:
        """Angular velocity of the base in its own frame, in rad/s, by central differences on SO(3).

        Between frames a and b it is log(R_b R_a^T) / (t_b - t_a) in the world frame.
        """
        frame_t = np.arange(self.num_frames)
        before_t, after_t = np.maximum(frame_t - 1, 0), np.minimum(frame_t + 1, self.num_frames - 1)
        turned = (_rotations(self.root_quat[after_t]) * _rotations(self.root_quat[before_t]).inv()).as_rotvec()
        return _rotations(self.root_quat).inv().apply(turned * (self.fps / (after_t - before_t))[:, None])


def _rotations(quat_t4: Float[np.ndarray, "t 4"]) -> Rotation:
    return Rotation.from_quat(quat_t4, scalar_first=True)


_BEYOND_RANGE = 0.5
"""Angle, in rad, by which retargeted joints may exceed the robot's ranges."""
_OUTSIDE, _FAR_OUTSIDE = 0.02, 2.0
"""Largest fraction of positions that may be farther outside, and the excess, in rad, that no position may have."""
_FASTEST_BASE, _FASTEST_JOINT = 20.0, 60.0
"""Speeds, in m/s and rad/s, that no robot's motion has in more than a tenth of its frames."""


def check_reading(reading: Reading) -> None:
    """Raises ConfigError unless the user's settings for a file are valid."""
    check_positive("frames per second", reading.fps)
    for name, value, choices in (("quaternions", reading.quaternions, QUATERNIONS), ("angles", reading.angles, ANGLES)):
        if value is not None:
            check_choice(name, value, choices)


def understood(path: Path, raw: RawMotion, reading: Reading, model: PhysicsModel, joints: Sequence[str]) -> Motion:
    """The motion of a file, in SI units and with quaternions (w, x, y, z); prints how the file was interpreted.

    Raises:
        ConfigError: The numbers contradict the layout, or are ambiguous and no setting decides.
    """
    fps, rate = _rate(path, raw, reading)
    order, tilt = _quaternions(path, raw, reading, model)
    root_quat = wxyz(raw.root_quat, order)
    joint_pos, unit = _angles(path, raw, reading, model, joints)
    motion = Motion(path.stem, fps, tuple(joints), raw.root_pos, root_quat, joint_pos)
    _check_size(path, motion, model)
    _check_speeds(path, motion, model)
    print_line(
        f"Motion {motion.name}: {raw.layout}, {motion.num_frames} frames at {fps:g} per second ({rate}), "
        f"{motion.duration_s:.2f} s; quaternions ({', '.join(order)}), tilted by {tilt:.0f} degrees on average; "
        f"{len(joints)} joints in {unit}, {joint_pos.min(initial=0):.2f} to {joint_pos.max(initial=0):.2f} rad"
    )
    return motion


def _rate(path: Path, raw: RawMotion, reading: Reading) -> tuple[float, str]:
    if reading.fps is not None:
        return reading.fps, "given"
    if raw.fps is not None:
        return raw.fps, "of the file"
    raise ConfigError(
        f"Motion file {path} does not say how many frames per second it has. Give them: motion_fps (style_fps for the "
        "clips of a style), or fps in Python. The retargeted LAFAN1 motions have 30."
    )


class _Order(NamedTuple):
    """Measures of a clip with its quaternions read in one order, compared with the robot's default pose.

    Attributes:
        upright: Mean vertical part of the axis that was vertical, from -1 to 1.
        forward: How far it moves in the direction that it faces, in m.
        facing: Mean part along the world's x axis of that direction, from -1 to 1.
    """

    upright: float
    forward: float
    facing: float


def _quaternions(path: Path, raw: RawMotion, reading: Reading, model: PhysicsModel) -> tuple[str, float]:
    """The order of the quaternions, and the mean tilt of the base in degrees."""
    num = len(raw.root_quat)
    shape_ok = num >= 2 and raw.root_quat.shape == (num, 4) and raw.root_pos.shape == (num, 3)
    norms_ok = shape_ok and bool((np.abs(np.linalg.norm(raw.root_quat, axis=1) - 1) < 0.01).all())
    given = raw.quaternions if raw.names_quaternions else reading.quaternions
    if not norms_ok:  # reported later
        return given or raw.quaternions, 0.0
    seen = {order: _seen_as(order, raw, model) for order in QUATERNIONS}
    degrees = {order: float(np.degrees(np.arccos(np.clip(x.upright, -1, 1)))) for order, x in seen.items()}
    if given is not None:
        return given, degrees[given]
    usual = raw.quaternions
    other = next(order for order in QUATERNIONS if order != usual)
    gap = seen[usual].upright - seen[other].upright
    # Near a yaw of 0 or 180 degrees both are upright, half a turn apart: robots walk forward, and clips face along x.
    travels = max(abs(x.forward) for x in seen.values()) > 0.1
    is_ahead = [x.forward > 0 if travels else x.facing > 0.3 for x in (seen[usual], seen[other])]
    if gap > 0.2 or (gap > -0.2 and is_ahead == [True, False]):
        return usual, degrees[usual]
    looks = [
        f"as ({', '.join(order)}) the base is tilted by {degrees[order]:.0f} degrees on average and moves "
        f"{x.forward:+.2f} m forward"
        for order, x in seen.items()
    ]
    raise ConfigError(
        f"Motion file {path}: the order of its quaternions is not certain; the layout ({raw.layout}) has "
        f"({', '.join(usual)}), but {looks[0]}, and {looks[1]}. Say which it is: motion_quaternions=wxyz or xyzw "
        "(style_quaternions for the clips of a style), or quaternions in Python."
    )


def _seen_as(order: str, raw: RawMotion, model: PhysicsModel) -> _Order:
    default = Rotation.from_quat(base_of_qpos(model.names, model.default_qpos)[1], scalar_first=True)
    turn = Rotation.from_quat(wxyz(raw.root_quat, order), scalar_first=True) * default.inv()
    ahead = turn[:-1].apply(default.apply([1.0, 0.0, 0.0]))[:, :2]
    forward = float((ahead * np.diff(raw.root_pos[:, :2], axis=0)).sum())
    return _Order(float(turn.apply([0.0, 0.0, 1.0])[:, 2].mean()), forward, float(ahead[:, 0].mean()))


def _angles(
    path: Path, raw: RawMotion, reading: Reading, model: PhysicsModel, joints: Sequence[str]
) -> tuple[np.ndarray, str]:
    """The joints' positions in rad and m, and the unit that hinges have in the file."""
    values = raw.joint_pos
    if not np.isfinite(values).all():
        return values, "rad"  # reported later
    in_rad = np.where(_are_hinges(model, joints), np.radians(values), values)
    if reading.angles is not None:
        return (in_rad, "deg") if reading.angles == "deg" else (values, "rad")
    low, high = model.names.joint_range(joints).T
    within = lambda x: (low - _BEYOND_RANGE <= x) & (x <= high + _BEYOND_RANGE)
    outside = lambda x: float((~within(x)).mean()) if x.size else 0.0
    is_far = (values < low - _FAR_OUTSIDE) | (values > high + _FAR_OUTSIDE)
    if outside(values) <= _OUTSIDE and not is_far.any():
        return values, "rad"
    beyond = np.maximum(low - values, values - high).max(axis=0)
    worst = int(beyond.argmax() if outside(values) <= _OUTSIDE else (~within(values)).sum(axis=0).argmax())
    found = (
        f"Motion file {path}: joint {joints[worst]!r} goes from {values[:, worst].min():.3g} to "
        f"{values[:, worst].max():.3g}, but can go from {low[worst]:.3g} to {high[worst]:.3g} rad; "
        f"{outside(values):.0%} of all positions are beyond the robot's ranges"
    )
    if outside(values) <= _OUTSIDE:  # nearly all are plausible in rad; some frames are not
        frame = int(np.maximum(low - values, values - high).max(axis=1).argmax())
        raise ConfigError(f"{found}, most in frame {frame}. Repair it, or set motion_angles=rad if it is right.")
    if outside(in_rad) <= _OUTSIDE:
        raise ConfigError(
            f"{found}, and nearly none if they are degrees. If they are, set motion_angles=deg (style_angles for the "
            "clips of a style; angles in Python)."
        )
    raise ConfigError(
        f"{found}, also as degrees. The joints may be in another order: name them with motion_joints (style_joints; "
        "joints in Python), in the file's order. If they are right, set motion_angles=rad."
    )


def _check_size(path: Path, motion: Motion, model: PhysicsModel) -> None:
    """Raises ConfigError if the base is so high that its position cannot be in metres."""
    usual = float(base_of_qpos(model.names, model.default_qpos)[0][2])
    height = float(np.median(motion.root_pos[:, 2]))
    if usual > 0.1 and height > 10 * usual:
        raise ConfigError(
            f"Motion file {path}: the base is at a height of {height:.4g}, the robot's is {usual:.3g} m. Convert its "
            "positions to metres."
        )


def _check_speeds(path: Path, motion: Motion, model: PhysicsModel) -> None:
    """Raises ConfigError if the base or the fastest joint moves faster than robots do."""
    parts: list[tuple[str, Any, float, str]] = [
        ("base", np.linalg.norm(motion.root_lin_vel(), axis=1), _FASTEST_BASE, "m/s")
    ]
    is_hinge = _are_hinges(model, motion.joints)
    if is_hinge.any():
        parts.append(("fastest joint", np.abs(motion.joint_vel()[:, is_hinge]).max(axis=1), _FASTEST_JOINT, "rad/s"))
    for what, speed_t, most, unit in parts:
        usual = float(np.quantile(speed_t, 0.9))
        if usual > most:
            raise ConfigError(
                f"Motion file {path}: at {motion.fps:g} frames per second the {what} moves at {usual:.3g} {unit} or "
                f"more in a tenth of the frames, faster than robots do ({most:g} {unit}). Correct motion_fps "
                "(style_fps; fps in Python), or the file."
            )


def _are_hinges(model: PhysicsModel, joints: Sequence[str]) -> np.ndarray:
    hinge = int(mujoco.mjtJoint.mjJNT_HINGE)
    return np.array([int(model.mj_model.joint(name).type[0]) == hinge for name in joints], bool)
