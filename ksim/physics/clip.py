"""Clips of reference motion: poses of a robot at a constant rate."""

import zipfile
from pathlib import Path

import mujoco
import numpy as np
from jaxtyping import Float

from ksim.errors import ConfigError


def load_clip(path: str | Path, mj_model: mujoco.MjModel) -> tuple[Float[np.ndarray, "t q"], float]:
    """The poses of a clip, in the model's order of qpos, and its frames per second.

    Args:
        path: An `.npz` file with `qpos` (t, q), in m and rad, and `fps`.
        mj_model: The robot.

    Raises:
        ConfigError: There is no such file, or it is no clip of this robot.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            qpos_tq, fps = np.asarray(file["qpos"], float), float(file["fps"])
    except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"Clip {path} must be an .npz file with 'qpos' and 'fps', but: {error}.") from error
    if qpos_tq.ndim != 2 or qpos_tq.shape[1] != mj_model.nq or len(qpos_tq) < 2:
        raise ConfigError(
            f"Clip {path}: qpos of shape {qpos_tq.shape} must be of shape (frames, {mj_model.nq}), at least 2 frames "
            "of this robot."
        )
    if not (np.isfinite(qpos_tq).all() and np.isfinite(fps) and fps > 0):
        raise ConfigError(f"Clip {path}: qpos must be finite, and fps ({fps}) positive. Repair the file.")
    return qpos_tq, fps


def pose_at(mj_model: mujoco.MjModel, qpos_tq: Float[np.ndarray, "t q"], frame: float) -> Float[np.ndarray, " q"]:
    """The pose at a frame or between two, along the shortest way."""
    before = min(int(frame), len(qpos_tq) - 2)
    qpos, turn = qpos_tq[before].copy(), np.zeros(mj_model.nv)
    mujoco.mj_differentiatePos(mj_model, turn, 1.0, qpos_tq[before], qpos_tq[before + 1])
    mujoco.mj_integratePos(mj_model, qpos, turn, frame - before)
    return qpos


def states_at_control_rate(
    mj_model: mujoco.MjModel, qpos_tq: Float[np.ndarray, "t q"], fps: float, ctrl_dt: float
) -> tuple[Float[np.ndarray, "n q"], Float[np.ndarray, "n v"], Float[np.ndarray, "n q"]]:
    """The states of a clip at the control rate, as the physics would have stepped there.

    Args:
        mj_model: The robot.
        qpos_tq: The poses of the clip.
        fps: Its frames per second.
        ctrl_dt: Seconds per control step.

    Returns:
        Poses, the velocities of the physics step before each, and the poses before that step.
    """
    dt, duration_s = mj_model.opt.timestep, (len(qpos_tq) - 1) / fps
    rows = []
    for time_s in np.arange(dt, duration_s + 1e-9, ctrl_dt):
        qpos, before = (pose_at(mj_model, qpos_tq, t * fps) for t in (time_s, time_s - dt))
        qvel = np.zeros(mj_model.nv)
        mujoco.mj_differentiatePos(mj_model, qvel, dt, before, qpos)
        rows.append((qpos, qvel, before))
    qpos_nq, qvel_nv, before_nq = (np.array(column) for column in zip(*rows, strict=True))
    return qpos_nq, qvel_nv, before_nq
