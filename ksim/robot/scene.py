"""Additions to a robot's model that training needs. All functions change the given spec, never a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics import Ground, load_spec
from ksim.physics.actuator_kinds import limit_controls as limit_controls
from ksim.physics.actuators import per_joint
from ksim.physics.contacts import add_body_touch_sensor, add_touch_sensor, part_of
from ksim.physics.names import ONE_DOF, ModelNames, find_in_spec, with_level_base
from ksim.physics.rendering import add_ground_material, add_light_and_sky
from ksim.physics.trees import OPEN, Loops

Vector = tuple[float, float, float]
HOME = "home"
_GROUNDS = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
LEAST_ITERATIONS = (8, 10)
"""Least iterations of the constraint solver and of its line search, if the integrator or the timestep are changed."""
_SLIDING = 3
"""The condim of a contact with sliding friction."""


class Foot(NamedTuple):
    """A foot: a box around its contacts with the ground.

    Attributes:
        name: Name of the site to add. Its touch sensor is called `<name>_touch`.
        pos: Centre of the box in the body's frame, in m.
        size: Half sizes of the box along the body's axes, in m.
    """

    name: str
    body: str
    pos: Vector
    size: Vector

    @property
    def touch(self) -> str:
        """Name of its touch sensor."""
        return f"{self.name}_touch"


def load(path: str | Path) -> mujoco.MjSpec:
    """A robot's model to add to. Bodies and joints without a name get one, such as `body_3`.

    Raises:
        ConfigError: There is no such file, or MuJoCo cannot read it.
    """
    spec = load_spec(path)
    for kind, parts in (("body", spec.bodies), ("joint", spec.joints)):
        taken = {part.name for part in parts}
        for i, part in enumerate(parts):
            if not part.name:
                free = (f"{kind}_{i}{'_' * more}" for more in range(len(taken) + 1))
                part.name = next(name for name in free if name not in taken)
    return spec


def raise_base(spec: mujoco.MjSpec, height: float) -> None:
    """Moves the origin of the robot's base up within it, by a height in m along its z axis; the robot stays in place.

    For files whose base has its origin on the ground, like the `base_footprint` of many URDFs: terms measure the height
    of the base at its origin.

    Raises:
        ConfigError: The robot has no free joint.
    """
    named = spec.copy()
    for i, body in enumerate(named.bodies):
        body.name = body.name or f"body_{i}_without_name"
    model = named.copy().compile()
    names = ModelNames(model)
    if not names.has_base:
        raise ConfigError("raise_base needs a robot with a free joint.")
    # By name, as MuJoCo may fuse bodies before it with the world.
    base = spec.bodies[[body.name for body in named.bodies].index(model.body(names.base_body()).name)]
    up_3 = np.array([0.0, 0.0, height])
    start, _ = names.free_joint()
    for key in spec.keys:
        qpos = np.array(key.qpos)
        if qpos.size:
            qpos[start : start + 3] += _rotated(up_3, qpos[start + 3 : start + 7])
            key.qpos = qpos
    base.pos += _rotated(up_3, model.body_quat[names.base_body()])
    if base.explicitinertial:
        base.ipos -= up_3
    parts = (*base.frames, *base.bodies, *base.geoms, *base.sites, *base.cameras, *base.lights)
    for part in (part for part in parts if part.frame is None):
        if np.isfinite(getattr(part, "fromto", np.nan)).all():  # a part has either
            part.fromto -= np.tile(up_3, 2)
        else:
            part.pos -= up_3


def free_base(spec: mujoco.MjSpec, body: str) -> None:
    """Gives a body of the world a free joint, in place of its own joints and everything that drives or measures them.

    For files that fix the robot to the world, or that move it by slides and hinges. Keyframes keep their poses.

    Raises:
        ConfigError: The model has no such body, or it is not a child of the world, or a tendon runs over its joints.
    """
    base = find_in_spec(spec, "body", body)
    if base.parent.name != "world":
        raise ConfigError(f"free_base needs a body of the world, but {body!r} is part of {base.parent.name!r}.")
    removed = {joint.name for joint in base.joints}
    if any(path.target.name in removed for tendon in spec.tendons for path in tendon.path if path.target is not None):
        raise ConfigError(f"free_base cannot replace the joints of {body!r}: a tendon runs over them.")
    before = spec.copy().compile()
    at = sorted(
        place for name in removed for place in before.joint(name).qposadr[0] + np.arange(before.joint(name).qpos0.size)
    )
    keys = [(key, np.array(key.qpos), np.array(key.ctrl)) for key in spec.keys]
    data = mujoco.MjData(before)
    poses = []
    for _, qpos, _ in keys:
        data.qpos[:] = qpos if len(qpos) else before.qpos0
        mujoco.mj_kinematics(before, data)
        # A body that is fixed to the world may be fused with it: then its pose is that of the file.
        poses.append([*data.body(body).xpos, *data.body(body).xquat] if removed else [*base.pos, *base.quat])
    is_kept_u = np.array([actuator.target not in removed for actuator in spec.actuators], bool)
    for kind, names in (("actuators", ("target",)), ("sensors", ("objname",)), ("equalities", ("name1", "name2"))):
        for part in [part for part in getattr(spec, kind) if {getattr(part, name) for name in names} & removed]:
            spec.delete(part)
    for joint in list(base.joints):
        spec.delete(joint)
    base.add_freejoint(name=f"{body}_free")
    for (key, qpos, ctrl), pose_7 in zip(keys, poses, strict=True):
        key.qpos = np.insert(np.delete(qpos, at), int(min(at, default=0)), pose_7) if len(qpos) else []
        key.ctrl = ctrl[is_kept_u] if len(ctrl) else []
        key.qvel, key.act = [], []


def leave_out(spec: mujoco.MjSpec, bodies: Sequence[str]) -> None:
    """Removes bodies from the model, with everything attached to them, including motors, sensors and constraints.

    Raises:
        ConfigError: The model has no such body.
    """
    for name in bodies:
        spec.delete(find_in_spec(spec, "body", name))


def add_gravity(spec: mujoco.MjSpec) -> bool:
    """Adds gravity of 9.81 m/s^2 along -z to a model without gravity; returns whether it had none."""
    if any(spec.option.gravity):
        return False
    spec.option.gravity = [0.0, 0.0, -9.81]
    return True


def add_ground(spec: mujoco.MjSpec, height: float = 0.0) -> list[str]:
    """Adds a floor, a light and a sky if the model has none; returns the names of those added.

    The floor is a plane with friction 1.

    Args:
        height: Height of the floor, in m.
    """
    added = []
    if not any(geom.type in _GROUNDS and (geom.contype or geom.conaffinity) for geom in spec.geoms):
        add_ground_material(spec, "ksim_floor")
        # Not of the model's default class, which may make geoms that nothing collides with.
        spec.worldbody.add_geom(
            name="ksim_floor",
            type=mujoco.mjtGeom.mjGEOM_PLANE,
            pos=[0, 0, height],
            size=[0, 0, 0.1],
            material="ksim_floor",
            contype=1,
            conaffinity=1,
            condim=3,
            friction=[1, 0.005, 0.0001],
            group=0,
        )
        added.append("floor")
    return added + add_light_and_sky(spec)


def touch_ground_only(spec: mujoco.MjSpec) -> None:
    """Restricts collisions of moving geoms to geoms that are fixed to the world.

    Collisions between parts of the robot take time, especially on MJX. Explicit `<pair>`s stay.
    """
    for geom in spec.geoms:
        if geom.contype or geom.conaffinity:
            geom.contype, geom.conaffinity = (1, 0) if is_fixed(geom.parent) else (0, 1)


def use_implicitfast(spec: mujoco.MjSpec) -> None:
    """Integrates with MuJoCo's implicitfast, which takes the damping of servos implicitly and so stays stable.

    Models in a fluid keep their integrator: there MJX does not know this one. The solver gets at least
    `LEAST_ITERATIONS`: the fewer iterations of files for MJX are tuned to their own integrator and timestep.
    """
    option = spec.option
    iterations, ls_iterations = LEAST_ITERATIONS
    option.iterations = max(option.iterations, iterations)
    option.ls_iterations = max(option.ls_iterations, ls_iterations)
    if not (option.density or option.viscosity or any(option.wind)):
        option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST


def use_plain_contacts(spec: mujoco.MjSpec) -> bool:
    """Gives contacts pyramidal friction cones and only sliding friction; returns whether they had more.

    Elliptic cones, torsional and rolling friction make the constraint problem larger: a quadruped with all of them
    steps 3.6 times as fast without, see docs/benchmarks.md.
    """
    option, had_more = spec.option, False
    if option.cone != mujoco.mjtCone.mjCONE_PYRAMIDAL:
        option.cone, option.impratio, had_more = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1.0, True
    for geom in spec.geoms:
        if geom.condim > _SLIDING:
            geom.condim = _SLIDING
            had_more = had_more or bool(geom.contype or geom.conaffinity)
    return had_more


def is_fixed(body: mujoco.MjsBody) -> bool:
    """Whether a body is fixed to the world: neither it nor a parent has joints."""
    while body is not None and body.name != "world":
        if body.joints or body.mocap:
            return False
        body = body.parent
    return True


def add_feet(spec: mujoco.MjSpec, feet: Sequence[Foot]) -> None:
    """Adds a site and a touch sensor for each foot.

    A touch sensor of MuJoCo feels the contacts of one body. Each further body of a foot, such as a toe, gets its own
    sensor, whose reading terms add to that of the foot.

    Raises:
        ConfigError: The model has no such body, or already has a site or sensor of that name.
    """
    for foot in feet:
        body = find_in_spec(spec, "body", foot.body)
        _check_free(spec, "site", foot.name)
        _check_free(spec, "sensor", foot.touch)
        body.add_site(
            name=foot.name,
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=foot.pos,
            size=foot.size,
            group=5,
            rgba=[0.2, 0.6, 0.9, 0.3],
        )
        add_touch_sensor(spec, foot.touch, foot.name)
        for k, part in enumerate((below for below in body.find_all("body") if below.geoms), start=1):
            add_body_touch_sensor(spec, part_of(foot.touch, k), part)


def add_imu(spec: mujoco.MjSpec, body: str, name: str = "imu") -> None:
    """Adds a site in the origin of a body for an IMU; `ksim.mdp.observations.ImuGyro` reads it.

    Raises:
        ConfigError: The model has no such body, or already has a site of that name.
    """
    _check_free(spec, "site", name)
    find_in_spec(spec, "body", body).add_site(name=name, size=[0.01, 0.01, 0.01], group=5)


def add_tip(spec: mujoco.MjSpec, body: str, pos: Vector, name: str = "tip") -> None:
    """Adds a site to a body, in m in its frame: the point of an arm that reaches, or of a pole that balances.

    Raises:
        ConfigError: The model has no such body, or already has a site of that name.
    """
    _check_free(spec, "site", name)
    site = find_in_spec(spec, "body", body).add_site(name=name, pos=pos, size=[0.02, 0.02, 0.02])
    site.rgba = [0.9, 0.3, 0.2, 0.7]


def add_position_sensor(spec: mujoco.MjSpec, site: str) -> None:
    """Adds a sensor, named like a site, of the site's position in the world, in m."""
    _check_free(spec, "sensor", site)
    spec.add_sensor(name=site, type=mujoco.mjtSensor.mjSENS_FRAMEPOS, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)


def add_motors(spec: mujoco.MjSpec, torque: Mapping[str, float]) -> None:
    """Adds a motor, named like its joint, to each hinge and slide joint that a pattern matches.

    torque: the most that a motor gives, in N m (N on slides), by pattern of the joint's name, the first that matches.

    Raises:
        ConfigError: A pattern matches no joint, or the model already has actuators.
    """
    if spec.actuators:
        raise ConfigError(
            f"The model has {len(spec.actuators)} actuators of its own. Use them, and leave out add_motors."
        )
    joints = [joint.name for joint in spec.joints if joint.type in ONE_DOF]
    limits = per_joint({**torque, "*": torque.get("*", 0.0)}, joints, "torque")
    for joint, limit in zip(joints, limits.tolist(), strict=True):
        if limit > 0:
            motor = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
            motor.set_to_motor()
            # Not those of the model's default class, which set_to_motor leaves.
            motor.gear, motor.armature, motor.damping = [1, 0, 0, 0, 0, 0], 0.0, [0, 0, 0]
            motor.forcelimited = motor.actlimited = mujoco.mjtLimited.mjLIMITED_FALSE
            motor.forcerange = motor.actrange = [0, 0]
            motor.ctrllimited, motor.ctrlrange = True, [-limit, limit]


def set_pose(spec: mujoco.MjSpec, joints: Mapping[str, float], height: float | None = None) -> None:
    """Makes a pose the first keyframe. Episodes start in it, and actions are relative to it. Other keyframes follow.

    The base is level and faces along x. Joints that no pattern matches are in the model's reference pose. If the model
    has closed loops, joints move to close them: undriven joints first, driven joints only if necessary.

    Args:
        joints: Positions in rad (m of slides), by pattern of the joint's name, the first that matches.
        height: Height of the base above the floor, in m; None for a robot without a free base.

    Raises:
        ConfigError: A pattern matches no joint, or the pose would tear a closed loop open.
    """
    model = spec.copy().compile()
    names = [joint.name for joint in spec.joints if joint.type in ONE_DOF]
    qpos = model.qpos0.copy()
    values = per_joint({**joints, "*": joints.get("*", float("nan"))}, names, "joints")
    for name, value in zip(names, values.tolist(), strict=True):
        if not np.isnan(value):
            qpos[model.joint(name).qposadr[0]] = value
    if height is not None:
        qpos = with_level_base(model, qpos, Ground(model).level + height)
    qpos, _, gap = Loops(model).closed(qpos)
    if not gap <= OPEN:  # also for a non-finite pose
        raise ConfigError(
            f"set_pose cannot close the loops of the model: in the pose nearest to the one asked for an equality "
            f"constraint is off by {gap:.3g} m (or rad). Ask for a pose that the linkage has."
        )
    kept = ("name", "time", "qpos", "qvel", "act", "mpos", "mquat", "ctrl")
    others = [
        {field: np.array(x) if field != "name" else x for field in kept for x in [getattr(key, field)]}
        for key in spec.keys
    ]
    for key in list(spec.keys):
        spec.delete(key)
    spec.add_key(name=HOME, qpos=qpos)
    for other in others:
        if other["name"] != HOME:
            spec.add_key(**other)


def _rotated(vector_3: np.ndarray, quat_4: np.ndarray) -> np.ndarray:
    result = np.zeros(3)
    mujoco.mju_rotVecQuat(result, vector_3, quat_4)
    return result


def _check_free(spec: mujoco.MjSpec, kind: str, name: str) -> None:
    if getattr(spec, kind)(name) is not None:
        raise ConfigError(f"The model already has a {kind} {name!r}. Choose another name.")
