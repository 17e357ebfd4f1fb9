"""Files of reference motions: `.npz`, and `.csv` in the layout of the retargeted LAFAN1 motions."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ksim.checks import check_rule
from ksim.errors import ConfigError, near_misses
from ksim.motion.motion import Motion
from ksim.physics.model import PhysicsModel
from ksim.physics.names import base_of_qpos, joints_of_qpos

LAFAN1_FPS = 30.0
"""The rate of the retargeted LAFAN1 motions, whose files do not state it."""
_POSES = ("root_pos", "root_quat", "joint_pos")

JointNames = Mapping[str, str | None]
"""The model's name of a joint by the name in the file; None leaves the joint out."""


def load_motion(
    path: str | Path, model: PhysicsModel, *, fps: float | None = None, joint_names: JointNames | None = None
) -> Motion:
    """A reference motion from a file, named after it.

    An `.npz` file has `fps` and either `qpos` (t, q), in the model's order, or `root_pos` (t, 3) in m, `root_quat`
    (t, 4) as (w, x, y, z) and `joint_pos` (t, j) in rad, optionally with `joint_names` (j).

    A `.csv` file has one frame per row and no header, as in the retargeted LAFAN1 motions: position of the base in m,
    its quaternion as (x, y, z, w), then the joints in rad, in the order of the robot's file.

    Args:
        path: The file.
        model: The robot. Joints of the robot that the file leaves out stay in their default positions.
        fps: Frames per second. Default: the file's own, or 30 for `.csv`.
        joint_names: The model's names of joints that the file calls otherwise.

    Raises:
        ConfigError: There is no such file, it has another layout, or it is of another robot.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"Motion file {path} does not exist. Give the path of an .npz or .csv file.")
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix not in readers:
        raise ConfigError(f"Motion file {path} must be an .npz or a .csv file. See docs/algorithms.md for the layouts.")
    motion = readers[path.suffix](path, model, fps)
    return _renamed(motion, model, joint_names or {}, path)


def save_motion(motion: Motion, path: str | Path) -> None:
    """Writes a motion as `.npz`, with the joints by name. Poses have 32 bits."""
    arrays = {name: getattr(motion, name).astype(np.float32) for name in _POSES}
    np.savez_compressed(path, allow_pickle=False, fps=motion.fps, joint_names=np.array(motion.joints), **arrays)


def _read_npz(path: Path, model: PhysicsModel, fps: float | None) -> Motion:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"Motion file {path} cannot be read as .npz ({type(error).__name__}: {error}).") from error
    if fps is None:
        if "fps" not in arrays:
            raise ConfigError(f"Motion file {path} has no 'fps'. Add it to the file, or give the rate of its frames.")
        fps_n = _numbers(path, "fps", arrays["fps"]).reshape(-1)
        check_rule(f"Motion file {path}: fps of shape {arrays['fps'].shape}", fps_n.size == 1, "one number")
        fps = float(fps_n[0])
    if "qpos" in arrays:
        return _from_qpos(path, model, _numbers(path, "qpos", arrays["qpos"]), fps)
    missing = [name for name in _POSES if name not in arrays]
    if missing:
        raise ConfigError(
            f"Motion file {path} has neither 'qpos' nor {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, arrays)) or 'nothing'}. Save qpos, or root_pos, root_quat and joint_pos."
        )
    root_pos, root_quat, joint_pos = (_numbers(path, name, arrays[name]) for name in _POSES)
    if "joint_names" in arrays:
        names = arrays["joint_names"]
        check_rule(f"Motion file {path}: joint_names of shape {names.shape}", names.ndim == 1, "a list of names")
        joints = tuple(str(name) for name in names)
    else:
        joints = _joints_in_order(path, model, joint_pos)
    return Motion(path.stem, fps, joints, root_pos, root_quat, joint_pos)


def _numbers(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    is_numeric = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    check_rule(f"Motion file {path}: {name} of type {array.dtype}", is_numeric, "of numbers")
    return np.asarray(array, float)


def _from_qpos(path: Path, model: PhysicsModel, qpos: np.ndarray, fps: float) -> Motion:
    num = model.mj_model.nq
    if qpos.ndim != 2 or qpos.shape[1] != num:
        raise ConfigError(
            f"Motion file {path}: qpos of shape {qpos.shape} must be of shape (frames, {num}), as the robot's. Save "
            "root_pos, root_quat, joint_pos and joint_names to map the joints by name."
        )
    return Motion(
        path.stem, fps, tuple(model.names.joints), *base_of_qpos(model.names, qpos), joints_of_qpos(model.names, qpos)
    )


def _read_csv(path: Path, model: PhysicsModel, fps: float | None) -> Motion:
    try:
        row_tn = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ConfigError(f"Motion file {path} cannot be read as rows of numbers without a header: {error}.") from error
    root_pos, xyzw, joint_pos = np.split(row_tn, [3, 7], axis=1)
    joints = _joints_in_order(path, model, joint_pos)
    return Motion(path.stem, fps or LAFAN1_FPS, joints, root_pos, xyzw[:, [3, 0, 1, 2]], joint_pos)


def _joints_in_order(path: Path, model: PhysicsModel, joint_pos: np.ndarray) -> tuple[str, ...]:
    """The names of the model's joints, where a file tells none."""
    joints = model.names.joints
    if joint_pos.ndim != 2 or joint_pos.shape[1] != len(joints):
        raise ConfigError(
            f"Motion file {path} has joint positions of shape {joint_pos.shape} and no names. Without names there must "
            f"be one for each of the robot's {len(joints)} joints: {', '.join(joints)}. Save them as .npz with "
            "joint_names."
        )
    return tuple(joints)


def _renamed(motion: Motion, model: PhysicsModel, joint_names: JointNames, path: Path) -> Motion:
    """The motion with the model's names of its joints, in the model's order."""
    for name in joint_names:
        if name not in motion.joints:
            raise ConfigError(
                f"joint_names maps {name!r}, but {path} has no such joint. {near_misses(name, motion.joints)}"
            )
    column: dict[str, int] = {}
    for i, name in enumerate(motion.joints):
        mapped = joint_names.get(name, name)
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
        raise ConfigError(f"{path} moves no joint of the robot: {', '.join(motion.joints) or 'it has no joints'}.")
    joints = tuple(name for name in model.names.joints if name in column)
    joint_pos = motion.joint_pos[:, [column[name] for name in joints]]
    return Motion(motion.name, motion.fps, joints, motion.root_pos, motion.root_quat, joint_pos)
