"""What a new task for a robot says: the numbers that are chosen for it, and why."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics import AbstractActuators, ModelActuators, PositionActuators, compile_model
from ksim.physics.actuators import per_joint
from ksim.physics.torques import torque_range
from ksim.robot.findings import Findings, Leg, clipped_reference, look_at
from ksim.robot.gains import Gains, gains_of
from ksim.robot.geometry import lowest_point
from ksim.robot.pose import Stance, find_stance, on_ground
from ksim.robot.scene import Foot, add_ground, add_motors, load, set_pose, touch_ground_only, use_implicitfast

DT, CTRL_DT = 0.005, 0.02
PERIOD_PART = 2.9
"""Period of a gait over sqrt(height / gravity): animals of any size walk alike at the same Froude number, Alexander and
Jayes 1983 (doi:10.1111/j.1469-7998.1983.tb04266.x)."""
FROUDE = {True: 0.12, False: 0.25}
"""Squared speed over gravity times height, at the highest forward command: of two legs, and of more."""
_SIDES = re.compile(r"left|right|front|rear|back|hind|mid|middle|[lr]|[frhbm][lr]|[lr][frhbm]|\d+", re.IGNORECASE)


@dataclasses.dataclass
class Report:
    """What is printed: lines of what was found, guessed, and could not be told."""

    found: list[str] = dataclasses.field(default_factory=list)
    guessed: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The numbers of a task.

    Attributes:
        findings: What the model is.
        report: What is printed.
        added: What the scene lacked and gets: floor, light, sky.
        imu: The site of the IMU; None without a free base.
        feet: Feet, in the order of the gait's phases.
        offsets: Phases of the feet.
        stiffness: By pattern of joints, as all of these; empty where the model's own actuators stay.
        damping: Likewise.
        torque: Likewise; empty where the model has actuators.
        action_scale: Likewise.
        pose: The default pose.
        height: Of the base in it, in m.
        standing_height: Of the base once its servos have given way, in m.
        period_s: Of the gait.
        forward: Highest forward command, in m/s.
        effort: Weight of the squared torques.
        rest_height: Of the feet's sites in that pose, in m.
        swinging: Joints that swing a leg forward.
        is_biped: Whether it has one or two legs.
        pose_source: Where the pose is from, in words.
        stands: In words, how it stood in it.
        floor: Of a fixed robot: height of the floor that is added, in m.
        reach: Of an arm: ranges of x, y and z, in m, in which its tip can be.
        coarse: Of an arm: distance from the target, in m, at which a reward begins to matter.
        tip_heights: Of what balances: the lowest and the highest height of its tip, in m.
        starts_up: Whether its tip starts above the joint on which it balances.
    """

    findings: Findings
    report: Report
    added: tuple[str, ...]
    imu: str | None = None
    feet: tuple[Foot, ...] = ()
    offsets: tuple[float, ...] = ()
    stiffness: Mapping[str, float] = dataclasses.field(default_factory=dict)
    damping: Mapping[str, float] = dataclasses.field(default_factory=dict)
    torque: Mapping[str, float] = dataclasses.field(default_factory=dict)
    action_scale: Mapping[str, float] = dataclasses.field(default_factory=dict)
    pose: Mapping[str, float] = dataclasses.field(default_factory=dict)
    height: float | None = None
    standing_height: float = 0.0
    period_s: float = 0.8
    forward: float = 1.0
    effort: float = 1e-5
    rest_height: float = 0.0
    swinging: tuple[str, ...] = ()
    is_biped: bool = False
    pose_source: str = ""
    stands: str = ""
    floor: float = 0.0
    reach: tuple[tuple[float, float], ...] | None = None
    coarse: float = 0.2
    tip_heights: tuple[float, float] = (0.0, 1.0)
    starts_up: bool = True

    def actuators(self) -> AbstractActuators:
        """What the task's `get_actuators` returns."""
        if not self.stiffness:
            return ModelActuators(self.action_scale) if self.action_scale else ModelActuators()
        return PositionActuators(self.stiffness, self.damping, self.action_scale)


def make_plan(path: Path) -> Plan:
    """Looks at a robot's file and chooses the numbers of its task.

    Raises:
        ConfigError: MuJoCo cannot read the file, or ksim cannot make sense of the model.
    """
    spec = load(path)
    model = compile_model(spec, dt=DT, ctrl_dt=CTRL_DT, source=path).mj_model
    found = look_at(model)
    report = Report()
    _report_found(report, model, found)
    return _legged(spec, found, report) if found.kind == "legged" else _fixed(spec, model, found, report)


def _legged(spec: mujoco.MjSpec, found: Findings, report: Report) -> Plan:
    added = _world(spec, report)
    model = spec.copy().compile()
    limits = _limits(spec)
    assert found.base is not None
    height = _first_height(model, found)
    rough = lambda qpos: _gains(model, qpos, found, limits, height)

    def hold(qpos: np.ndarray, factor: float) -> tuple[mujoco.MjModel, np.ndarray]:
        plan = _with_gains(Plan(found, report, added), rough(qpos), found)
        held = spec.copy()
        if plan.torque:
            add_motors(held, plan.torque)
        joints = {name: float(qpos[model.joint(name).qposadr[0]]) for name in found.joints}
        set_pose(held, joints, 1.0)
        stiffer = lambda gains: {name: factor * gain for name, gain in gains.items()}
        actuators = dataclasses.replace(
            plan, stiffness=stiffer(plan.stiffness), damping=stiffer(plan.damping)
        ).actuators()
        physics_model = compile_model(held, dt=DT, ctrl_dt=CTRL_DT, edits=[actuators.edit_spec])
        action = jnp.zeros(actuators.action_size(physics_model))
        return physics_model.mj_model, np.asarray(actuators(action, physics_model))

    stance = find_stance(model, found.base, found.legs, found.joints, hold)
    qpos = _qpos(spec, stance)
    feet = tuple(_foot(spec, leg) for leg in found.legs)
    rest_height, swinging = _at_rest(model, qpos, found, feet)
    height = stance.settled_height if stance.stands else stance.height
    gravity = float(np.linalg.norm(model.opt.gravity)) or 9.81
    plan = _with_gains(Plan(found, report, added), _gains(model, qpos, found, limits, height), found)
    is_biped = len(found.legs) <= 2
    stood = _report_legged(report, found, stance, limits)
    return dataclasses.replace(
        plan,
        imu=found.imu or _free_name(spec, "site", "imu"),
        feet=feet,
        offsets=_offsets(len(found.legs)),
        pose=grouped(stance.joints, decimals=2),
        height=round(stance.height, 3),
        standing_height=round(height, 3),
        period_s=max(round(PERIOD_PART * math.sqrt(height / gravity) / 0.04) * 0.04, 0.16),
        forward=max(round(math.sqrt(FROUDE[is_biped] * gravity * height), 1), 0.1),
        effort=_rounded(0.2 / (found.mass * gravity * height) ** 2, 1),
        rest_height=round(rest_height, 3),
        swinging=swinging,
        is_biped=is_biped,
        pose_source=stance.source,
        stands=stood,
    )


def _fixed(spec: mujoco.MjSpec, model: mujoco.MjModel, found: Findings, report: Report) -> Plan:
    floor = _below(model, found)
    plan = Plan(found, report, _world(spec, report, floor), floor=floor)
    assert found.tip is not None
    tip = f"The point of body {found.tip[0]!r} that is farthest from its joint"
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
        plan = _with_gains(
            plan,
            gains_of(model, qpos, joints, (), limits=_limits(spec), frequency_hz=2.0, own_kp=_own_kp(model, found)),
            found,
        )
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
    """Where an arm's tip is in most of its poses: ranges of x, y and z, in m, and the diagonal of their box."""
    joints = found.driven or found.joints
    points = [_tip_position(model, data, found) for data in _random_poses(model, joints, qpos, num_poses)]
    lowest, highest = np.quantile(points, [0.15, 0.85], axis=0)
    ranges = tuple((round(float(a), 2), round(float(b), 2)) for a, b in zip(lowest, highest, strict=True))
    return ranges, float(np.linalg.norm(highest - lowest))


def _random_poses(
    model: mujoco.MjModel, joints: Sequence[str], qpos: np.ndarray, count: int
) -> Iterator[mujoco.MjData]:
    """A pose, then others with random positions of joints, within their ranges or a whole turn."""
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
    """A height, in m, that no part of a fixed robot reaches: 0 where that is below it anyway."""
    geoms = [g for g in range(model.ngeom) if model.body_weldid[model.geom_bodyid[g]] != 0]
    heights = [
        float(lowest_point(model, data, g)[2])
        for data in _random_poses(model, found.joints, model.qpos0, 200)
        for g in geoms
    ]
    return min(0.0, round(min(heights, default=0.0) - 0.05, 2))


def _tip_position(model: mujoco.MjModel, data: mujoco.MjData, found: Findings) -> np.ndarray:
    assert found.tip is not None
    body = model.body(found.tip[0]).id
    return data.xpos[body] + data.xmat[body].reshape(3, 3) @ found.tip[1]


def _tip_heights(model: mujoco.MjModel, found: Findings) -> tuple[float, float, bool]:
    """The least and the greatest height of the tip about the first joint that nothing drives, and if it starts up."""
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


def _first_height(model: mujoco.MjModel, found: Findings) -> float:
    """About how high the base stands, for the gains under which it settles."""
    qpos = clipped_reference(model)
    start = int(model.jnt_qposadr[model.body_jntadr[model.body(found.base).id]])
    return float(on_ground(model, str(found.base), qpos)[start + 2])


def _gains(
    model: mujoco.MjModel, qpos: np.ndarray, found: Findings, limits: Mapping[str, float], height: float
) -> Gains:
    period_s = PERIOD_PART * math.sqrt(height / 9.81)
    return gains_of(
        model,
        qpos,
        found.driven or found.joints,
        found.legs,
        limits=limits,
        frequency_hz=1.5 / period_s,
        own_kp=_own_kp(model, found),
    )


def _own_kp(model: mujoco.MjModel, found: Findings) -> dict[str, float]:
    """The stiffness of the model's own servos, in N m/rad, by joint."""
    if found.drive != "servos":
        return {}
    gear = model.actuator_gear[:, 0]
    return dict(zip(found.driven, (model.actuator_gainprm[:, 0] * gear**2).tolist(), strict=True))


def _with_gains(plan: Plan, gains: Gains, found: Findings) -> Plan:
    if found.drive == "other":
        return plan
    scale = grouped(gains.action_scale, digits=2)
    if found.drive == "servos":
        return dataclasses.replace(plan, action_scale=scale)
    return dataclasses.replace(
        plan,
        stiffness=grouped(gains.kp, digits=2),
        damping=grouped(gains.kd, digits=2),
        torque=grouped(gains.torque, digits=2) if found.drive == "none" else {},
        action_scale=scale,
    )


def _world(spec: mujoco.MjSpec, report: Report, height: float = 0.0) -> tuple[str, ...]:
    added = tuple(add_ground(spec, height))
    if added:
        report.guessed.append(
            f"The file has no {' and no '.join(added)}: the task adds {'it' if len(added) == 1 else 'them'}."
        )
    touch_ground_only(spec)
    use_implicitfast(spec)
    return added


def _limits(spec: mujoco.MjSpec) -> dict[str, float]:
    """Torque limits by joint, where the model tells."""
    limits = {}
    for actuator in spec.actuators:
        joint = spec.joint(actuator.target)
        if joint is not None and (known := torque_range(spec, actuator)) is not None:
            limits[joint.name] = float(np.abs(known).min())
    return {name: limit for name, limit in limits.items() if limit > 0}


def _qpos(spec: mujoco.MjSpec, stance: Stance) -> np.ndarray:
    posed = spec.copy()
    set_pose(posed, stance.joints, stance.height)
    return posed.compile().key_qpos[0].copy()


def _at_rest(
    model: mujoco.MjModel, qpos: np.ndarray, found: Findings, feet: Sequence[Foot]
) -> tuple[float, tuple[str, ...]]:
    """How high the middle of the feet is, in m, and which joints of legs turn about the base's y axis."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    at = lambda foot: data.body(foot.body).xpos + data.body(foot.body).xmat.reshape(3, 3) @ foot.pos
    of_legs = [name for leg in found.legs for name in leg.joints]
    swinging = tuple(name for name in of_legs if abs(data.joint(name).xaxis[1]) > 0.7)
    return float(np.mean([at(foot)[2] for foot in feet])), swinging


def _foot(spec: mujoco.MjSpec, leg: Leg) -> Foot:
    name = _free_name(spec, "site", f"{leg.name}_foot")
    pos = tuple(round(float(x), 3) + 0.0 for x in leg.pos)
    # A contact lies between two surfaces, so the box is a little larger than the foot.
    size = tuple(round(float(x) + max(0.2 * float(leg.size.min()), 0.003), 3) for x in leg.size)
    return Foot(name, leg.body, pos, size)  # type: ignore[arg-type]


def _free_name(spec: mujoco.MjSpec, kind: str, name: str) -> str:
    while getattr(spec, kind)(name) is not None or spec.sensor(f"{name}_touch") is not None:
        name += "_"
    return name


def _offsets(num_feet: int) -> tuple[float, ...]:
    """Feet in rows of left and right: neighbours step in turns, so that four trot and six walk on tripods."""
    return tuple(0.5 * ((i // 2 + i % 2) % 2) for i in range(num_feet))


def grouped(values: Mapping[str, float], *, digits: int | None = None, decimals: int | None = None) -> dict[str, float]:
    """Numbers by pattern of joints' names: joints that differ in their side alone share one, where their numbers agree.

    Args:
        values: By joint.
        digits: Significant digits to round to.
        decimals: Or decimals.
    """
    rounded = lambda x: round(x, decimals) + 0.0 if digits is None else _rounded(x, digits)
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
            result |= {_escaped(name): rounded(values[name]) for name in names}
    return result


def side_pattern(name: str) -> str:
    """A joint's name with a star for what tells sides: `*_knee` for `left_knee`, `hip_*` for `hip_1`."""
    parts = re.split(r"([_\-. ])", name)
    pattern = "".join("*" if _SIDES.fullmatch(part) else _escaped(part) for part in parts)
    return re.sub(r"\*([_\-. ]\*)+", "*", pattern)


def _escaped(name: str) -> str:
    return re.sub(r"([\[*?])", r"[\1]", name)


def _catches_others(pattern: str, names: Sequence[str], values: Mapping[str, float]) -> bool:
    try:
        caught = per_joint({pattern: 1.0, "*": 0.0}, list(values), "pattern")
    except ConfigError:
        return True
    return {name for name, value in zip(values, caught, strict=True) if value} != set(names)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}") + 0.0 if abs(value) > 1e-6 else 0.0


def _report_found(report: Report, model: mujoco.MjModel, found: Findings) -> None:
    lines = report.found
    where = f"a free base, {found.base!r}" if found.base else "no free joint: it is fixed to the world"
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


def _report_legged(report: Report, found: Findings, stance: Stance, limits: Mapping[str, float]) -> str:
    """Adds what was guessed and what could not be told; returns how it stood, in words."""
    guessed, unknown = report.guessed, report.unknown
    guessed.append("Feet: where the lowest part of each leg touches the ground. Each gets a site and a touch sensor.")
    if found.drive == "none":
        guessed.append("Motors on all joints, whose limits hold the robot's weight at the reach of the leg.")
    if found.drive in ("none", "motors"):
        guessed.append("Servo gains from the robot's weight, reach and inertias (see ksim.robot.gains).")
    stood = "it stood for 3 s" + ("" if stance.factor == 1 else f" with its servos {stance.factor:g} times as stiff")
    if stance.stands:
        guessed.append(f"Standing pose: {stance.source}; {stood}, its base {stance.settled_height:.2f} m high.")
    else:
        stood = "it did not stay standing"
        unknown.append(
            f"A pose in which it stands: none of those tried stood for 3 s. The task takes {stance.source}. Look at it "
            "with run_mode=view, and change POSE and HEIGHT, or the gains."
        )
    if not found.imu:
        guessed.append("The IMU is in the origin of the base.")
    unknown.append("Which way is forward: the task takes the x axis of the base.")
    lacking = [name for name in found.driven if name not in limits]
    if lacking:
        unknown.append(f"Torque limits of {', '.join(lacking)}: the file has none, so their servos have none.")
    return stood
