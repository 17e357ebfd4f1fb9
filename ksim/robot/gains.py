"""Gains, torque limits and action scales of servos, from masses and reach.

The stiffness is the larger one of two rules:

- *Load.* A leg's joint deflects by `LEG_SAG_RAD` if it bears the robot's weight at the distance of the foot:
  kp = m g r / LEG_SAG_RAD. For a sag of 1 rad this is the stiffness that just balances an inverted pendulum of
  length r and the robot's mass. Any other joint deflects by `SAG_RAD` (slides: `SAG_M`) under the load that it carries.
- *Speed.* A joint moves its load with a natural frequency f: kp = I (2 pi f)^2. I is the joint's diagonal entry of the
  mass matrix, which contains its armature and the composite inertia of the bodies beyond it.

The damping is kd = 2 z sqrt(kp I), with a damping ratio z. It is at least kp * `LEAST_DAMPING_S`, since the load of a
leg in stance is larger than I. For a legged robot, an action of 1 commands the fraction `TORQUE_PART` of the torque
limit: action_scale = TORQUE_PART * limit / kp, within `ACTION_SCALE_RAD` and at most a quarter of the joint's range.
For other robots, action_scale is a quarter of the joint's range.

The natural frequency, the damping ratio and the action scale of legs follow Liao et al. 2025, "BeyondMimic"
(arXiv:2508.08241). They use only the motor's reflected inertia as I, which most models do not specify.
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
    """Servo parameters by joint name.

    Attributes:
        kp: Stiffness, in N m/rad (N/m on slides).
        kd: Damping, in N m s/rad.
        torque: Torque that a motor should be able to provide, in N m (N on slides), from the load of the rules.
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
        qpos: The standing pose.
        joints: Joints to drive.
        legs: The robot's legs; empty if it is fixed to the world.
        limits: Known torque limits by joint, in N m.
        own_kp: Stiffness of the model's own servos by joint; it is kept.
        frequency_hz: Natural frequency of an unloaded joint, in Hz. For legs: 1.5 times the gait's frequency.
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
    """The largest distance of a corner of the foot's box from the axis of a joint, in m."""
    body = model.body(leg.body).id
    corners = leg.pos + leg.size * np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    points = data.xpos[body] + corners @ data.xmat[body].reshape(3, 3).T
    j = model.joint(joint).id
    arms = np.cross(points - data.xanchor[j], data.xaxis[j])
    return float(np.linalg.norm(arms, axis=1).max())


def _weight_moment(model: mujoco.MjModel, data: mujoco.MjData, joint: str, weight: float) -> float:
    """The largest load on a joint by the weight beyond it, in N m (N on a slide), over all directions of gravity."""
    j = model.joint(joint).id
    body = int(model.jnt_bodyid[j])
    mass = float(model.body_subtreemass[body])
    if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_SLIDE):
        return mass * weight
    arm_3 = data.subtree_com[body] - data.xanchor[j]
    across = float(np.linalg.norm(np.cross(arm_3, data.xaxis[j])))
    # A load that turns about its own axis is not perfectly balanced either.
    return mass * weight * max(across, 0.3 * float(np.linalg.norm(arm_3)))
