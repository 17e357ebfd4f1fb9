"""Motions as read from files: text tables, pickled dictionaries, files without joint names."""

import csv
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics.model import PhysicsModel
from ksim.physics.names import states_of_motion

Quaternions = Literal["wxyz", "xyzw"]
Angles = Literal["rad", "deg"]
QUATERNIONS: tuple[Quaternions, ...] = ("wxyz", "xyzw")
ANGLES: tuple[Angles, ...] = ("rad", "deg")


class RawMotion(NamedTuple):
    """The columns of a file.

    Attributes:
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


def wxyz(quat_t4: np.ndarray, order: str) -> np.ndarray:
    """Quaternions of an order as (w, x, y, z); anything else than rows of four unchanged."""
    return quat_t4[:, [3, 0, 1, 2]] if order == "xyzw" and quat_t4.ndim == 2 and quat_t4.shape[1] == 4 else quat_t4


class Reading(NamedTuple):
    """The user's settings for reading a file; None: as the file says.

    Attributes:
        quaternions: The order of quaternions: wxyz or xyzw.
        angles: The unit of hinges: rad or deg.
        joints: Names of the columns of joints, in the file's order.
    """

    fps: float | None = None
    quaternions: str | None = None
    angles: str | None = None
    joints: tuple[str, ...] | None = None


class _ArraysOnly(pickle._Unpickler):  # type: ignore[name-defined]
    """An unpickler for arrays of numbers and plain containers only.

    It uses the Python implementation, because the C implementation allocates memory for any index that a file names. It
    only calls the functions below, which make arrays from the bytes in the file.
    """

    def find_class(self, module: str, name: str) -> Any:
        parts = module.replace("numpy._core", "numpy.core").removeprefix("numpy.core.")
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy", "dtype"): _number_type,
            ("numpy", "ndarray"): _Array,
            ("multiarray", "_reconstruct"): lambda *_: _Array(),
            ("multiarray", "scalar"): lambda dtype, data: _array(dtype, (), data),
            ("numeric", "_frombuffer"): lambda data, dtype, shape, order: _array(dtype, shape, data, order),
            ("_codecs", "encode"): _latin1,
        }
        if (parts, name) not in known:
            raise pickle.UnpicklingError(f"it would run {module}.{name}")
        return known[parts, name]


class _Number:
    """A numeric dtype under construction: NumPy sets the byte order afterwards."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            self.code = state[1] + self.code.lstrip("<>=|")

    @property
    def dtype(self) -> np.dtype:
        dtype = np.dtype(self.code)
        if dtype.kind not in "biufU":
            raise pickle.UnpicklingError(f"it has an array of {dtype}")
        return dtype


class _Array:
    """An array under construction."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.array = _array(dtype, shape, data, "F" if is_fortran else "C")


def _number_type(code: Any, *_: Any) -> _Number:
    if not isinstance(code, str) or len(code) > 8:
        raise pickle.UnpicklingError("it has a type that is none of numbers")
    return _Number(code)


def _array(dtype: Any, shape: Any, data: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Number):
        raise pickle.UnpicklingError("it has an array that is none of numbers")
    return np.frombuffer(bytes(data), dtype.dtype).reshape(shape, order=order)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it would decode {encoding!r:.40}")
    return text.encode("latin1")


def load_arrays(content: bytes) -> Any:
    """The content of a pickle: dicts, lists, numbers, texts and NumPy arrays of numbers.

    Raises:
        ValueError: The pickle contains anything else, or is damaged.
    """
    try:
        return _plain(_ArraysOnly(io.BytesIO(content)).load())
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _plain(value: Any, depth: int = 0) -> Any:
    """The value with its arrays completed."""
    if depth > 3:  # objects shared by nested lists would grow exponentially
        raise ValueError("it is nested too deeply")
    if isinstance(value, _Array):
        if value.array is None:
            raise ValueError("it has an array without numbers")
        return value.array
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic):
        return value
    raise ValueError(f"it has a {type(value).__name__}")


_BASE = r"(?:root|base|pelvis|trunk|torso|floating_base|free_joint)?[_. ]*"
_POSITION = re.compile(_BASE + r"(?:pos|position|trans|translation|translate|t|p)?[_. ]*([xyz])")
_QUATERNION = re.compile(_BASE + r"(?:q|quat|quaternion|rot|rotation|orientation|orn|ori|r)[_. ]*([wxyz])")
_TIME = ("time", "t", "time_s", "timestamp")
_COUNTERS = ("frame", "index", "frame_index", "")
_ENDS = ("_dof", "_pos", "_position")

_RATES = (1.0, 10_000.0)
"""Plausible range of the frames per second computed from a column of times."""


def read_table(path: Path) -> RawMotion:
    """A motion of a `.csv` file: the layout of the retargeted LAFAN1 motions, or columns that a header names.

    Raises:
        ConfigError: The file has none of these layouts.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(f"Motion file {path} cannot be read as .csv ({type(error).__name__}: {error}).") from error
    header = [cell.strip() for cell in rows[0]] if rows and not _is_numbers(rows[0]) else None
    body = rows[1:] if header else rows
    width = len(header or (rows[0] if rows else []))
    for number, row in enumerate(body, start=2 if header else 1):
        if len(row) != width or not _is_numbers(row):
            raise ConfigError(
                f"Motion file {path} must have {width} numbers in each row after the first, but row {number} has "
                f"{','.join(row)!r:.60}."
            )
    table_tn = np.array(body, float).reshape(len(body), width)
    if header:
        return _by_header(path, header, table_tn)
    root_pos, root_quat, joint_pos = np.split(table_tn, [3, 7], axis=1)
    return RawMotion(".csv without a header", root_pos, root_quat, joint_pos, "xyzw")


def _is_numbers(row: list[str]) -> bool:
    try:
        [float(cell) for cell in row]
    except ValueError:
        return False
    return True


def _by_header(path: Path, header: list[str], table_tn: np.ndarray) -> RawMotion:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ConfigError(f"Motion file {path} has two columns {twice[0]!r}. Rename or remove one of them.")
    position: dict[str, int] = {}
    quaternion: dict[str, int] = {}
    joints: dict[str, int] = {}
    fps = None
    for column, name in enumerate(header):
        lower = name.lower()
        if lower in _TIME:
            fps = _rate_of(path, name, table_tn[:, column])
            continue
        if lower in _COUNTERS:
            continue
        if match := _QUATERNION.fullmatch(lower):
            kind, key = quaternion, match[1]
        elif match := _POSITION.fullmatch(lower):
            kind, key = position, match[1]
        else:
            kind, key = joints, next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)
        if kind.setdefault(key, column) != column:
            raise ConfigError(
                f"Motion file {path}: columns {header[kind[key]]!r} and {name!r} may both be {key!r} of the base, or "
                "the same joint. Remove one of them."
            )
    missing = [f"position {x}" for x in "xyz" if x not in position]
    missing += [f"quaternion {x}" for x in "wxyz" if x not in quaternion]
    if missing:
        raise ConfigError(
            f"Motion file {path}: its header must name the base's {', '.join(missing)}, such as root_pos_x and "
            f"root_quat_w. It names {', '.join(header)}."
        )
    return RawMotion(
        ".csv with a header",
        table_tn[:, [position[x] for x in "xyz"]],
        table_tn[:, [quaternion[x] for x in "wxyz"]],
        table_tn[:, list(joints.values())],
        fps=fps,
        joints=tuple(joints),
        names_quaternions=True,
    )


def _rate_of(path: Path, name: str, time_t: np.ndarray) -> float:
    """The frames per second of a column of times in s."""
    steps = np.diff(time_t)
    if not len(steps) or not steps.min() > 0 or steps.max() - steps.min() > 0.1 * steps.mean():
        raise ConfigError(
            f"Motion file {path}: the times of column {name!r} must grow by equal steps, in s. Resample the motion to "
            "a constant rate."
        )
    fps = float(1 / steps.mean())
    if not _RATES[0] <= fps <= _RATES[1]:
        raise ConfigError(
            f"Motion file {path}: by column {name!r} the motion has {fps:.3g} frames per second; {_RATES[0]:g} to "
            f"{_RATES[1]:g} are possible. Give the times in s, or remove the column and set motion_fps."
        )
    return round(fps, 3)


_NEAR = 0.05
"""Largest distance, in m, of the file's bodies from those of the robot with the file's joints."""
_FRAMES = 8


def joints_by_bodies(path: Path, raw: RawMotion, model: PhysicsModel, quaternions: str) -> tuple[str, ...]:
    """The robot's joints in the order for which its bodies match the file's body positions.

    mjlab uses MuJoCo's order, depth first. Isaac Lab, and so BeyondMimic, goes level by level, across the limbs.

    Raises:
        ConfigError: No order does.
    """
    mj_model, body_pos = model.mj_model, raw.body_pos
    assert body_pos is not None
    bodies = {"MuJoCo's": np.arange(1, mj_model.nbody), "Isaac Lab's": _by_levels(mj_model)}
    joints, distance = {}, {}
    if body_pos.shape[:2] == (len(raw.joint_pos), mj_model.nbody - 1) and len(raw.joint_pos) > 0:
        for name, order in bodies.items():
            joints[name] = _joints_of(mj_model, order, model.names.joints)
            distance[name] = _distance(raw, model, joints[name], order, quaternions)
        best, other = sorted(distance, key=lambda name: distance[name])
        is_clear = joints[best] == joints[other] or distance[other] > 3 * distance[best] + 0.005
        if distance[best] < _NEAR and is_clear:
            return joints[best]
    found = ", ".join(f"in {name} order {x:.2f} m" for name, x in distance.items())
    raise ConfigError(
        f"Motion file {path} does not name its joints, and no single order of them puts the robot's "
        f"{mj_model.nbody - 1} bodies where the file has its {body_pos.shape[1]}"
        f"{f' (off by {found})' if found else ''}. It may be of another robot, or its angles in degrees. Else name the "
        "file's joints in its order: motion_joints (style_joints for the clips of a style; joints in Python)."
    )


def _by_levels(mj_model: mujoco.MjModel) -> np.ndarray:
    """All bodies except the world, level by level of the tree."""
    level = np.zeros(mj_model.nbody, int)
    for body in range(1, mj_model.nbody):
        level[body] = level[mj_model.body_parentid[body]] + 1
    return np.argsort(level, kind="stable")[1:]


def _joints_of(mj_model: mujoco.MjModel, bodies: np.ndarray, known: list[str]) -> tuple[str, ...]:
    """The hinge and slide joints of bodies, in order."""
    names = [
        mj_model.joint(joint).name
        for body in bodies
        for joint in range(mj_model.body_jntadr[body], mj_model.body_jntadr[body] + mj_model.body_jntnum[body])
    ]
    return tuple(name for name in names if name in known)


def _distance(
    raw: RawMotion, model: PhysicsModel, joints: tuple[str, ...], bodies: np.ndarray, quaternions: str
) -> float:
    """The largest distance of a robot's body from the file's, in m, over `_FRAMES` frames."""
    assert raw.body_pos is not None
    frames = np.unique(np.linspace(0, len(raw.joint_pos) - 1, _FRAMES).astype(int))
    poses = raw.root_pos[frames], wxyz(raw.root_quat[frames], quaternions), raw.joint_pos[frames]
    at_rest = np.zeros((len(frames), 3)), np.zeros((len(frames), 3)), np.zeros_like(poses[2])
    qpos_tq, _ = states_of_motion(model.names, model.default_qpos, joints, poses, at_rest)
    data, distances = mujoco.MjData(model.mj_model), []
    for qpos, expected in zip(qpos_tq, raw.body_pos[frames], strict=True):
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model.mj_model, data)
        distances.append(np.linalg.norm(data.xpos[bodies] - expected, axis=1).max())
    return float(np.max(distances))
