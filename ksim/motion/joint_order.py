"""The joint order of a file that does not name its joints but has the positions of all bodies."""

from pathlib import Path

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.motion.raw import RawMotion
from ksim.physics.model import PhysicsModel
from ksim.physics.names import states_of_motion

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
    quat_t4 = raw.root_quat[frames]
    quat_t4 = quat_t4[:, [3, 0, 1, 2]] if quaternions == "xyzw" else quat_t4
    poses = raw.root_pos[frames], quat_t4, raw.joint_pos[frames]
    at_rest = np.zeros((len(frames), 3)), np.zeros((len(frames), 3)), np.zeros_like(poses[2])
    qpos_tq, _ = states_of_motion(model.names, model.default_qpos, joints, poses, at_rest)
    data, distances = mujoco.MjData(model.mj_model), []
    for qpos, expected in zip(qpos_tq, raw.body_pos[frames], strict=True):
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model.mj_model, data)
        distances.append(np.linalg.norm(data.xpos[bodies] - expected, axis=1).max())
    return float(np.max(distances))
