"""Gains, torque limits and action scales of servos, from masses and reach.

Two rules, and the larger stiffness holds:

- *Load.* A joint of a leg gives way by `LEG_SAG_RAD` when the robot's weight hangs on it at the distance of the foot:
  kp = m g r / LEG_SAG_RAD. With a sag of 1 rad that is the stiffness that just balances an inverted pendulum of
  length r and the robot's mass. Any other joint gives way by `SAG_RAD`, or a slide by `SAG_M`, under all it carries.
- *Speed.* It moves what it carries with a natural frequency f: kp = I (2 pi f)^2, where I is the joint's own entry of
  the mass matrix, which holds its armature and the composite inertia of the bodies beyond it.

The damping is kd = 2 z sqrt(kp I), with a damping ratio z, and at least kp * `LEAST_DAMPING_S`, since what a leg
carries in stance is more than I. For a robot with legs an action of 1 asks for the fraction `TORQUE_PART` of the torque
limit: action_scale = TORQUE_PART * limit / kp, within `ACTION_SCALE_RAD` and a quarter of the joint's range. For
another it is that quarter.

The natural frequency, the damping ratio and the action scale of legs follow Liao et al. 2025, "BeyondMimic"
(arXiv:2508.08241). They take I as the reflected inertia of the motor alone, which most models do not tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from ksim.robot.findings import Leg

LEG_SAG_RAD = 1.0
SAG_RAD = 0.25
SAG_M = 0.01
DAMPING_RATIO = 0.4
LEAST_DAMPING_S = 0.025
TORQUE_PART = 0.35
ACTION_SCALE_RAD = (0.25, 0.4)


@dataclass(frozen=True)
class Gains:
    """A servo for each joint, by the joint's name.

    Attributes:
        kp: Stiffness, in N m/rad (N/m on slides).
        kd: Damping, in N m s/rad.
        torque: What a motor should be able to give, in N m: what the rules take as load.
        action_scale: rad (m) of target per unit of action.
    """

    kp: Mapping[str, float]
    kd: Mapping[str, float]
    torque: Mapping[str, float]
    action_scale: Mapping[str, float]


def gains_of(
    model: mujoco.MjModel,
    qpos: np.ndarray,
    joints: Sequence[str],
    legs: Sequence[Leg],
    *,
    limits: Mapping[str, float],
    frequency_hz: float,
    own_kp: Mapping[str, float] | None = None,
) -> Gains:
    """Gains by the rules of this module.

    Args:
        model: The robot.
        qpos: Its standing pose.
        joints: Joints to drive.
        legs: Its legs; none for one that is fixed to the world.
        limits: Torque limits that are known, in N m, by joint.
        own_kp: Stiffness of servos that the model has, by joint; it stays.
        frequency_hz: Natural frequency of a joint that carries no load: 1.5 times that of the gait.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    inertia = {name: float(full[dof, dof]) for name in joints for dof in [model.joint(name).dofadr[0]]}
    in_leg = {joint: leg for leg in legs for joint in leg.joints}
    weight = float(np.linalg.norm(model.opt.gravity)) or 9.81
    kp: dict[str, float] = {}
    kd: dict[str, float] = {}
    torque: dict[str, float] = {}
    scale: dict[str, float] = {}
    for name in joints:
        if name in in_leg:
            load = model.body_subtreemass[0] * weight * _reach(model, data, name, in_leg[name])
            stiffness, needed = load / LEG_SAG_RAD, load
        else:
            load = _weight_moment(model, data, name, weight)
            is_slide = model.jnt_type[model.joint(name).id] == int(mujoco.mjtJoint.mjJNT_SLIDE)
            stiffness, needed = load / (SAG_M if is_slide else SAG_RAD), 2 * load
        by_speed = inertia[name] * (2 * np.pi * frequency_hz) ** 2
        kp[name] = (own_kp or {}).get(name) or max(stiffness, by_speed)
        kd[name] = max(2 * DAMPING_RATIO * np.sqrt(kp[name] * inertia[name]), LEAST_DAMPING_S * kp[name])
        low, high = model.joint(name).range if model.jnt_limited[model.joint(name).id] else (-np.pi, np.pi)
        quarter = float(high - low) / 4
        torque[name] = max(needed, kp[name] * min(0.5, quarter))
        by_torque = np.clip(TORQUE_PART * limits.get(name, torque[name]) / kp[name], *ACTION_SCALE_RAD)
        scale[name] = min(float(by_torque), quarter) if legs else quarter
    return Gains(kp, kd, torque, scale)


def _reach(model: mujoco.MjModel, data: mujoco.MjData, joint: str, leg: Leg) -> float:
    """The largest distance, in m, of a corner of the foot's box from the axis of a joint."""
    body = model.body(leg.body).id
    corners = leg.pos + leg.size * np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    points = data.xpos[body] + corners @ data.xmat[body].reshape(3, 3).T
    j = model.joint(joint).id
    arms = np.cross(points - data.xanchor[j], data.xaxis[j])
    return float(np.linalg.norm(arms, axis=1).max())


def _weight_moment(model: mujoco.MjModel, data: mujoco.MjData, joint: str, weight: float) -> float:
    """The most that the weight beyond a joint can press on it, in N m (N on a slide), whichever way it is turned."""
    j = model.joint(joint).id
    body = int(model.jnt_bodyid[j])
    mass = float(model.body_subtreemass[body])
    if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_SLIDE):
        return mass * weight
    arm_3 = data.subtree_com[body] - data.xanchor[j]
    across = float(np.linalg.norm(np.cross(arm_3, data.xaxis[j])))
    # Also what a joint turns about its own axis is not perfectly balanced.
    return mass * weight * max(across, 0.3 * float(np.linalg.norm(arm_3)))
