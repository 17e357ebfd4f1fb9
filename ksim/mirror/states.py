"""Random states in which all sensor readings vary: moving freely, lying in any pose, joints beyond their limits."""

import dataclasses

import mujoco
import numpy as np
from jaxtyping import Float

from ksim.mirror.model import BALL, FREE
from ksim.physics.model import PhysicsModel

BEYOND_PART = 0.05
"""Fraction of their range by which joints go beyond their limits."""
DEPTH_PART = 0.03
"""Largest penetration of the ground, as a fraction of the robot's size."""
_BISECTIONS, _STEPS_DOWN = 12, 40


@dataclasses.dataclass(frozen=True)
class TrialStates:
    """Sequences of states: s sequences of t states."""

    qpos: Float[np.ndarray, "s t q"]
    qvel: Float[np.ndarray, "s t v"]
    act: Float[np.ndarray, "s t a"]


def trial_states(physics_model: PhysicsModel, num_sequences: int, num_steps: int) -> TrialStates:
    """Random states, the same in each run.

    Every other state is near the default pose, at about standing height. In the others, joints are anywhere up to and
    beyond their limits, and the robot lies on the ground on any side, so that any of its parts may touch it.

    Args:
        physics_model: The robot on a flat floor.
        num_steps: Number of states of each sequence.
    """
    model, rng = physics_model.mj_model, np.random.default_rng(0)
    count = num_sequences * num_steps
    data = mujoco.MjData(model)
    qpos = np.stack([_pose(physics_model, data, rng, is_wild=bool(i % 2)) for i in range(count)])
    low, high = np.where(model.actuator_actlimited[:, None], model.actuator_actrange, [-1.0, 1.0]).T
    owner = np.repeat(np.arange(model.nactuator), model.actuator_actnum)
    shaped = lambda x: x.reshape(num_sequences, num_steps, -1)
    return TrialStates(
        shaped(qpos),
        shaped(0.5 * rng.normal(size=(count, model.nv))),
        shaped(rng.uniform(low[owner], high[owner], (count, model.na))),
    )


def _pose(physics_model: PhysicsModel, data: mujoco.MjData, rng: np.random.Generator, *, is_wild: bool) -> np.ndarray:
    model = physics_model.mj_model
    qpos = np.array(physics_model.default_qpos, np.float64)
    for j, kind in enumerate(model.jnt_type.tolist()):
        place = int(model.jnt_qposadr[j])
        if kind == FREE:
            turn = _any_turn(rng) if is_wild else _small_turn(rng, 0.3, np.pi)
            qpos[place : place + 3] += rng.uniform(-1, 1, 3) * [1.0, 1.0, 0.05]
            qpos[place + 3 : place + 7] = _product(turn, qpos[place + 3 : place + 7])
        elif kind == BALL:
            turn = _any_turn(rng) if is_wild else _small_turn(rng, 0.4, 0.4)
            qpos[place : place + 4] = _product(qpos[place : place + 4], turn)
        else:
            qpos[place] = _joint_position(model, j, qpos[place], rng, is_wild=is_wild)
    if is_wild and physics_model.names.has_base:
        _lay_down(model, data, qpos, physics_model.names.free_joint()[0] + 2, rng)
    return qpos


def _joint_position(
    model: mujoco.MjModel, joint: int, default: float, rng: np.random.Generator, *, is_wild: bool
) -> float:
    is_hinge = model.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_HINGE)
    far = np.pi if is_hinge else 0.3
    low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (default - far, default + far)
    if is_wild:
        beyond = BEYOND_PART * (high - low)
        return rng.uniform(low - beyond, high + beyond)
    return float(np.clip(default + rng.uniform(-0.4, 0.4), low, high))


def _lay_down(
    model: mujoco.MjModel, data: mujoco.MjData, qpos: np.ndarray, height: int, rng: np.random.Generator
) -> None:
    """Moves the base down until the robot presses the ground; does nothing without one. `height`: its index in qpos."""
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    base = int(model.jnt_bodyid[np.flatnonzero(model.jnt_qposadr == height - 2)[0]])
    is_own_b = model.body_rootid == model.body_rootid[base]
    moving = np.flatnonzero(is_own_b[model.geom_bodyid])
    if not moving.size:
        return
    off_g = np.linalg.norm(data.geom_xpos[moving] - qpos[height - 2 : height + 1], axis=1) + model.geom_rbound[moving]
    size = max(float(np.median(off_g)), 1e-3)

    def touches(z: float) -> bool:
        data.qpos[height] = z
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        body_c2 = model.geom_bodyid[data.contact.geom]
        is_own_c, is_fixed_c = is_own_b[body_c2].any(axis=-1), (model.body_weldid[body_c2] == 0).any(axis=-1)
        return bool(np.any(is_own_c & is_fixed_c & (data.contact.dist < 0))) if data.ncon else False

    above = top = abs(qpos[height]) + 2 * float(off_g.max())
    for step in range(1, _STEPS_DOWN + 1):
        below = top - 2 * top * step / _STEPS_DOWN
        if touches(below):
            break
        above = below
    else:
        return
    for _ in range(_BISECTIONS):
        middle = (above + below) / 2
        above, below = (above, middle) if touches(middle) else (middle, below)
    qpos[height] = below - rng.uniform(0, DEPTH_PART) * size


def _any_turn(rng: np.random.Generator) -> np.ndarray:
    turn = rng.normal(size=4)
    return turn / np.linalg.norm(turn)


def _small_turn(rng: np.random.Generator, tilt: float, yaw: float) -> np.ndarray:
    """A random quaternion: a tilt of up to `tilt`, then a turn about the vertical of up to `yaw`, in rad."""
    turn, lean = np.zeros(4), np.zeros(4)
    direction = rng.uniform(-np.pi, np.pi)
    mujoco.mju_axisAngle2Quat(turn, np.array([0.0, 0.0, 1.0]), rng.uniform(-yaw, yaw))
    mujoco.mju_axisAngle2Quat(
        lean, np.array([np.cos(direction), np.sin(direction), 0.0]), tilt * np.sqrt(rng.uniform())
    )
    return _product(turn, lean)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    product = np.zeros(4)
    mujoco.mju_mulQuat(product, left, right)
    return product
