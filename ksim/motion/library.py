"""A library of clips, as arrays that the terms of a task index by frame."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ksim.errors import get_named


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MotionLibrary:
    """Reference motions of one robot at its control rate, concatenated: f frames of c clips in b bins.

    A program that looks frames up holds the arrays as constants on each device. Bins divide every clip for adaptive
    sampling; no bin holds frames of two clips.

    Attributes:
        ctrl_dt: Seconds per frame.
        bodies: Names of the model's bodies, in its order.
        qpos: Generalized positions, in m and rad, (f, q).
        qvel: Generalized velocities, in m/s and rad/s, (f, v).
        body_pos: Positions of the bodies' frames in the world, in m, (f, n, 3).
        body_quat: Orientations of the bodies in the world (w, x, y, z), (f, n, 4).
        body_lin_vel: Velocities of the bodies in the world frame, in m/s, (f, n, 3).
        body_ang_vel: Angular velocities of the bodies in the world frame, in rad/s, (f, n, 3).
        clip: The clip of each frame, (f,).
        first: The first frame of each clip, (c,).
        last: The last frame of each clip, (c,).
        bin: The bin of each frame, (f,).
        bin_first: The first frame of each bin, (b,).
        bin_size: Number of frames of each bin from which an episode may start, all but the last of a clip, (b,).
    """

    names: tuple[str, ...]
    ctrl_dt: float
    bodies: tuple[str, ...]
    qpos: Float[np.ndarray, "f q"]
    qvel: Float[np.ndarray, "f v"]
    body_pos: Float[np.ndarray, "f n 3"]
    body_quat: Float[np.ndarray, "f n 4"]
    body_lin_vel: Float[np.ndarray, "f n 3"]
    body_ang_vel: Float[np.ndarray, "f n 3"]
    clip: Int[np.ndarray, " f"]
    first: Int[np.ndarray, " c"]
    last: Int[np.ndarray, " c"]
    bin: Int[np.ndarray, " f"]
    bin_first: Int[np.ndarray, " b"]
    bin_size: Int[np.ndarray, " b"]

    @property
    def num_bins(self) -> int:
        """Number of bins of all clips."""
        return len(self.bin_first)

    @property
    def durations_s(self) -> dict[str, float]:
        """Seconds from the first frame to the last of each clip, by name."""
        return {name: float(n) * self.ctrl_dt for name, n in zip(self.names, self.last - self.first, strict=True)}

    def bin_clip(self) -> Int[np.ndarray, " b"]:
        """The clip of each bin."""
        return self.clip[self.bin_first]

    def following_bins(self, horizon: int) -> tuple[Int[np.ndarray, "h b"], Bool[np.ndarray, "h b"]]:
        """The bins 0, 1, ... after each bin, and whether they belong to the same clip; if not, the bin itself."""
        bin_b = np.arange(self.num_bins)
        after_hb = bin_b + np.arange(horizon)[:, None]
        inside_hb = after_hb < self.num_bins
        after_hb = np.where(inside_hb, after_hb, bin_b)
        inside_hb &= self.bin_clip()[after_hb] == self.bin_clip()
        return np.where(inside_hb, after_hb, bin_b), inside_hb

    def body_index(self, bodies: Sequence[str]) -> Int[np.ndarray, " n"]:
        """Indices of bodies in the arrays; raises ConfigError if there is no such body."""
        places = {name: i for i, name in enumerate(self.bodies)}
        return np.array([get_named(places, name, "body") for name in bodies])

    def record(self) -> dict[str, Any]:
        """The data with which a program without ksim replays the clips, for JSON."""
        return {
            "names": list(self.names),
            "dt_s": self.ctrl_dt,
            "first": self.first.tolist(),
            "last": self.last.tolist(),
            "qpos": [[float(f"{x:.6g}") for x in row] for row in self.qpos.tolist()],
            "qvel": [[float(f"{x:.6g}") for x in row] for row in self.qvel.tolist()],
        }

    def __repr__(self) -> str:
        clips = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.durations_s.items())
        return f"MotionLibrary({clips})"
