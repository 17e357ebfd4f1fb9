"""Construction of a motion library, from files or from motions in memory."""

from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np
from jaxtyping import Int

from ksim.checks import check_positive
from ksim.errors import ConfigError
from ksim.motion.files import JointNames, load_motion
from ksim.motion.library import MotionLibrary
from ksim.motion.motion import Motion
from ksim.physics.model import PhysicsModel
from ksim.physics.names import states_of_motion


def load_library(
    paths: Sequence[str | Path],
    model: PhysicsModel,
    *,
    fps: float | None = None,
    quaternions: str | None = None,
    angles: str | None = None,
    joints: Sequence[str] | None = None,
    joint_names: JointNames | None = None,
    bin_s: float = 0.5,
) -> MotionLibrary:
    """A library from files; see `load_motion` and `make_library`.

    Raises:
        ConfigError: A file cannot be read or is of another robot, or no library can be made of the files.
    """
    said = {"fps": fps, "quaternions": quaternions, "angles": angles, "joints": joints, "joint_names": joint_names}
    return make_library([load_motion(path, model, **said) for path in paths], model, bin_s=bin_s)


def make_library(motions: Sequence[Motion], model: PhysicsModel, *, bin_s: float = 0.5) -> MotionLibrary:
    """A library of motions, resampled to the control rate. Body poses and velocities are by forward kinematics.

    Args:
        motions: The clips, with different names.
        model: The robot.
        bin_s: The longest duration of a bin, in s.

    Raises:
        ConfigError: There are none, two have the same name, or one is shorter than a control step.
    """
    check_positive("bin_s", bin_s)
    names = tuple(motion.name for motion in motions)
    if not names:
        raise ConfigError("A motion library needs at least one motion. Give it the path of a file.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"Two motions are named {twice[0]!r}. Rename the file of one of them.")
    clips = [_at_control_rate(motion, model) for motion in motions]
    num_frames = np.array([len(qpos) for qpos, _ in clips])
    qpos, qvel = (np.concatenate(parts) for parts in zip(*clips, strict=True))
    last = np.cumsum(num_frames) - 1
    bins = [_bins(n, max(1, round(bin_s / model.ctrl_dt))) for n in num_frames]
    starts = np.cumsum([0, *(bin_t[-1] + 1 for bin_t in bins)])
    bin_f = np.concatenate([bin_t + start for bin_t, start in zip(bins, starts, strict=False)])
    can_start_f = ~np.isin(np.arange(len(bin_f)), last)
    return MotionLibrary(
        names,
        model.ctrl_dt,
        tuple(model.mj_model.body(i).name for i in range(model.mj_model.nbody)),
        qpos.astype(np.float32),
        qvel.astype(np.float32),
        *_body_motion(model.mj_model, qpos, qvel),
        clip=np.repeat(np.arange(len(names)), num_frames),
        first=last - num_frames + 1,
        last=last,
        bin=bin_f,
        bin_first=np.searchsorted(bin_f, np.arange(starts[-1])),
        bin_size=np.bincount(bin_f, weights=can_start_f).astype(int),
    )


def _at_control_rate(motion: Motion, model: PhysicsModel) -> tuple[np.ndarray, np.ndarray]:
    if motion.duration_s < model.ctrl_dt * (1 - 1e-6):
        raise ConfigError(
            f"Motion {motion.name!r} lasts {motion.duration_s:.3g} s, but must last at least a control step, "
            f"{model.ctrl_dt:g} s. Check its frames per second ({motion.fps:g})."
        )
    return states_at(motion, model, 1 / model.ctrl_dt)


def states_at(motion: Motion, model: PhysicsModel, fps: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions (t, q) and velocities (t, v) of a motion at a rate. Joints outside it stay in the default pose."""
    resampled = motion.resampled(fps)
    poses = resampled.root_pos, resampled.root_quat, resampled.joint_pos
    velocities = resampled.root_lin_vel(), resampled.root_ang_vel_body(), resampled.joint_vel()
    return states_of_motion(model.names, model.default_qpos, resampled.joints, poses, velocities)


def _bins(num_frames: int, most: int) -> Int[np.ndarray, " f"]:
    """The bin of each frame of a clip. Bins are equally large, with at most `most` frames to start an episode from."""
    num_starts = num_frames - 1
    num_bins = -(-num_starts // most)
    return np.minimum(np.arange(num_frames) * num_bins // num_starts, num_bins - 1)


def _body_motion(mj_model: mujoco.MjModel, qpos_fq: np.ndarray, qvel_fv: np.ndarray) -> tuple[np.ndarray, ...]:
    """Positions, orientations, velocities and angular velocities of all bodies in the world, over time."""
    data = mujoco.MjData(mj_model)
    rows: list[tuple[np.ndarray, ...]] = []
    for qpos, qvel in zip(qpos_fq, qvel_fv, strict=True):
        data.qpos[:], data.qvel[:] = qpos, qvel
        mujoco.mj_kinematics(mj_model, data)
        mujoco.mj_comPos(mj_model, data)
        mujoco.mj_comVel(mj_model, data)
        ang_vel_n3, lin_vel_n3 = np.split(data.cvel, 2, axis=1)
        # MuJoCo's cvel is the velocity of a point at the centre of mass of the body's whole tree.
        arm_n3 = data.xpos - data.subtree_com[mj_model.body_rootid]
        rows.append((data.xpos.copy(), data.xquat.copy(), lin_vel_n3 + np.cross(ang_vel_n3, arm_n3), ang_vel_n3.copy()))
    return tuple(np.array(column, np.float32) for column in zip(*rows, strict=True))
