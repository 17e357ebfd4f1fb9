"""Analysis of a robot's model: base, legs and feet, actuators, IMU, keyframes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics import compile_model
from ksim.physics.actuator_kinds import ActuatorKind, actuator_kinds
from ksim.physics.actuators import per_joint
from ksim.physics.mjcf import label
from ksim.physics.names import ON_JOINTS, ONE_DOF, escaped, side_pattern
from ksim.physics.trees import free_joint_of, robot_root
from ksim.robot.scene import free_base, raise_base

_GEOM = mujoco.mjtGeom


def in_world(data: mujoco.MjData, body: int, point_3: np.ndarray | tuple[float, float, float]) -> np.ndarray:
    """The world position, in m, of a point given in a body's frame, in m. `mj_kinematics` must have run."""
    return data.xpos[body] + data.xmat[body].reshape(3, 3) @ point_3


def collides(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom can touch anything, by its contact bits or by a `<pair>`."""
    in_pair = geom in model.pair_geom1 or geom in model.pair_geom2
    return bool(model.geom_contype[geom] or model.geom_conaffinity[geom] or in_pair)


def lowest_point(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> np.ndarray:
    """A geom's lowest point in the world, in m. `mj_kinematics` must have run."""
    turn = data.geom_xmat[geom].reshape(3, 3)
    down_3 = -turn[2]  # in the geom's frame
    size, kind = model.geom_size[geom], int(model.geom_type[geom])
    if kind == _GEOM.mjGEOM_SPHERE:
        point_3 = size[0] * down_3
    elif kind == _GEOM.mjGEOM_CAPSULE:
        point_3 = size[0] * down_3 + [0, 0, np.copysign(size[1], down_3[2])]
    elif kind == _GEOM.mjGEOM_CYLINDER:
        across = max(float(np.hypot(down_3[0], down_3[1])), 1e-9)
        point_3 = np.array([*(size[0] * down_3[:2] / across), np.copysign(size[1], down_3[2])])
    elif kind == _GEOM.mjGEOM_ELLIPSOID:
        point_3 = size**2 * down_3 / np.linalg.norm(size * down_3)
    elif kind == _GEOM.mjGEOM_MESH:
        mesh = int(model.geom_dataid[geom])
        start = int(model.mesh_vertadr[mesh])
        vertices = model.mesh_vert[start : start + int(model.mesh_vertnum[mesh])]
        point_3 = vertices[int((vertices @ down_3).argmax())]
    else:
        middle, half = model.geom_aabb[geom][:3], model.geom_aabb[geom][3:]
        point_3 = middle + np.copysign(half, down_3)
    return data.geom_xpos[geom] + turn @ point_3


def box_in_body(model: mujoco.MjModel, geom: int) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half sizes, in m, of a geom's bounding box along the axes of its body."""
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
    turn = turn.reshape(3, 3)
    middle, half = model.geom_aabb[geom][:3], model.geom_aabb[geom][3:]
    return model.geom_pos[geom] + turn @ middle, np.abs(turn) @ half


def grouped(values: Mapping[str, float], *, digits: int | None = None, decimals: int | None = None) -> dict[str, float]:
    """Numbers by pattern of joint names. Joints that differ only in their side share a pattern if their numbers agree.

    They are rounded to `digits` significant digits, or to `decimals` if that is None.
    """
    rounded = lambda x: round(x, decimals) + 0.0 if digits is None else rounded_to(x, digits)
    groups: dict[str, list[str]] = {}
    for name in values:
        groups.setdefault(side_pattern(name), []).append(name)
    result: dict[str, float] = {}
    for pattern, names in groups.items():
        numbers = [values[name] for name in names]
        mean = float(np.mean(numbers))
        spread = 0.01 if digits is None else 0.1 * abs(mean)
        if len(names) > 1 and np.ptp(numbers) <= spread and not _catches_others(pattern, names, values):
            result[pattern] = rounded(mean)
        else:
            result |= {escaped(name): rounded(values[name]) for name in names}
    return result


def _catches_others(pattern: str, names: Sequence[str], values: Mapping[str, float]) -> bool:
    try:
        caught = per_joint({pattern: 1.0, "*": 0.0}, list(values), "pattern")
    except ConfigError:
        return True
    return {name for name, value in zip(values, caught, strict=True) if value} != set(names)


def rounded_to(value: float, digits: int) -> float:
    """A number rounded to significant digits; 0 for numbers up to 1e-6."""
    return float(f"{value:.{digits}g}") + 0.0 if abs(value) > 1e-6 else 0.0


LOW_PART = 0.25
"""A branch is a leg if its lowest point is within this fraction of the base's height from the robot's lowest point."""
SOLE_PART = 0.06
"""A geom belongs to a foot if it reaches within this fraction of the base's height above the foot's lowest point."""


@dataclass(frozen=True)
class Leg:
    """A leg.

    Attributes:
        name: `FL`, `FR`, `RL`, `RR` for four legs, `left` and `right` for two, else `leg_0` and so on.
        joints: Hinge and slide joints from the base to the foot.
        body: The foot's body; for a foot of several bodies, the body that carries the others.
        pos: Centre of the foot's bounding box in the body's frame, in m.
        size: Half sizes of that box, in m.
        is_flat: Whether the foot is a separate body with a sole, rather than the end of a shank.
    """

    name: str
    joints: tuple[str, ...]
    body: str
    pos: np.ndarray
    size: np.ndarray
    is_flat: bool


@dataclass(frozen=True)
class RobotDescription:
    """Results of the analysis of a model.

    Attributes:
        kind: `legged`; `arm`: fixed to the world, all joints driven; `plane`: moves freely in a vertical plane;
            `balance`: fixed, with undriven joints.
        base: The body of the free joint; None without a free joint.
        mass: Mass of the robot, in kg.
        joints: Hinge and slide joints of the robot.
        drive: `servos`, `motors`, `none`, or `other` if there is not one motor or position servo per driven joint.
        legs: Legs, front before rear, left before right.
        tip: For fixed robots: the body at the end, and the point in its frame farthest from the last joint, in m; for
            robots in a plane the origin of their base.
        plane: For robots in a plane: the slides along and up, and the hinge that tilts them.
        other_arms: Last bodies of further chains of three joints or more, such as a second arm.
        imu: A site of the base with a gyro; None without one.
        keyframes: Names of the keyframes; empty strings for unnamed ones.
    """

    kind: str
    base: str | None
    mass: float
    joints: tuple[str, ...]
    driven: tuple[str, ...]
    drive: str
    legs: tuple[Leg, ...]
    tip: tuple[str, np.ndarray] | None
    other_arms: tuple[str, ...]
    imu: str | None
    keyframes: tuple[str, ...]
    plane: tuple[str, ...] = ()


def look_at(model: mujoco.MjModel) -> RobotDescription:
    """Analyses a compiled model in which bodies and joints have names.

    Raises:
        ConfigError: ksim cannot use the model as a robot. The message says what is missing.
    """
    if not np.isin(model.jnt_type, ONE_DOF).any():
        raise ConfigError(
            "The model has no hinge or slide joint, so there is nothing to move. Give the MJCF file of a robot."
        )
    bodies = _robot_bodies(model)
    joints = [j for j in range(model.njnt) if model.jnt_bodyid[j] in bodies and model.jnt_type[j] in ONE_DOF]
    names = tuple(model.joint(j).name for j in joints)
    drive, driven = _drive(model, names)
    base = _base(model, bodies)
    legs, tip, kind, plane = (), None, "legged", _plane(model, driven)
    if plane:
        kind, tip = "plane", (model.body(model.jnt_bodyid[model.joint(plane[-1]).id]).name, np.zeros(3))
    elif base is None:
        tip = _tip(model, bodies)
        kind = "arm" if drive in ("none", "other") or set(driven) == set(names) else "balance"
        _check_fixed(model, names, names if kind == "arm" else driven)
    else:
        legs = tuple(_legs(model, base, bodies))
    return RobotDescription(
        kind=kind,
        base=None if base is None else model.body(base).name,
        mass=float(model.body_mass[list(bodies)].sum()),
        joints=names,
        driven=driven,
        drive=drive,
        legs=legs,
        tip=tip,
        other_arms=() if tip is None or plane else tuple(_other_arms(model, model.body(tip[0]).id)),
        imu=None if base is None else _imu(model, base),
        keyframes=tuple(model.key(i).name for i in range(model.nkey)),
        plane=plane,
    )


_SLIDES = ["mjJNT_SLIDE"] * 3
_SIX_WAYS = (["mjJNT_BALL", *_SLIDES], ["mjJNT_HINGE"] * 3 + _SLIDES)
"""Types of joints, sorted, with which a body moves and turns in all ways."""


def base_to_free(spec: mujoco.MjSpec) -> str | None:
    """A body of the world that moves freely in reality, though the file fixes it to the world or gives it other joints.

    That is a body with three slides and three hinges or a ball joint that nothing drives, or a body without joints that
    is carried by legs: two or more chains of joints reach lower than it. None if the model has a free joint, or no such
    body.
    """
    if any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in spec.joints):
        return None
    driven = {actuator.target for actuator in spec.actuators}
    for body in spec.worldbody.bodies:
        kinds = sorted(joint.type.name for joint in body.joints)
        if kinds in _SIX_WAYS and not driven & {joint.name for joint in body.joints}:
            return body.name
        if not body.joints and _is_carried_by_legs(spec, body.name):
            return body.name
    return None


def _is_carried_by_legs(spec: mujoco.MjSpec, body: str) -> bool:
    """Whether a robot with this body as its base, in the reference pose, has legs that reach clearly lower than it."""
    freed = spec.copy()
    free_base(freed, body)
    try:
        model = compile_model(freed, dt=0.005, ctrl_dt=0.005).mj_model
        lift = base_lift(model)
        if lift:
            raise_base(freed, lift)
            model = compile_model(freed, dt=0.005, ctrl_dt=0.005).mj_model
        legs = look_at(model).legs
    except ConfigError:
        return False
    base, data = model.body(body).id, posed(model, clipped_reference(model))
    geoms = [g for g in range(model.ngeom) if collides(model, g)]
    low = lambda geoms: min((float(lowest_point(model, data, g)[2]) for g in geoms), default=np.inf)
    own = low(g for g in geoms if model.body_weldid[model.geom_bodyid[g]] == base)
    ground = low(g for g in geoms if model.body_rootid[model.geom_bodyid[g]] == base)
    is_clear = own > ground + LOW_PART * (data.xpos[base][2] - ground)
    return is_clear and len(legs) >= 2 and all(len(leg.joints) >= 2 for leg in legs)


def wheels(model: mujoco.MjModel, leg: Leg) -> list[str]:
    """The joints by which a leg rolls: hinges without a range, on an axis through the middle of a part of its foot."""
    foot = [b for b in range(model.nbody) if _is_below(model, b, model.body(leg.body).id)]
    found = []
    for j in np.flatnonzero((model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE) & (model.jnt_limited == 0)):
        body = int(model.jnt_bodyid[j])
        boxes = [
            box_in_body(model, g) for g in range(model.ngeom) if model.geom_bodyid[g] == body and collides(model, g)
        ]
        if body in foot and boxes:
            middle_3, half_3 = max(boxes, key=lambda box: float(np.prod(box[1])))
            off_axis = float(np.linalg.norm(np.cross(middle_3 - model.jnt_pos[j], model.jnt_axis[j])))
            found += [model.joint(j).name] if off_axis < 0.25 * float(half_3.max()) else []
    return found


def stray_bodies(model: mujoco.MjModel) -> tuple[str, ...]:
    """Root bodies outside a free robot's tree whose joints have actuators.

    Some files have such joints as placeholders for motors that the robot does not have.
    """
    bodies = _robot_bodies(model)
    if _base(model, bodies) is None:
        return ()
    on_joints = np.flatnonzero(np.isin(model.actuator_trntype, ON_JOINTS))
    driven = {int(model.body_rootid[model.jnt_bodyid[j]]) for j in model.actuator_trnid[on_joints, 0]}
    return tuple(model.body(root).name for root in sorted(driven - {int(model.body_rootid[bodies[0]])}))


def base_lift(model: mujoco.MjModel) -> float:
    """Height of the base's middle above its origin, in m, if the origin is nearer to the ground than that; else 0.

    The base is the body of the free joint with all bodies fixed to it, in the reference pose. Its middle is its centre
    of mass. If the lowest point of the robot is not on the base, the middle is at least as high as the lowest joint on
    the base: some files of legged robots put mass at an origin on the ground.
    """
    bodies = _robot_bodies(model)
    base = _base(model, bodies)
    geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] in bodies and collides(model, g)]
    if base is None or not geoms:
        return 0.0
    data = posed(model, clipped_reference(model))
    fixed = model.body_weldid == base
    mass, heights = model.body_mass[fixed], data.xipos[fixed, 2] - data.xpos[base, 2]
    if mass.sum() <= 0:
        return 0.0
    lowest = min(geoms, key=lambda g: lowest_point(model, data, g)[2])
    on_base = [j for j in range(model.njnt) if model.body_weldid[model.body_parentid[model.jnt_bodyid[j]]] == base]
    lift = float(heights @ mass / mass.sum())
    if on_base and not fixed[model.geom_bodyid[lowest]]:
        lift = max(lift, min(float(data.xanchor[j, 2] - data.xpos[base, 2]) for j in on_base))
    above_ground = float(data.xpos[base, 2] - lowest_point(model, data, lowest)[2])
    return lift if lift > max(above_ground, 0.0) else 0.0


def clipped_reference(model: mujoco.MjModel) -> np.ndarray:
    """The model's reference pose, with joints clipped to their ranges."""
    qpos = model.qpos0.copy()
    for j in range(model.njnt):
        if model.jnt_type[j] in ONE_DOF and model.jnt_limited[j]:
            at = model.jnt_qposadr[j]
            qpos[at] = np.clip(qpos[at], *model.jnt_range[j])
    return qpos


def _robot_bodies(model: mujoco.MjModel) -> tuple[int, ...]:
    """The bodies of the robot's kinematic tree."""
    root = robot_root(model)
    return tuple(b for b in range(1, model.nbody) if model.body_rootid[b] == root)


def _base(model: mujoco.MjModel, bodies: tuple[int, ...]) -> int | None:
    """The first of the bodies that has a free joint."""
    return next((b for b in bodies if free_joint_of(model, b) is not None), None)


def posed(model: mujoco.MjModel, qpos: np.ndarray) -> mujoco.MjData:
    """The model's data in a pose, after `mj_kinematics`."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return data


def _drive(model: mujoco.MjModel, joints: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if not model.nactuator:
        return "none", ()
    if not np.isin(model.actuator_trntype, ON_JOINTS).all():
        return "other", ()
    driven = [model.joint(int(j)).name for j in model.actuator_trnid[:, 0]]
    if len(set(driven)) < len(driven) or not set(driven) <= set(joints):
        return "other", ()
    kinds = actuator_kinds(model)
    is_servos = all(kind is ActuatorKind.POSITION for kind in kinds)
    is_plain = all(kind in (ActuatorKind.POSITION, ActuatorKind.FORCE) for kind in kinds)
    return ("servos" if is_servos else "motors" if is_plain else "other"), tuple(driven)


def _imu(model: mujoco.MjModel, base: int) -> str | None:
    for i in np.flatnonzero(model.sensor_type == int(mujoco.mjtSensor.mjSENS_GYRO)):
        site = int(model.sensor_objid[i])
        if model.site_bodyid[site] == base and model.site(site).name:
            return model.site(site).name
    return None


def _check_fixed(model: mujoco.MjModel, names: tuple[str, ...], driven: tuple[str, ...]) -> None:
    """Raises ConfigError if the robot moves on a slide that nothing drives: it walks or swims in a plane."""
    for name in names:
        j = model.joint(name).id
        if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_SLIDE) and name not in driven:
            how = "walks" if abs(model.jnt_axis[j][2]) > 0.9 else "moves"
            raise ConfigError(
                f"The robot has no free joint: on the slide {name!r}, which nothing drives, it {how} in a plane, but "
                "not on a slide along, a slide up and a hinge across, with motors on other joints, as this tool's "
                "tasks need it. Give it these, or a <freejoint/>, or write its task by hand, see docs/own_robot.md."
            )


def _plane(model: mujoco.MjModel, driven: Sequence[str]) -> tuple[str, ...]:
    """The slides along and up and the hinge across, by which the robot's first bodies move in a vertical plane.

    Empty unless they are its first three joints, with nothing that drives them, and there are motors on others.
    """
    root = robot_root(model)
    first = [j for j in range(model.njnt) if model.body_rootid[model.jnt_bodyid[j]] == root][:3]
    kinds = sorted(int(model.jnt_type[j]) for j in first)
    names = [model.joint(j).name for j in first]
    slide, hinge = int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE)
    if not driven or kinds != [slide, slide, hinge] or set(names) & set(driven):
        return ()
    across = next(j for j in first if model.jnt_type[j] == hinge)
    slides = sorted((j for j in first if j != across), key=lambda j: abs(model.jnt_axis[j][2]))
    axes = np.array([model.jnt_axis[j] for j in (*slides, across)])
    is_plane = abs(axes[0][2]) < 0.01 and axes[1][2] > 0.99 and abs(np.linalg.det(axes)) > 0.99
    return tuple(model.joint(j).name for j in (*slides, across)) if is_plane else ()


def _tip(model: mujoco.MjModel, bodies: tuple[int, ...]) -> tuple[str, np.ndarray]:
    """The point of the last bodies (those behind the most joints) that is farthest from the last joint."""
    depth = {0: 0}
    for b in bodies:
        depth[b] = depth.get(int(model.body_parentid[b]), 0) + int(model.body_jntnum[b])
    last = [b for b in bodies if depth[b] == max(depth.values())]
    data = posed(model, model.qpos0)
    # Of bodies behind equally many joints, the first in the tree has the last joint.
    anchor_3 = data.xanchor[model.body_jntadr[last[0]] + model.body_jntnum[last[0]] - 1]
    points = [(b, np.zeros(3)) for b in last]
    for g in (g for g in range(model.ngeom) if model.geom_bodyid[g] in last):
        middle, half = box_in_body(model, g)
        longest = half * (np.arange(3) == half.argmax())
        points += [(int(model.geom_bodyid[g]), middle + longest), (int(model.geom_bodyid[g]), middle - longest)]
    body, point = max(points, key=lambda item: np.linalg.norm(in_world(data, *item) - anchor_3))
    return model.body(body).name, point


def _other_arms(model: mujoco.MjModel, tip: int) -> Iterator[str]:
    """The last bodies of chains of three or more joints that do not lead to the tip; fingers on it do not count."""
    parent, joints = model.body_parentid, model.body_jntnum
    last, depth = np.arange(model.nbody), joints.copy()
    for b in range(model.nbody - 1, 0, -1):  # children before their parents
        if depth[b] + joints[parent[b]] > depth[parent[b]]:
            last[parent[b]], depth[parent[b]] = last[b], depth[b] + joints[parent[b]]
    is_long = (depth >= 3) & (np.arange(model.nbody) > 0)
    goes_on = np.zeros(model.nbody, bool)
    goes_on[parent[1:][is_long[1:]]] = True
    to_tip = set()
    while tip:
        to_tip.add(tip)
        tip = int(parent[tip])
    for b in np.flatnonzero(is_long & ~goes_on):
        if int(b) not in to_tip:
            yield model.body(int(last[b])).name


def _legs(model: mujoco.MjModel, base: int, bodies: tuple[int, ...]) -> Iterator[Leg]:
    data = posed(model, clipped_reference(model))
    chains = _branches(model, base, bodies)
    lowest = {}
    for branch, members in chains.items():
        geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] in members and collides(model, g)]
        if geoms:
            lowest[branch] = min((float(lowest_point(model, data, g)[2]), g) for g in geoms)
    what = label(model, "body", base)
    if not lowest:
        raise ConfigError(
            f"The robot's base is {what}, but it has no legs: no part that moves relative to it by a joint can touch "
            "the ground. Give its legs joints, and geoms with contype or conaffinity above 0."
        )
    ground = min(z for z, _ in lowest.values())
    height = data.xpos[base][2] - ground
    if height <= 0:
        raise ConfigError(
            f"The robot's base is {what}, but it has no legs: no part that moves relative to it reaches below it in "
            "its reference pose. The z axis of the base must point up."
        )
    found = []
    for z, geom in lowest.values():
        if z < ground + LOW_PART * height:
            found.append(_leg(model, data, base, geom, height))
    if len(found) == 1:
        raise ConfigError(
            f"The robot's base is {what}, but of the parts that move relative to it only {found[0].body!r} reaches "
            "near the ground, and one leg does not walk. Write its task by hand: see docs/own_robot.md."
        )
    yield from _named(data, model, base, found)


def _branches(model: mujoco.MjModel, base: int, bodies: tuple[int, ...]) -> dict[int, list[int]]:
    """The branches that move relative to the base: their bodies, by the first body of each.

    If a part divides into several chains of joints, as a waist that carries two legs, each chain is a branch.
    """
    jointed: dict[int, list[int]] = {}
    for b in bodies:
        if b != base and model.body_jntnum[b]:
            above = int(model.body_parentid[b])
            while above != base and not model.body_jntnum[above]:
                above = int(model.body_parentid[above])
            jointed.setdefault(above, []).append(b)

    def heads(body: int) -> list[int]:
        following = jointed.get(body, [])
        if len(following) > 1 and not all(_has_chain(model, b, bodies) for b in following):
            return [body]
        below = [head for b in following for head in heads(b)]
        return below if len(below) > 1 else [body]

    first = [head for body in jointed.get(base, []) for head in heads(body)]
    return {head: [b for b in bodies if _is_below(model, b, head)] for head in first}


def _has_chain(model: mujoco.MjModel, body: int, bodies: tuple[int, ...]) -> bool:
    """Whether a body and the bodies below it have at least two joints, as a leg has."""
    return sum(int(model.body_jntnum[b]) for b in bodies if _is_below(model, b, body)) >= 2


def _is_below(model: mujoco.MjModel, body: int, head: int) -> bool:
    while body > head:
        body = int(model.body_parentid[body])
    return body == head


def _box_seen_from(model: mujoco.MjModel, data: mujoco.MjData, geom: int, body: int) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half sizes, in m, of the bounding box, in a body's frame, of a geom of this or another body."""
    middle, half = box_in_body(model, geom)
    own = int(model.geom_bodyid[geom])
    turn = data.xmat[body].reshape(3, 3).T @ data.xmat[own].reshape(3, 3)
    point = data.xmat[body].reshape(3, 3).T @ (in_world(data, own, middle) - data.xpos[body])
    return point, np.abs(turn) @ half


def _leg(model: mujoco.MjModel, data: mujoco.MjData, base: int, lowest: int, height: float) -> Leg:
    """The leg whose lowest geom is `lowest`, still unnamed.

    The body of a foot of several bodies, such as a heel and a toe, is the first of them, which carries the others.
    """
    end = lowest_point(model, data, lowest)
    parts = lambda body: [g for g in range(model.ngeom) if model.geom_bodyid[g] == body and collides(model, g)]
    low_parts = lambda body: [g for g in parts(body) if lowest_point(model, data, g)[2] < end[2] + SOLE_PART * height]
    body = int(model.geom_bodyid[lowest])
    while (above := int(model.body_parentid[body])) != base and low_parts(above):
        body = above
    turn = data.xmat[body].reshape(3, 3)
    of_foot = [b for b in range(body, model.nbody) if _is_below(model, b, body)]
    own, sole = ([g for b in of_foot for g in kind(b)] for kind in (parts, low_parts))
    boxes = [_box_seen_from(model, data, g, body) for g in sole]
    low = np.min([middle - half for middle, half in boxes], axis=0)
    high = np.max([middle + half for middle, half in boxes], axis=0)
    middle, half = (low + high) / 2, (high - low) / 2
    extent = np.abs(turn) @ half
    is_flat = len(sole) == len(own) and extent[:2].max() > 1.5 * extent[2]
    if 2 * extent[2] > LOW_PART * height:  # a shank, whose lower end is the foot
        radius = float(model.geom_aabb[lowest][3:].min())
        middle = turn.T @ (end - data.xpos[body] + np.array([0, 0, radius]))
        half, is_flat = np.full(3, radius), False
    joints = []
    at = body
    while at != base:
        start, count = int(model.body_jntadr[at]), int(model.body_jntnum[at])
        of_body = range(start, start + count)
        joints = [model.joint(j).name for j in of_body if model.jnt_type[j] in ONE_DOF] + joints
        at = int(model.body_parentid[at])
    return Leg("", tuple(joints), model.body(body).name, middle, half, is_flat)


def _named(data: mujoco.MjData, model: mujoco.MjModel, base: int, legs: list[Leg]) -> Iterator[Leg]:
    """Named legs, front before rear and left before right, ordered by their feet's positions in the base's frame."""
    places = []
    for leg in legs:
        from_base = in_world(data, model.body(leg.body).id, leg.pos) - data.xpos[base]
        places.append(data.xmat[base].reshape(3, 3).T @ from_base)
    if len(legs) == 2:
        order = sorted(range(2), key=lambda i: -places[i][1])
        names = ["left", "right"]
    else:
        left = sorted((i for i in range(len(legs)) if places[i][1] > 0), key=lambda i: -places[i][0])
        right = sorted((i for i in range(len(legs)) if places[i][1] <= 0), key=lambda i: -places[i][0])
        order = [i for row in range(max(len(left), len(right))) for side in (left, right) for i in side[row : row + 1]]
        names = (
            ["FL", "FR", "RL", "RR"] if len(legs) == 4 and len(left) == 2 else [f"leg_{i}" for i in range(len(legs))]
        )
    shared = [joint for leg in legs for joint in leg.joints]
    for name, i in zip(names, order, strict=True):
        # A waist joint that several legs share belongs to none of them.
        joints = tuple(joint for joint in legs[i].joints if shared.count(joint) == 1 or len(legs) == 1)
        yield replace(legs[i], name=name, joints=joints)
