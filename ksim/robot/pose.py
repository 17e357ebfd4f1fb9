"""A pose in which a robot stands, found by letting it settle."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from scipy.optimize import least_squares

from ksim.errors import ConfigError
from ksim.physics import Ground
from ksim.physics.names import base_height_of, base_rotation, with_level_base
from ksim.physics.trees import OPEN, Loops
from ksim.robot.describe import Leg, clipped_reference, collides, in_world, lowest_point, posed

SETTLE_S = 3.0
MAX_TILT_RAD = 0.25
MAX_SPEED = 0.5
"""Largest speed of the base, in m/s, over the last second: a faster robot is still falling."""
STAYS_UP = 0.8
"""Least height of a standing pose once the servos have sagged, as a fraction of its height before."""
CARRIED = 0.8
"""Least fraction of the weight that the feet carry in a standing pose, over the last second."""
CROUCH = 0.6
"""Fraction of the height with bent legs. A lower pose counts as lying or crouching."""
HELP_S = 30.0
BENT = {True: 0.94, False: 0.76}
"""Height of a bent leg as a fraction of its stretched height: for bipeds, for others."""
KEYFRAME, BENT_LEGS = "keyframe", "legs bent so that the feet are under the centre of mass"
"""Sources of poses, in words."""

Hold = Callable[[np.ndarray], tuple[mujoco.MjModel, np.ndarray]]
"""`(qpos) -> (model, controls)`: a model with servos, and the controls with which they hold a pose."""


@dataclass(frozen=True)
class Stance:
    """A pose in which the robot stands.

    Attributes:
        joints: Positions of hinge and slide joints, in rad (m), by name.
        height: Height of the base with the feet on the ground, in m.
        settled_height: Height of the base after the servos have sagged, in m.
        source: Source of the pose, in words.
        stands: Whether it still stood on its feet at the end.
        is_helped: Whether tilting of its base was damped, as if a policy balanced it.
        crouches: Descriptions of poses that were skipped because they are far lower than bent legs.
    """

    joints: Mapping[str, float]
    height: float
    settled_height: float
    source: str
    stands: bool
    is_helped: bool = False
    crouches: tuple[str, ...] = ()


def find_stance(model: mujoco.MjModel, base: str, legs: Sequence[Leg], joints: Sequence[str], hold: Hold) -> Stance:
    """The first of these poses in which the robot stands: its keyframes, bent legs under the hips, its reference pose.

    Poses far below the height with bent legs are skipped: they are for lying or crouching. If the robot stands in no
    pose, the result is the pose in which it stayed upright longest. Help against falling over is tried last; a biped is
    helped in its keyframes before other poses are tried.

    Args:
        model: The robot on its ground.
        hold: Makes the model with servos that hold a pose.
    """
    tried = []
    poses, crouches = _to_walk_in(model, _with_closed_loops(model, base, candidates(model, base, legs)))
    own = [pose for pose in poses if len(legs) <= 2 and pose[0].startswith(KEYFRAME)]
    others = [pose for pose in poses if pose[0] not in dict(own)]
    for some in (own, others):
        for is_helped, (source, qpos) in itertools.product((False, True), some):
            held, ctrl = hold(qpos)
            settled, upright_s, stands = settle(held, ctrl, qpos, base, legs, is_helped=is_helped)
            heights = height_of(model, qpos), height_of(model, settled)
            angles = {name: float(qpos[model.joint(name).qposadr[0]]) for name in joints}
            stance = Stance(angles, *heights, source, stands, is_helped, crouches)
            if stance.stands:
                return stance
            tried.append((upright_s, -len(tried), stance))
    return max(tried, key=lambda item: item[:2])[2]


def _to_walk_in(
    model: mujoco.MjModel, poses: Sequence[tuple[str, np.ndarray]]
) -> tuple[list[tuple[str, np.ndarray]], tuple[str, ...]]:
    """Poses to walk in, and the sources of the other poses, which are far below the height with bent legs."""
    heights = [height_of(model, qpos) for source, qpos in poses if source == BENT_LEGS]
    least = CROUCH * max([0.0, *heights])
    crouches = [source for source, qpos in poses if height_of(model, qpos) < least]
    return [(source, qpos) for source, qpos in poses if source not in crouches], tuple(crouches)


def _with_closed_loops(
    model: mujoco.MjModel, base: str, poses: Iterable[tuple[str, np.ndarray]]
) -> list[tuple[str, np.ndarray]]:
    """Poses on the ground with closed loops. Poses whose loops cannot be closed are dropped if there are others."""
    loops, closed = Loops(model), []
    for source, qpos in poses:
        nearest, _, gap = loops.closed(qpos)
        closed.append((gap, (source, on_ground(model, base, nearest))))
    least = max(OPEN, min(gap for gap, _ in closed))
    return [pose for gap, pose in closed if gap <= least]


def candidates(model: mujoco.MjModel, base: str, legs: Sequence[Leg]) -> Iterator[tuple[str, np.ndarray]]:
    """Poses to try, each with its source in words."""
    for i in range(model.nkey):
        yield f"{KEYFRAME} {model.key(i).name!r}" if model.key(i).name else f"{KEYFRAME} {i}", model.key_qpos[i].copy()
    for less in (0.0, 0.08):
        bent = bent_pose(model, base, legs, BENT[len(legs) <= 2] - less)
        if bent is not None:
            yield BENT_LEGS, bent
    yield "the reference pose, within the joints' ranges", clipped_reference(model)


def on_ground(model: mujoco.MjModel, base: str, qpos: np.ndarray) -> np.ndarray:
    """A pose with the base level, facing along x, and the lowest colliding part of the robot on the ground."""
    data = posed(model, with_level_base(model, qpos, 0.0))
    root = model.body_rootid[model.body(base).id]
    geoms = [g for g in range(model.ngeom) if model.body_rootid[model.geom_bodyid[g]] == root and collides(model, g)]
    lowest = min(float(lowest_point(model, data, g)[2]) for g in geoms)
    return with_level_base(model, qpos, Ground(model).level - lowest)


def height_of(model: mujoco.MjModel, qpos: np.ndarray) -> float:
    """The height of the base above the floor in a pose, in m."""
    return base_height_of(model, qpos) - Ground(model).level


def bent_pose(model: mujoco.MjModel, base: str, legs: Sequence[Leg], part: float) -> np.ndarray | None:
    """A pose with every leg bent to a part of its height when stretched, and the centre of mass above the feet.

    Feet are under the hips, then all moved back or forth by as much as the centre of mass is off their middle.
    """
    data, shift = mujoco.MjData(model), 0.0
    qpos = _with_feet_under_hips(model, legs, part, shift)
    for _ in range(2):
        if qpos is None:
            break
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        feet = [in_world(data, model.body(leg.body).id, leg.pos) for leg in legs]
        shift += float(data.body(base).subtree_com[0] - np.mean(feet, axis=0)[0])
        qpos = _with_feet_under_hips(model, legs, part, shift)
    return qpos


def stretched_height(model: mujoco.MjModel, base: str, legs: Sequence[Leg]) -> float | None:
    """Height of the base above the ground with stretched legs, in m; None if their feet cannot be under the hips."""
    stretched = bent_pose(model, base, legs, 0.99)
    return None if stretched is None else height_of(model, on_ground(model, base, stretched))


def lifting_bends(
    model: mujoco.MjModel, legs: Sequence[Leg], qpos: np.ndarray, height: float
) -> tuple[dict[str, float], ...]:
    """Angles, in rad, by which each leg's joints bend to lift its foot by `height` m, straight up with a level sole.

    Joints that hardly move are left out. Empty if a foot cannot be lifted, or legs have different numbers of joints.
    """
    bends = []
    for leg in legs:
        kinematics = LegKinematics(model, leg, qpos, None)
        lifted = kinematics.lifted(height)
        if lifted is None or len(leg.joints) != len(legs[0].joints):
            return ()
        bends.append(lifted - qpos[kinematics.places])
    part_j = np.abs(bends).max(axis=0) >= 0.05
    return tuple(
        {name: round(float(bend), 2) for name, bend, part in zip(leg.joints, bend_j, part_j, strict=True) if part}
        for leg, bend_j in zip(legs, bends, strict=True)
    )


def _with_feet_under_hips(model: mujoco.MjModel, legs: Sequence[Leg], part: float, shift: float) -> np.ndarray | None:
    """A pose with every leg bent, and its foot `shift` m in front of its hip."""
    reference = with_level_base(model, clipped_reference(model), 0.0)
    qpos = reference.copy()
    for leg in legs:
        kinematics = LegKinematics(model, leg, reference, shift)
        bent = kinematics.bent(part)
        if bent is None:
            return None
        qpos[kinematics.places] = bent
    return qpos


class LegKinematics:
    """Inverse kinematics of one leg, by least squares within the ranges of its joints, which `places` finds in qpos."""

    def __init__(self, model: mujoco.MjModel, leg: Leg, reference: np.ndarray, shift: float | None) -> None:
        """Measures a leg, which should stay near `reference`, the pose of everything else.

        `shift` is the desired distance of the foot in front of its hip, in m; None: as in the reference.

        Raises:
            ConfigError: The leg has no hinge or slide joint.
        """
        ids = [model.joint(name).id for name in leg.joints]
        if not ids:
            raise ConfigError(
                f"The leg of {leg.body!r} has no hinge or slide joint, which a leg needs. Replace its ball joints by "
                "three hinges each."
            )
        self.places = model.jnt_qposadr[ids]
        limited = model.jnt_limited[ids].astype(bool)
        self._low, self._high = np.where(limited, model.jnt_range[ids].T, [[-np.pi], [np.pi]])
        self._model, self._data, self._leg = model, mujoco.MjData(model), leg
        self._body = model.body(leg.body).id
        self._reference = reference
        foot_3, self._turn = self._foot(reference[self.places])
        self._hip_3 = self._data.xanchor[ids[0]].copy()
        self._length = max(float(np.linalg.norm(foot_3 - self._hip_3)), 1e-3)
        self._under_2 = np.array([foot_3[0] if shift is None else self._hip_3[0] + shift, foot_3[1]])

    def bent(self, part: float) -> np.ndarray | None:
        """Joint positions with the leg at a fraction of its stretched height; None if the foot cannot get there."""
        rest = self._reference[self.places]
        middle = (self._low + self._high) / 2
        stretched = self._solve(10 * self._length, [rest, np.clip(middle, rest - 0.6, rest + 0.6)])
        height = part * float(self._hip_3[2] - self._foot(stretched)[0][2])
        # A straight leg in the middle of its range bends in either way.
        inward = np.where(np.isclose(middle, stretched), (-1.0) ** np.arange(len(rest)), np.sign(middle - stretched))
        bent = self._solve(height, [stretched, stretched + 0.5 * inward])
        is_there = np.linalg.norm(self._error(bent, height)) <= 0.05 * self._length
        return bent if is_there else None

    def lifted(self, height: float) -> np.ndarray | None:
        """Joint positions with the foot `height` m above its reference position; None if it cannot get there."""
        rest = self._reference[self.places]
        below = float(self._hip_3[2] - self._foot(rest)[0][2]) - height
        middle = (self._low + self._high) / 2
        lifted = self._solve(below, [rest, np.clip(middle, rest - 0.6, rest + 0.6)])
        return lifted if np.linalg.norm(self._error(lifted, below)) <= 0.1 * height else None

    def _solve(self, height: float, starts: list[np.ndarray]) -> np.ndarray:
        """The joints with the foot `height` m below the hip, or as near as it gets; the best from several starts."""

        def residual(angles: np.ndarray, near: np.ndarray) -> np.ndarray:
            error_3 = self._error(angles, height)
            # A sole stays level, and joints stay near their initial positions.
            level = 0.2 * (self._foot(angles)[1] - self._turn).ravel() if self._leg.is_flat else np.zeros(0)
            return np.concatenate([error_3, self._length * level, 0.01 * self._length * (angles - near)])

        bounds = (self._low, self._high)
        inside = [np.clip(x, self._low + 1e-3, self._high - 1e-3) for x in starts]
        return min((least_squares(residual, x, bounds=bounds, args=(x,)) for x in inside), key=lambda fit: fit.cost).x

    def _error(self, angles: np.ndarray, height: float) -> np.ndarray:
        return self._foot(angles)[0] - [*self._under_2, self._hip_3[2] - height]

    def _foot(self, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The foot's position in the world, in m, and its rotation."""
        self._data.qpos[:] = self._reference
        self._data.qpos[self.places] = angles
        mujoco.mj_kinematics(self._model, self._data)
        turn = self._data.xmat[self._body].reshape(3, 3).copy()
        return in_world(self._data, self._body, self._leg.pos), turn


def settle(
    model: mujoco.MjModel, ctrl: np.ndarray, qpos: np.ndarray, base: str, legs: Sequence[Leg], *, is_helped: bool
) -> tuple[np.ndarray, float, bool]:
    """Simulates a pose under constant controls for `SETTLE_S`.

    With `is_helped`, the base's rotation is damped, so that a tilt grows with a time constant of `HELP_S`: servos that
    a policy walks with may be too soft to balance a biped by themselves.

    Returns:
        The pose at the end, for how many seconds the base was upright, and whether the robot still stood at the end:
        about as high as before, on its feet and on nothing else, and these carried its weight.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    data.ctrl[:] = ctrl
    body = model.body(base).id
    if is_helped:
        weight = float(model.body_subtreemass[body] * np.linalg.norm(model.opt.gravity))
        model.dof_damping[base_rotation(model)] = HELP_S * weight * height_of(model, qpos)
    root = model.body_rootid[body]
    feet = {model.body(leg.body).id for leg in legs}
    feet |= {int(model.body_parentid[b]) for b in feet} - {body}  # heels above toes
    for b in range(1, model.nbody):  # toes behind heels
        if int(model.body_parentid[b]) in feet:
            feet.add(b)
    upright_s, speed, carried = 0.0, 0.0, []
    while data.time < SETTLE_S - 1e-6:
        mujoco.mj_step(model, data)
        if not np.isfinite(data.qpos).all() or data.xmat[body][8] < np.cos(MAX_TILT_RAD):
            break
        upright_s = float(data.time)
        if data.time > SETTLE_S - 1.0:
            speed = max(speed, float(np.linalg.norm(data.cvel[body][3:])))
            carried.append(_lifted_by(model, data, feet))
    touching = {int(b) for b in model.geom_bodyid[data.contact.geom.ravel()] if model.body_rootid[b] == root}
    # One foot of several may hover: on a hard floor, three feet carry a stiff robot.
    on_feet = touching <= feet and len(touching) >= max(1, len(legs) - 1)
    is_up = height_of(model, data.qpos) >= STAYS_UP * height_of(model, qpos)
    own = model.body_rootid == root
    weight = float(model.body_mass[own] @ (1 - model.body_gravcomp[own]) * np.linalg.norm(model.opt.gravity))
    is_carried = bool(carried) and float(np.mean(carried)) >= CARRIED * weight
    stands = upright_s > SETTLE_S - 0.01 and speed < MAX_SPEED and on_feet and is_up and is_carried
    return data.qpos.copy(), upright_s, stands


def _lifted_by(model: mujoco.MjModel, data: mujoco.MjData, feet: set[int]) -> float:
    """The force, in N, by which contacts of feet with anything else push them up."""
    lifted, force_6 = 0.0, np.zeros(6)
    for i in range(data.ncon):
        bodies = model.geom_bodyid[data.contact.geom[i]]
        of_feet = [int(b) in feet for b in bodies]
        if of_feet[0] != of_feet[1]:
            mujoco.mj_contactForce(model, data, i, force_6)
            up = float(data.contact.frame[i].reshape(3, 3)[:, 2] @ force_6[:3])
            lifted += up if of_feet[1] else -up  # the force acts from the first geom on the second
    return lifted
