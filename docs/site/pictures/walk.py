"""A walk of the robot of the pictures, drawn by hand: joints follow a clock, and feet touch the ground as it says."""

import functools
import math

import mujoco
import numpy as np

from docs.site.pictures.robot import DT, STAND, context, joint_angles, lowest_point, model
from docs.site.pictures.snapshot import Snapshot

PERIOD_S, DUTY, SPEED = 0.8, 0.6, 0.5
WEIGHT_N = 100.0


def leg(phase: float) -> dict[str, float]:
    """Angles of a leg, in rad, at a phase from 0: its stance begins; from `DUTY` on it swings."""
    if phase < DUTY:
        along, lift = 1 - 2 * phase / DUTY, 0.0
    else:
        swing = (phase - DUTY) / (1 - DUTY)
        along, lift = -math.cos(math.pi * swing), math.sin(math.pi * swing)
    hip, knee = STAND["hip"] - 0.35 * along - 0.25 * lift, STAND["knee"] + 0.75 * lift
    return {"hip": hip, "knee": knee, "ankle": -hip - knee}


def phases(time_s: float, period_s: float = PERIOD_S) -> tuple[float, float]:
    """Phases of the left and of the right foot."""
    return (time_s / period_s) % 1.0, (time_s / period_s + 0.5) % 1.0


def pose(time_s: float, period_s: float = PERIOD_S) -> dict[str, float]:
    """Angles of all joints of the walk, in rad, by name."""
    both = zip(("left", "right"), phases(time_s, period_s), strict=True)
    return joint_angles(**{f"{side}_{joint}": angle for side, phase in both for joint, angle in leg(phase).items()})


@functools.cache
def walk(seconds: float = 1.6, period_s: float = PERIOD_S, stops_s: float = 1e9) -> tuple[Snapshot, ...]:
    """The walk at the control rate, at a command named `command` to go forward.

    Args:
        seconds: How long.
        period_s: Of a stride.
        stops_s: When the robot stops and stands, as then commanded.
    """
    frames = []
    for step in range(round(seconds / DT) + 1):
        time_s = step * DT
        moves = time_s < stops_s
        now, later = (pose(t, period_s) if moves else joint_angles() for t in (time_s, time_s + 1e-3))
        down = [phase < DUTY or not moves for phase in phases(time_s, period_s)]
        frames.append(
            context(
                joints=now,
                joint_vel={name: (later[name] - now[name]) / 1e-3 for name in now},
                at=(min(time_s, stops_s) * SPEED, 0.0),
                lin_vel=(SPEED if moves else 0.0, 0.0, 0.0),
                touch=[WEIGHT_N / sum(down) if is_down else 0.0 for is_down in down],
                episode_step=np.int32(step),
                commands={"command": np.array([SPEED if moves else 0.0, 0, 0], np.float32)},
            )
        )
    return tuple(frames)


def contacts(frames: tuple[Snapshot, ...]) -> np.ndarray:
    """Whether each foot is down, (time, foot)."""
    return np.array([[float(seen.sensor(name)[0]) > 1 for name in ("left_touch", "right_touch")] for seen in frames])


def foot_heights(frames: tuple[Snapshot, ...]) -> np.ndarray:
    """Heights of the soles above the ground, in m, (time, foot)."""
    mj_model, heights = model().mj_model, []
    data = mujoco.MjData(mj_model)
    for seen in frames:
        data.qpos = seen.physics.qpos
        mujoco.mj_kinematics(mj_model, data)
        heights.append([lowest_point(mj_model, data, name) for name in ("left_foot", "right_foot")])
    return np.array(heights)
