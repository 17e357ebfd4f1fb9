"""Motions as text tables: one frame per row, with or without a header."""

import csv
import re
from pathlib import Path

import numpy as np

from ksim.errors import ConfigError
from ksim.motion.raw import RawMotion

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
