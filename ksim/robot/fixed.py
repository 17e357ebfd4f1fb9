"""The plan of a task for a robot that is fixed to the world: an arm that reaches, or a pole that balances."""

import dataclasses
from collections.abc import Iterator, Sequence

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.robot.findings import Findings, clipped_reference
from ksim.robot.gains import gains_of
from ksim.robot.geometry import in_world, lowest_point
from ksim.robot.patterns import grouped
from ksim.robot.plan import Plan, Report, add_world, own_kp, torque_limits, with_gains

FREQUENCY_HZ = 2.0
"""Natural frequency of an arm's joints, in Hz."""


def fixed_plan(spec: mujoco.MjSpec, model: mujoco.MjModel, found: Findings, report: Report) -> Plan:
    """Chooses the plan, and adds the guesses to the report.

    Args:
        spec: The robot; a ground is added.
        model: The compiled robot.

    Raises:
        ConfigError: Some joints are undriven, but none of them is a hinge that could balance.
    """
    floor = _below(model, found)
    plan = Plan(found, report, add_world(spec, report, floor), floor=floor)
    assert found.tip is not None
    tip = f"The point of body {found.tip[0]!r} that is farthest from its joint"
    if found.other_arms:
        report.unknown.append(f"What the joints that lead to {', '.join(map(repr, found.other_arms))} are for.")
    if found.kind == "balance":
        low, high, starts_up = _tip_heights(model, found)
        report.guessed.append(f"The task: to keep {tip[0].lower()}{tip[1:]} up, because not every joint is driven.")
        report.guessed.append(
            "It starts " + ("upright." if starts_up else "hanging, and must swing up: that may take longer.")
        )
        return dataclasses.replace(plan, tip_heights=(low, high), starts_up=starts_up)
    why = "the file drives every joint" if found.drive != "none" else "with motors on every joint it can"
    report.guessed.append(f"The task: {tip[0].lower()}{tip[1:]} reaches for points, because {why}.")
    qpos = model.key_qpos[0].copy() if model.nkey else clipped_reference(model)
    if found.drive != "other":
        joints = found.driven or found.joints
        limits, kp = torque_limits(spec), own_kp(model, found)
        gains = gains_of(model, qpos, joints, (), limits=limits, frequency_hz=FREQUENCY_HZ, own_kp=kp)
        plan = with_gains(plan, gains, found)
        if found.drive == "none":
            report.guessed.append("Motors on all joints, as strong as twice the weight that they carry.")
            report.unknown.append(
                "Which joints are meant to have none, as that of a pole on a cart: give the others motors."
            )
        report.guessed.append("Servo gains from weights, reach and inertias (see ksim.robot.gains).")
    if not np.allclose(qpos, model.key_qpos[0] if model.nkey else model.qpos0):
        values = {name: float(qpos[model.joint(name).qposadr[0]]) for name in found.joints}
        plan = dataclasses.replace(plan, pose=grouped(values, decimals=2))
    box, size = _reachable(model, found, qpos)
    return dataclasses.replace(plan, reach=box, coarse=max(round(size / 4, 2), 0.01))


def _reachable(
    model: mujoco.MjModel, found: Findings, qpos: np.ndarray, num_poses: int = 1000
) -> tuple[tuple[tuple[float, float], ...], float]:
    """Ranges of x, y and z in which an arm's tip is in most poses, and the diagonal of their box, all in m."""
    joints = found.driven or found.joints
    points = [_tip_position(model, data, found) for data in _random_poses(model, joints, qpos, num_poses)]
    lowest, highest = np.quantile(points, [0.15, 0.85], axis=0)
    ranges = tuple((round(float(a), 2), round(float(b), 2)) for a, b in zip(lowest, highest, strict=True))
    return ranges, float(np.linalg.norm(highest - lowest))


def _random_poses(
    model: mujoco.MjModel, joints: Sequence[str], qpos: np.ndarray, count: int
) -> Iterator[mujoco.MjData]:
    """The given pose, then poses with joints drawn within their ranges (unlimited hinges: a full turn, slides: 1 m)."""
    rng, data = np.random.default_rng(0), mujoco.MjData(model)
    ids = np.array([model.joint(name).id for name in joints])
    places, limited = model.jnt_qposadr[ids], model.jnt_limited[ids].astype(bool)
    turn = np.where(model.jnt_type[ids] == int(mujoco.mjtJoint.mjJNT_HINGE), np.pi, 1.0)
    low, high = np.where(limited, model.jnt_range[ids].T, [-turn, turn])
    for i in range(count):
        data.qpos[:] = qpos
        if i:
            data.qpos[places] = rng.uniform(low, high)
        mujoco.mj_kinematics(model, data)
        yield data


def _below(model: mujoco.MjModel, found: Findings) -> float:
    """A height for the floor, in m, that no part of a fixed robot reaches; 0 if the robot stays above 0."""
    geoms = [g for g in range(model.ngeom) if model.body_weldid[model.geom_bodyid[g]] != 0]
    heights = [
        float(lowest_point(model, data, g)[2])
        for data in _random_poses(model, found.joints, model.qpos0, 200)
        for g in geoms
    ]
    return min(0.0, round(min(heights, default=0.0) - 0.05, 2))


def _tip_position(model: mujoco.MjModel, data: mujoco.MjData, found: Findings) -> np.ndarray:
    assert found.tip is not None
    return in_world(data, model.body(found.tip[0]).id, found.tip[1])


def _tip_heights(model: mujoco.MjModel, found: Findings) -> tuple[float, float, bool]:
    """The lowest and highest height of the tip around the first undriven hinge, in m, and whether it starts upright."""
    data = mujoco.MjData(model)
    data.qpos[:] = model.key_qpos[0] if model.nkey else model.qpos0
    mujoco.mj_kinematics(model, data)
    passive = [model.joint(name).id for name in found.joints if name not in found.driven]
    hinges = [j for j in passive if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_HINGE)]
    if not hinges:
        names = ", ".join(model.joint(j).name for j in passive)
        raise ConfigError(
            f"The robot is fixed to the world and nothing drives {names}, which turns nothing that could balance. "
            "Give it an actuator, or the robot a <freejoint/>."
        )
    middle, tip = data.xanchor[hinges[0]], _tip_position(model, data, found)
    radius = float(np.linalg.norm(tip - middle))
    return round(middle[2] - radius, 3), round(middle[2] + radius, 3), bool(tip[2] > middle[2] + 0.5 * radius)
