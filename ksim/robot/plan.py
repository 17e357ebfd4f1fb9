"""The plan of a robot's task: the numbers chosen for it, and a report of the reasons."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from ksim.physics import AbstractActuators, ModelActuators, PositionActuators
from ksim.physics.actuator_kinds import is_limited, torque_range
from ksim.physics.names import ONE_DOF, side_pattern
from ksim.robot.describe import Leg, RobotDescription, grouped, in_world
from ksim.robot.scene import Foot, add_ground, touch_ground_only, use_implicitfast

DT, CTRL_DT = 0.005, 0.02
LEG_SAG_RAD = 1.0
SAG_RAD = 0.25
SAG_M = 0.01
DAMPING_RATIO = 0.4
LEAST_DAMPING_S = 0.025
TORQUE_PART = 0.35
STRENGTH = 0.5
"""Torque of a guessed motor of a leg, over the robot's weight times the reach of the leg. Real ones: Unitree G1 0.4 to
0.6, Go1 and Go2 0.45 to 0.8, A1 0.8, ANYmal C 0.3."""
PAYLOAD = 0.25
"""Mass that a guessed motor of an arm carries at the tip, over the robot's own. Real arms: Panda 0.17, UR5e 0.24,
UR10e 0.37, KUKA iiwa 14 0.47, Kinova Gen3 0.5."""
BELIEVED = (0.1, 10.0)
"""Range of a file's limit of effort over the load of the joint. Files often have placeholders such as 1000 N m."""
ACTION_SCALE_RAD = (0.25, 0.4)


@dataclass(frozen=True)
class Settings:
    """Wishes of the user about a plan; None leaves the choice to the rules of this module.

    Attributes:
        dt: Physics step, in s.
        frequency_hz: Natural frequency of the servos, in Hz, for the inertia at each joint.
        damping_ratio: Damping ratio of the servos: 1 is critical.
    """

    dt: float = DT
    frequency_hz: float | None = None
    damping_ratio: float | None = None


USUAL = Settings()


@dataclass(frozen=True, kw_only=True)
class Drives:
    """Servos of a robot, by joint or pattern of joint names.

    Attributes:
        stiffness: Stiffness in N m/rad (N/m on slides); empty if the model's own actuators stay.
        damping: Damping in N m s/rad; empty if the model's own actuators stay.
        torque: Torque limits of added motors in N m; empty if the model has actuators.
        action_scale: rad (m) of target per unit of action; empty if it has no meaning for the actuators.
        offset: rad (m) of the target from the pose at action 0, with which servos carry the weight; empty for none.
    """

    stiffness: Mapping[str, float] = dataclasses.field(default_factory=dict)
    damping: Mapping[str, float] = dataclasses.field(default_factory=dict)
    torque: Mapping[str, float] = dataclasses.field(default_factory=dict)
    action_scale: Mapping[str, float] = dataclasses.field(default_factory=dict)
    offset: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def actuators(self) -> AbstractActuators:
        """The actuators of a task; without gains those of the model."""
        offset = self.offset or 0.0
        if not self.stiffness:
            return ModelActuators(self.action_scale, offset) if self.action_scale else ModelActuators()
        return PositionActuators(self.stiffness, self.damping, self.action_scale, offset)


def gains_of(
    model: mujoco.MjModel,
    qpos: np.ndarray,
    joints: Sequence[str],
    legs: Sequence[Leg],
    *,
    limits: Mapping[str, float],
    frequency_hz: float,
    has_motors: bool = False,
    own_kp: Mapping[str, float] | None = None,
    tip: tuple[str, np.ndarray] | None = None,
    settings: Settings = USUAL,
) -> Drives:
    """Servos for each joint by the settings, and otherwise by the rules of this module.

    The torque limit of a joint is the known one if it is credible.

    Args:
        qpos: The standing pose.
        legs: The robot's legs; empty if it is fixed to the world.
        limits: Known torque limits by joint, in N m.
        has_motors: Whether the limits are of motors that the model has, and so apply even if they are not credible.
        own_kp: Stiffness of the model's own servos by joint; it is kept.
        tip: For arms: the body at the end, and a point in its frame, in m, which carries a payload.
        frequency_hz: Natural frequency of an unloaded joint, in Hz. For legs: 1.5 times the gait's frequency.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    inertia = {name: float(full[dof, dof]) for name in joints for dof in [model.joint(name).dofadr[0]]}
    in_leg = {joint: leg for leg in legs for joint in leg.joints}
    kp: dict[str, float] = {}
    kd: dict[str, float] = {}
    torque: dict[str, float] = {}
    scale: dict[str, float] = {}
    for name in joints:
        stiffness, needed = _needs_of(model, data, name, in_leg.get(name), tip)
        by_speed = inertia[name] * (2 * np.pi * frequency_hz) ** 2
        if settings.frequency_hz is not None:
            stiffness, by_speed = 0.0, inertia[name] * (2 * np.pi * settings.frequency_hz) ** 2
        kp[name] = (own_kp or {}).get(name) or max(stiffness, by_speed)
        critical = 2 * float(np.sqrt(kp[name] * inertia[name]))
        kd[name] = max(DAMPING_RATIO * critical, LEAST_DAMPING_S * kp[name])
        if settings.damping_ratio is not None:
            kd[name] = settings.damping_ratio * critical
        low, high = model.joint(name).range if model.jnt_limited[model.joint(name).id] else (-np.pi, np.pi)
        is_hinge = model.joint(name).type[0] == mujoco.mjtJoint.mjJNT_HINGE
        quarter = min(float(high - low), 2 * np.pi if is_hinge else np.inf) / 4
        guess = max(needed, kp[name] * min(0.5, quarter))
        own = limits.get(name, guess)
        torque[name] = own if BELIEVED[0] * guess <= own <= BELIEVED[1] * guess else guess
        most = limits.get(name, torque[name]) if has_motors else torque[name]
        by_torque = np.clip(TORQUE_PART * most / kp[name], *ACTION_SCALE_RAD)
        scale[name] = min(float(by_torque), quarter) if legs else quarter
    offset: dict[str, float] = {}
    if legs:
        load_v = _standing_loads(model, data, legs)
        offset = {name: float(load_v[model.joint(name).dofadr[0]] / kp[name]) for name in joints}
    return Drives(stiffness=kp, damping=kd, torque=torque, action_scale=scale, offset=offset)


def _needs_of(
    model: mujoco.MjModel, data: mujoco.MjData, joint: str, leg: Leg | None, tip: tuple[str, np.ndarray] | None
) -> tuple[float, float]:
    """The stiffness, in N m/rad (N/m), and the torque, in N m (N), with which a joint carries its load."""
    weight = float(np.linalg.norm(model.opt.gravity)) or 9.81
    if leg is not None:
        load = model.body_subtreemass[0] * weight * _reach(model, data, joint, leg)
        return load / LEG_SAG_RAD, STRENGTH * load
    load = _weight_moment(model, data, joint, weight) + _payload_moment(model, data, joint, tip, weight)
    is_slide = model.jnt_type[model.joint(joint).id] == int(mujoco.mjtJoint.mjJNT_SLIDE)
    return load / (SAG_M if is_slide else SAG_RAD), 2 * load


def _standing_loads(model: mujoco.MjModel, data: mujoco.MjData, legs: Sequence[Leg]) -> np.ndarray:
    """The forces of all degrees of freedom, in N m (N), that hold the robot at rest on its feet, in the pose of `data`.

    The feet push straight up, with the forces of the least squares that balance the robot about its centre of mass.
    """
    bodies = [model.body(leg.body).id for leg in legs]
    points = [in_world(data, body, leg.pos) for body, leg in zip(bodies, legs, strict=True)]
    root = int(model.body_rootid[bodies[0]])
    weight = float(model.body_subtreemass[root] * np.linalg.norm(model.opt.gravity))
    balance = np.array([[1.0, *(point - data.subtree_com[root])[:2]] for point in points]).T
    push_l = np.linalg.lstsq(balance, [weight, 0.0, 0.0])[0]
    load_v = data.qfrc_bias - data.qfrc_passive
    for body, point, push in zip(bodies, points, push_l, strict=True):
        jacobian_3v = np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, jacobian_3v, None, point, body)
        load_v -= jacobian_3v[2] * push
    return load_v


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


def _payload_moment(
    model: mujoco.MjModel, data: mujoco.MjData, joint: str, tip: tuple[str, np.ndarray] | None, weight: float
) -> float:
    """The largest load on a joint by a payload at the tip, in N m (N on a slide); 0 if the joint does not carry it."""
    j = model.joint(joint).id
    end = 0 if tip is None else model.body(tip[0]).id
    above = end
    while above not in (0, model.jnt_bodyid[j]):
        above = int(model.body_parentid[above])
    if tip is None or not above:
        return 0.0
    payload = PAYLOAD * float(model.body_subtreemass[model.body_rootid[end]])
    if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_SLIDE):
        return payload * weight
    arm_3 = in_world(data, end, tip[1]) - data.xanchor[j]
    return payload * weight * float(np.linalg.norm(np.cross(arm_3, data.xaxis[j])))


@dataclasses.dataclass
class Report:
    """The lines to print: findings, guesses and unknowns."""

    found: list[str] = dataclasses.field(default_factory=list)
    guessed: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LeggedRobot(Drives):
    """The numbers of a robot on legs, from which `ksim.tasks.legged.LeggedTask` makes its terms.

    Attributes:
        feet: Boxes around the feet, in rows of left and right; each gets a site and a touch sensor.
        pose: The default pose, in rad (m), by pattern of joint names. Actions are relative to it.
        height: Height of the base above the floor in that pose, in m.
        standing_height: Height of the base once the servos have sagged, in m.
        rest_height: Height of the feet's sites in that pose, in m.
        period_s: Period of the gait, in s.
        phases: Phases of the feet in the gait, from 0 to 1.
        swing_m: Swing height of the feet, in m.
        bends: For bipeds: angles in rad by which each leg's joints bend to swing its foot; empty if it cannot.
        forward: Highest forward command, in m/s.
        effort: Weight of the squared torques.
        imu: The site of the IMU.
        imu_body: Body to whose origin the IMU is added; None if the model has it.
        freed: Body of the world that gets a free joint, in place of the file's own; None if the file has it.
        left_out: Bodies that are removed from the model.
        lift: Height by which the origin of the base is raised within it, in m.
        plain_contacts: Whether contacts get pyramidal friction cones and sliding friction only.
    """

    feet: tuple[Foot, ...]
    pose: Mapping[str, float]
    height: float
    standing_height: float
    rest_height: float
    period_s: float
    phases: tuple[float, ...]
    swing_m: float
    bends: tuple[Mapping[str, float], ...] = ()
    forward: float
    effort: float
    imu: str = "imu"
    imu_body: str | None = None
    freed: str | None = None
    left_out: tuple[str, ...] = ()
    lift: float = 0.0
    plain_contacts: bool = True

    @property
    def is_biped(self) -> bool:
        """Whether it has two legs."""
        return len(self.feet) <= 2


@dataclass(frozen=True, kw_only=True)
class FixedRobot(Drives):
    """The numbers of a robot without a free joint, for the tasks of `ksim.tasks.fixed`.

    Attributes:
        tip: The body at the robot's end, and the tip's position in its frame, in m; gets the site `tip`.
        pose: Positions of joints in rad (m) where episodes start; empty for those of the file.
        floor: Height of the floor that is added, in m.
        left_out: Bodies that are removed from the model.
    """

    tip: tuple[str, tuple[float, float, float]]
    pose: Mapping[str, float] = dataclasses.field(default_factory=dict)
    floor: float = 0.0
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArmRobot(FixedRobot):
    """The numbers of an arm that reaches for points.

    Attributes:
        reach: Ranges of x, y and z that the tip reaches, in m.
        coarse: Distance from the target, in m, at which a reward begins to matter.
    """

    reach: tuple[tuple[float, float], ...]
    coarse: float


@dataclass(frozen=True, kw_only=True)
class BalancingRobot(FixedRobot):
    """The numbers of a robot that keeps its tip up with fewer motors than joints.

    Attributes:
        tip_heights: Heights of the tip hanging and upright, in m.
        starts_up: Whether episodes start upright, and end when it falls.
        driven: The joints with motors.
    """

    tip_heights: tuple[float, float]
    starts_up: bool
    driven: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PlanarRobot(FixedRobot):
    """The numbers of a robot that runs in a vertical plane.

    Attributes:
        plane: The slides along and up, and the hinge that tilts it.
        height: Height of the base at the start, in m.
        forward: Highest speed along the first slide, in m/s.
    """

    plane: tuple[str, str, str]
    height: float
    forward: float


@dataclass(frozen=True)
class Plan:
    """The task of a robot: its numbers, and their sources.

    Attributes:
        dt: Physics step, in s.
        file_dt: Physics step of the robot's file, in s.
        is_mirrored: Whether the task has a mirror image to learn from.
        strength: Source of the torque limits of added motors, in words.
        pose_source: Source of the pose, in words.
        stands: Description of how the robot stood in the pose.
    """

    findings: RobotDescription
    report: Report
    robot: LeggedRobot | FixedRobot
    dt: float = DT
    file_dt: float = DT
    is_mirrored: bool = False
    strength: str = ""
    pose_source: str = ""
    stands: str = ""


def own_kp(model: mujoco.MjModel, found: RobotDescription) -> dict[str, float]:
    """The stiffness of the model's own servos, in N m/rad, by joint."""
    if found.drive != "servos":
        return {}
    gear = model.actuator_gear[:, 0]
    return dict(zip(found.driven, (model.actuator_gainprm[:, 0] * gear**2).tolist(), strict=True))


def drives_of(gains: Drives, found: RobotDescription) -> Drives:
    """The servos, by pattern, with the gains that the robot's own actuators do not define."""
    if found.drive == "other":
        return Drives()
    scale, offset = grouped(gains.action_scale, digits=2), grouped(gains.offset, decimals=2)
    offset = offset if any(offset.values()) else {}
    if found.drive == "servos":
        return Drives(action_scale=scale, offset=offset)
    return Drives(
        stiffness=grouped(gains.stiffness, digits=2),
        damping=grouped(gains.damping, digits=2),
        torque=grouped(gains.torque, digits=3) if found.drive == "none" else {},
        action_scale=scale,
        offset=offset,
    )


def strength_of(gains: Drives, limits: Mapping[str, float], rule: str) -> str:
    """The source of the torque limits of added motors, in words. `rule` is that of guessed ones."""
    guessed = [name for name, torque in gains.torque.items() if torque != limits.get(name)]
    if not guessed:
        return "the limits of effort in the file"
    sure = {side_pattern(name) for name in gains.torque if name not in guessed}
    patterns = ", ".join(dict.fromkeys(x if (x := side_pattern(name)) not in sure else name for name in guessed))
    whole = len(guessed) == len(gains.torque)
    return f"guessed, {rule}" if whole else f"the limits of effort in the file, but for {patterns} guessed, {rule}"


def add_world(spec: mujoco.MjSpec, report: Report, height: float = 0.0) -> None:
    """Changes the world as the task's `get_robot` will, the floor at `height` m."""
    added = add_ground(spec, height)
    if added:
        report.guessed.append(
            f"The file has no {' and no '.join(added)}: the task adds {'it' if len(added) == 1 else 'them'}."
        )
    touch_ground_only(spec)
    use_implicitfast(spec)


def torque_limits(spec: mujoco.MjSpec) -> dict[str, float]:
    """Torque limits by joint, in N m, for joints for which the model defines one."""
    limits = {}
    for joint in spec.joints:  # of motors that the file leaves out, as a URDF does
        if joint.type in ONE_DOF and is_limited(joint, "actfrc"):
            limits[joint.name] = float(np.abs(joint.actfrcrange).min())
    for actuator in spec.actuators:
        joint = spec.joint(actuator.target)
        if joint is not None and (known := torque_range(spec, actuator)) is not None:
            limits[joint.name] = float(np.abs(known).min())
    return {name: limit for name, limit in limits.items() if limit > 0}


def report_found(report: Report, model: mujoco.MjModel, found: RobotDescription) -> None:
    """Adds the findings about a model to the report."""
    lines = report.found
    way = "moves in a plane" if found.plane else "is fixed to the world"
    where = f"a free base, {found.base!r}" if found.base else f"no free joint: it {way}"
    lines.append(f"{found.mass:.3g} kg, {len(found.joints)} joints, {where}.")
    if found.legs:
        lines.append(
            f"{len(found.legs)} legs: " + ", ".join(f"{leg.name} (to {leg.body!r})" for leg in found.legs) + "."
        )
    drives = {
        "servos": f"Position servos on {len(found.driven)} of the joints.",
        "motors": f"Motors on {len(found.driven)} of the joints.",
        "none": "No actuators.",
        "other": f"{model.nactuator} actuators, not one motor or position servo for each joint.",
    }
    lines.append(drives[found.drive])
    passive = [name for name in found.joints if name not in found.driven]
    if found.drive in ("servos", "motors") and passive:
        lines.append(f"Nothing drives {', '.join(passive)}.")
    if found.base:
        lines.append(f"IMU: a gyro on site {found.imu!r}." if found.imu else "No IMU.")
    names = ", ".join(repr(name) if name else f"number {i}" for i, name in enumerate(found.keyframes))
    lines.append(f"Keyframes: {names}." if names else "No keyframe.")
