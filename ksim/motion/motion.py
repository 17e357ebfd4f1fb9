"""One reference motion: poses over time, resampled and differentiated on SO(3)."""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline
from scipy.spatial.transform import Rotation, RotationSpline

from ksim.checks import check_positive, check_rule
from ksim.errors import ConfigError


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
        time_t, new_t = (np.arange(n) / rate for n, rate in ((self.num_frames, self.fps), (self._frames_at(fps), fps)))
        turn = RotationSpline(time_t, _rotations(self.root_quat))(new_t)
        return dataclasses.replace(
            self,
            fps=fps,
            root_pos=CubicSpline(time_t, self.root_pos)(new_t),
            root_quat=turn.as_quat(scalar_first=True),
            joint_pos=CubicSpline(time_t, self.joint_pos)(new_t),
        )

    def _frames_at(self, fps: float) -> int:
        return int(self.duration_s * fps + 1e-6) + 1

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
