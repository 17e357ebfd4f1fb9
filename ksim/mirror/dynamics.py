"""Check that the mirror image of a motion is a motion of the robot, by two simulations side by side."""

import mujoco
import numpy as np

from ksim.mirror.model import ModelMirror
from ksim.physics.model import PhysicsModel

SECONDS, NUM_MOTIONS = 0.05, 8
"""Seconds per motion, and number of motions. In longer motions contacts amplify all differences, which makes small and
large ones harder to distinguish."""

_NOT_FINITE = tuple(int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{name}")) for name in ("CTRL", "QPOS", "QVEL", "QACC"))


def mirrored_dynamics_gap(physics_model: PhysicsModel, mirror: ModelMirror) -> float:
    """The distance between simulated mirrored motions and mirror images of motions, over the distance moved.

    Robots start near their default pose and are driven by random controls. 0 is a perfect mirror image; 1 is none.
    Slight differences between left and right, such as masses from a drawing, give a small number.

    Args:
        physics_model: The robot on a flat floor.
        mirror: The result of `mirror_model`.

    Returns:
        The gap; NaN if a simulation becomes non-finite.
    """
    model, rng = physics_model.mj_model, np.random.default_rng(0)
    gap = moved = 0.0
    for _ in range(NUM_MOTIONS):
        robot, image = mujoco.MjData(model), mujoco.MjData(model)
        robot.qpos[:] = physics_model.default_qpos
        places = physics_model.names.joint_qpos()
        robot.qpos[places] += rng.uniform(-0.2, 0.2, places.size)
        robot.qvel[:] = rng.normal(0, 0.5, model.nv)
        image.qpos[:], image.qvel[:] = mirror.qpos(robot.qpos), mirror.qvel(robot.qvel)
        start = robot.qpos.copy()
        low_u, high_u = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, [-1.0, 1.0]).T
        for _ in range(max(round(SECONDS / model.opt.timestep), 1)):
            robot.ctrl[:] = 0.1 * rng.uniform(low_u, high_u)
            image.ctrl[:] = mirror.ctrl(robot.ctrl)
            mujoco.mj_step(model, robot)
            mujoco.mj_step(model, image)
        if any(data.warning[kind].number for data in (robot, image) for kind in _NOT_FINITE):
            return float("nan")
        gap += float(np.square(mirror.qpos(robot.qpos) - image.qpos).sum())
        moved += float(np.square(robot.qpos - start).sum())
    return float(np.sqrt(gap / max(moved, 1e-12)))
