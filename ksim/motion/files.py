"""Files of reference motions: ksim's own format, and the formats of other tools."""

import fnmatch
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import mujoco
import numpy as np
from jaxtyping import Float, Int

from ksim.checks import check_positive, check_rule
from ksim.errors import ConfigError, near_misses
from ksim.motion.formats import RawMotion, Reading, joints_by_bodies, load_arrays, read_table
from ksim.motion.library import MotionLibrary
from ksim.motion.motion import Motion, check_reading, understood
from ksim.physics.model import PhysicsModel
from ksim.physics.names import base_of_qpos, joints_of_qpos, states_of_motion

_POSES = ("root_pos", "root_quat", "joint_pos")
_BODIES = ("joint_pos", "body_pos_w", "body_quat_w")
_PICKLED = ("root_pos", "root_rot", "dof_pos")
_SHORTENED = ("waist_roll*", "waist_pitch*", "*_wrist_pitch*", "*_wrist_yaw*")
"""The joints that a Unitree G1 with 23 joints lacks."""

JointNames = Mapping[str, str | None]
"""The model's name of a joint by the name in the file; None leaves the joint out."""


def load_motion(
    path: str | Path,
    model: PhysicsModel,
    *,
    fps: float | None = None,
    quaternions: str | None = None,
    angles: str | None = None,
    joints: Sequence[str] | None = None,
    joint_names: JointNames | None = None,
) -> Motion:
    """A reference motion from a file, named after it; prints how the file was interpreted.

    docs/algorithms.md has the layouts: ksim's own `.npz`, that of mjlab and BeyondMimic, GMR's `.pkl`, and `.csv` with
    and without a header. Missing information is inferred from values that are plausible for the robot. If two
    interpretations remain, the file is rejected until one of these arguments decides.

    Args:
        model: The robot. Joints of the robot that the file leaves out stay in their default positions.
        fps: Frames per second. Default: the file's own.
        quaternions: The order of quaternions, wxyz or xyzw.
        angles: The unit of hinge joints, rad or deg.
        joints: Names of the file's joints in its order, where it does not name them.
        joint_names: The model's names of joints that the file calls otherwise.

    Raises:
        ConfigError: There is no such file, it has another layout, it is of another robot, or its numbers cannot be
            what they would have to be.
    """
    path, names = Path(path), joint_names or {}
    if not path.is_file():
        raise ConfigError(f"Motion file {path} does not exist. Give the path of an .npz, .csv or .pkl file.")
    reading = Reading(fps, quaternions, angles, None if joints is None else tuple(joints))
    check_reading(reading)
    if path.suffix == ".npz":
        raw = _read_npz(path, model)
    elif path.suffix == ".csv":
        raw = read_table(path)
    elif path.suffix == ".pkl":
        raw = _read_pickle(path)
    else:
        raise ConfigError(
            f"Motion file {path} must be an .npz, a .csv or a .pkl file. See docs/algorithms.md for the layouts."
        )
    columns = _columns(path, raw, reading, model)
    for name in names:
        if name not in columns:
            raise ConfigError(f"joint_names maps {name!r}, but {path} has no such joint. {near_misses(name, columns)}")
    renamed = [names.get(name, _name_in(model, name)) for name in columns]
    kept = _kept(path, renamed, columns, model)
    raw = raw._replace(joint_pos=raw.joint_pos[:, kept])
    return understood(path, raw, reading, model, [str(renamed[i]) for i in kept])


def save_motion(motion: Motion, path: str | Path) -> None:
    """Writes a motion as `.npz`, with the joints by name. Poses have 32 bits."""
    arrays = {name: getattr(motion, name).astype(np.float32) for name in _POSES}
    np.savez_compressed(path, allow_pickle=False, fps=motion.fps, joint_names=np.array(motion.joints), **arrays)


def _read_npz(path: Path, model: PhysicsModel) -> RawMotion:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"Motion file {path} cannot be read as .npz ({type(error).__name__}: {error}).") from error
    fps = _rate(path, arrays)
    if "qpos" in arrays:
        qpos, num = _numbers(path, "qpos", arrays["qpos"]), model.mj_model.nq
        if qpos.ndim != 2 or qpos.shape[1] != num:
            raise ConfigError(
                f"Motion file {path}: qpos of shape {qpos.shape} must be of shape (frames, {num}), as the robot's. "
                "Save root_pos, root_quat, joint_pos and joint_names to map the joints by name."
            )
        root_pos, root_quat = base_of_qpos(model.names, qpos)
        joint_pos = joints_of_qpos(model.names, qpos)
        return RawMotion(".npz of qpos", root_pos, root_quat, joint_pos, fps=fps, joints=tuple(model.names.joints))
    names = _joint_names(path, arrays)
    if all(name in arrays for name in _BODIES):
        joint_pos, body_pos, body_quat = (_numbers(path, name, arrays[name]) for name in _BODIES)
        for name, array, width in (("body_pos_w", body_pos, 3), ("body_quat_w", body_quat, 4)):
            is_met = array.ndim == 3 and array.shape[1] > 0 and array.shape[2] == width
            check_rule(f"Motion file {path}: {name} of shape {array.shape}", is_met, f"of shape (frames, n, {width})")
        counts = [len(array) for array in (joint_pos, body_pos, body_quat)]
        check_rule(f"Motion file {path}: {', '.join(_BODIES)} of {counts} frames", len(set(counts)) == 1, "of as many")
        layout = ".npz of bodies, as mjlab and BeyondMimic write it"
        root_pos, root_quat = body_pos[:, 0], body_quat[:, 0]
        return RawMotion(layout, root_pos, root_quat, joint_pos, fps=fps, joints=names, body_pos=body_pos)
    missing = [name for name in _POSES if name not in arrays]
    if missing:
        raise ConfigError(
            f"Motion file {path} has neither 'qpos' nor {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, arrays)) or 'nothing'}. Save qpos, or root_pos, root_quat and joint_pos."
        )
    root_pos, root_quat, joint_pos = (_numbers(path, name, arrays[name]) for name in _POSES)
    return RawMotion(".npz of base and joints", root_pos, root_quat, joint_pos, fps=fps, joints=names)


def _read_pickle(path: Path) -> RawMotion:
    """A motion as GMR writes it; quaternions are (x, y, z, w) in that layout."""
    try:
        content = load_arrays(path.read_bytes())
        held = content if isinstance(content, dict) else {}
        arrays = {name: np.asarray(held[name]) for name in (*_PICKLED, "fps") if held.get(name) is not None}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Motion file {path} cannot be read as arrays in a pickle: {error!s:.200}. Save it as .npz with fps, "
            "root_pos, root_quat and joint_pos."
        ) from error
    if not isinstance(content, dict) or any(name not in content for name in _PICKLED):
        words = ", ".join(map(repr, content)) if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigError(
            f"Motion file {path} must hold {', '.join(map(repr, _PICKLED))}, as GMR's do; it has {words or 'nothing'}."
        )
    root_pos, root_quat, joint_pos = (_numbers(path, name, arrays.get(name, np.array("none"))) for name in _PICKLED)
    return RawMotion(".pkl of GMR", root_pos, root_quat, joint_pos, "xyzw", _rate(path, arrays))


def _rate(path: Path, arrays: Mapping[str, np.ndarray]) -> float | None:
    if "fps" not in arrays:
        return None
    fps_n = _numbers(path, "fps", arrays["fps"]).reshape(-1)
    check_rule(f"Motion file {path}: fps of shape {arrays['fps'].shape}", fps_n.size == 1, "one number")
    return float(fps_n[0])


def _joint_names(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[str, ...] | None:
    if "joint_names" not in arrays:
        return None
    names = arrays["joint_names"]
    check_rule(f"Motion file {path}: joint_names of shape {names.shape}", names.ndim == 1, "a list of names")
    return tuple(str(name) for name in names)


def _numbers(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    is_numeric = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    check_rule(f"Motion file {path}: {name} of type {array.dtype}", is_numeric, "of numbers")
    return np.asarray(array, float)


def _columns(path: Path, raw: RawMotion, reading: Reading, model: PhysicsModel) -> tuple[str, ...]:
    """The names of the file's joints, in its order."""
    joints, shape = model.names.joints, raw.joint_pos.shape
    given = reading.joints or raw.joints
    if given is not None:
        is_met = len(shape) == 2 and shape[1] == len(given)
        check_rule(f"Motion file {path}: joint positions of shape {shape}", is_met, f"of shape (frames, {len(given)})")
        return given
    if raw.body_pos is not None and len(shape) == 2 and shape[1] == len(joints):
        return joints_by_bodies(path, raw, model, reading.quaternions or raw.quaternions)
    if len(shape) != 2 or shape[1] != len(joints):
        shorter = [name for name in joints if not any(fnmatch.fnmatch(name, x) for x in _SHORTENED)]
        hint = ""
        if len(shape) == 2 and shape[1] == len(shorter):
            hint = f" If it is Unitree's layout of {shape[1]} joints: motion_joints=[{','.join(shorter)}]."
        raise ConfigError(
            f"Motion file {path} has joint positions of shape {shape} and no names. Without names there must be one "
            f"for each of the robot's {len(joints)} joints: {', '.join(joints)}. Name the file's joints in its order "
            f"with motion_joints (style_joints for the clips of a style; joints in Python), or save them as .npz with "
            f"joint_names.{hint}"
        )
    return tuple(joints)


def _name_in(model: PhysicsModel, name: str) -> str:
    """The robot's name of a joint, which a file may name with or without the suffix `_joint`."""
    known = model.names.joints
    return next((x for x in (name, f"{name}_joint", name.removesuffix("_joint")) if x in known), name)


def _kept(path: Path, renamed: Sequence[str | None], columns: Sequence[str], model: PhysicsModel) -> list[int]:
    """The columns of joints that are kept, in the model's order."""
    column: dict[str, int] = {}
    for i, mapped in enumerate(renamed):
        if mapped is None:
            continue
        if mapped not in model.names.joints:
            raise ConfigError(
                f"The robot has no joint {mapped!r}, which {path} moves. {near_misses(mapped, model.names.joints)} Map "
                "it in joint_names, or leave it out with None."
            )
        if mapped in column:
            raise ConfigError(f"Two joints of {path} are mapped to {mapped!r}. Map one of them to None.")
        column[mapped] = i
    if not column:
        raise ConfigError(f"{path} moves no joint of the robot: {', '.join(columns) or 'it has no joints'}.")
    return [column[name] for name in model.names.joints if name in column]


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


Steps = tuple[Float[np.ndarray, "n q"], Float[np.ndarray, "n v"], Float[np.ndarray, "n q"]]


def physics_steps(motion: Motion, model: PhysicsModel) -> Steps:
    """The last physics step before each control step of a motion: poses after it, velocities, and poses before it.

    A velocity leads from the pose before a step to the pose after it, as in the integrator of the physics.

    Raises:
        ConfigError: The motion is not longer than a control step.
    """
    dt = model.mj_model.opt.timestep
    qpos_tq, _ = states_at(motion, model, 1 / dt)
    if len(qpos_tq) <= model.decimation + 1:
        raise ConfigError(
            f"Motion {motion.name!r} lasts {motion.duration_s:.3g} s, but must last longer than a control step, "
            f"{model.ctrl_dt:g} s. Check its frames per second ({motion.fps:g})."
        )
    after_n = np.arange(1, len(qpos_tq), model.decimation)
    qvel_nv = np.zeros((len(after_n), model.mj_model.nv))
    for qvel, after in zip(qvel_nv, after_n, strict=True):
        mujoco.mj_differentiatePos(model.mj_model, qvel, dt, qpos_tq[after - 1], qpos_tq[after])
    return qpos_tq[after_n], qvel_nv, qpos_tq[after_n - 1]
