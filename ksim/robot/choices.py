"""Choices for robots on legs, and for robots that stand fast or balance."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics import Ground, PhysicsModel, compile_model
from ksim.robot.describe import (
    Leg,
    RobotDescription,
    clipped_reference,
    grouped,
    in_world,
    lowest_point,
    posed,
    rounded_to,
    wheels,
)
from ksim.robot.plan import (
    CTRL_DT,
    ArmRobot,
    BalancingRobot,
    Drives,
    LeggedRobot,
    Plan,
    PlanarRobot,
    Report,
    Settings,
    add_world,
    drives_of,
    gains_of,
    own_kp,
    strength_of,
    torque_limits,
)
from ksim.robot.pose import Stance, find_stance, height_of, lifting_bends, on_ground, stretched_height
from ksim.robot.scene import Foot, add_gravity, add_motors, set_pose, use_plain_contacts

PERIOD_PART = 2.9
"""Period of a gait over sqrt(height / gravity). Animals of any size walk alike at the same Froude number: Alexander and
Jayes 1983 (doi:10.1111/j.1469-7998.1983.tb04266.x)."""
BEND_PART = 1.6
"""For bipeds: the foot height to which the legs bend, over the desired swing height. Above 1, because servos lag."""
FROUDE = {True: 0.12, False: 0.25}
"""Froude number (squared speed over gravity times height) at the highest forward command: for bipeds, for others."""
GRAVITY = (0.1, 100.0)
"""Range of gravity for which gaits are planned, in m/s^2. On Jupiter it is 25."""


def legged_plan(spec: mujoco.MjSpec, found: RobotDescription, report: Report, settings: Settings) -> Plan:
    """Chooses the plan, and adds the guesses to the report.

    `spec` gets a ground, and gravity if it has none.

    Raises:
        ConfigError: The robot rolls on wheels, its gravity is not that of a planet, or its base is not above its feet.
    """
    _add_legged_world(spec, report)
    model = spec.copy().compile()
    gravity = _check_walks(model, found)
    limits = torque_limits(spec)
    assert found.base is not None
    height = _above_ground(_first_height(model, found), "the reference pose")
    rough = lambda qpos: _gains(model, qpos, found, limits, height, settings=settings)

    def hold(qpos: np.ndarray) -> tuple[mujoco.MjModel, np.ndarray]:
        drives = drives_of(rough(qpos), found)
        joints = {name: float(qpos[model.joint(name).qposadr[0]]) for name in found.joints}
        physics_model = driven_model(spec, drives, joints, 1.0, settings.dt)
        actuators = drives.actuators()
        action = jnp.zeros(actuators.action_size(physics_model))
        return physics_model.mj_model, np.asarray(actuators(action, physics_model))

    stance = find_stance(model, found.base, found.legs, found.joints, hold)
    qpos = _qpos(spec, stance)
    feet = tuple(_foot(spec, leg) for leg in found.legs)
    height = _above_ground(stance.settled_height if stance.stands else stance.height, stance.source)
    gains = _gains(model, qpos, found, limits, height, settings=settings)
    strength = strength_of(gains, limits, "half the robot's weight times the reach of the leg")
    drives = drives_of(gains, found)
    is_biped = len(found.legs) <= 2
    swing = round((0.1 if is_biped else 0.2) * height, 3)
    numbers = LeggedRobot(
        **vars(drives),
        feet=feet,
        pose=grouped(stance.joints, decimals=2),
        height=round(stance.height, 3),
        standing_height=round(height, 3),
        rest_height=round(_rest_height(model, qpos, feet), 3),
        period_s=float(f"{max(round(PERIOD_PART * math.sqrt(height / gravity) / 0.04) * 0.04, 0.16):.3g}"),
        phases=_offsets(len(found.legs)),
        swing_m=swing,
        bends=lifting_bends(model, found.legs, qpos, BEND_PART * swing) if is_biped else (),
        forward=max(round(math.sqrt(FROUDE[is_biped] * gravity * height), 1), 0.1),
        effort=rounded_to(0.2 / (found.mass * gravity * height) ** 2, 1),
        imu=found.imu or _free_name(spec, "site", "imu"),
        imu_body=None if found.imu else found.base,
    )
    if found.drive == "none":
        report.guessed.append(f"Motors on all joints, as strong as {strength}.")
    stretched = stretched_height(model, found.base, found.legs)
    share = None if stretched is None else height / stretched
    stood = _report_legged(report, found, stance, limits, share)
    return Plan(found, report, numbers, settings.dt, strength=strength, pose_source=stance.source, stands=stood)


def _add_legged_world(spec: mujoco.MjSpec, report: Report) -> None:
    """Changes the world as the task of a robot on legs will."""
    add_world(spec, report)
    if add_gravity(spec):
        report.guessed.append("The file has no gravity: the task adds it.")
    if use_plain_contacts(spec):
        report.guessed.append(
            "The file asks for elliptic friction cones, or for torsional or rolling friction, which take up to four "
            "times as long: the task takes pyramidal cones and sliding friction."
        )


def _check_walks(model: mujoco.MjModel, found: RobotDescription) -> float:
    """Raises ConfigError if the robot rolls on wheels, or no gait can be planned; returns gravity, in m/s^2."""
    rolling = [joint for leg in found.legs for joint in wheels(model, leg)]
    if rolling:
        raise ConfigError(
            f"The robot rolls on wheels: {', '.join(rolling)} turn without end about the middle of a foot. This tool's "
            "task is to walk. Write one that drives by hand, see docs/own_robot.md, or remove these joints."
        )
    gravity = float(np.linalg.norm(model.opt.gravity))
    if not GRAVITY[0] <= gravity <= GRAVITY[1]:
        raise ConfigError(
            f"Gravity ({gravity:g} m/s^2) must be between {GRAVITY[0]:g} and {GRAVITY[1]:g} m/s^2 for a gait."
        )
    return gravity


def driven_model(
    spec: mujoco.MjSpec, drives: Drives, pose: Mapping[str, float], height: float, dt: float
) -> PhysicsModel:
    """The robot in a pose, with these motors and servos, as the task compiles it."""
    driven = spec.copy()
    if drives.torque:
        add_motors(driven, drives.torque)
    set_pose(driven, pose, height)
    return compile_model(driven, dt=dt, ctrl_dt=CTRL_DT, edits=[drives.actuators().edit_spec])


def _above_ground(height: float, pose: str) -> float:
    """Raises ConfigError unless the base's height, in m, is above 0; returns the height. `pose` describes the pose."""
    if height > 0:
        return height
    raise ConfigError(
        f"The robot's base is {height:.3g} m above the ground in {pose}, but a robot that walks has it above its feet. "
        "Check that the feet can touch the ground (contype, conaffinity), and that the z axis of the base points up."
    )


def _first_height(model: mujoco.MjModel, found: RobotDescription) -> float:
    """The approximate standing height of the base, in m, for the gains with which the robot settles."""
    return height_of(model, on_ground(model, str(found.base), clipped_reference(model)))


def _gains(
    model: mujoco.MjModel,
    qpos: np.ndarray,
    found: RobotDescription,
    limits: Mapping[str, float],
    height: float,
    *,
    settings: Settings,
) -> Drives:
    period_s = PERIOD_PART * math.sqrt(height / float(np.linalg.norm(model.opt.gravity)))
    return gains_of(
        model,
        qpos,
        found.driven or found.joints,
        found.legs,
        limits=limits,
        has_motors=found.drive != "none",
        frequency_hz=1.5 / period_s,
        own_kp=own_kp(model, found),
        settings=settings,
    )


def _qpos(spec: mujoco.MjSpec, stance: Stance) -> np.ndarray:
    posed = spec.copy()
    set_pose(posed, stance.joints, stance.height)
    return posed.compile().key_qpos[0].copy()


def _rest_height(model: mujoco.MjModel, qpos: np.ndarray, feet: Sequence[Foot]) -> float:
    """Mean height of the feet's boxes above the floor, in m."""
    data = posed(model, qpos)
    heights = [in_world(data, model.body(foot.body).id, foot.pos)[2] for foot in feet]
    return float(np.mean(heights)) - Ground(model).level


def _foot(spec: mujoco.MjSpec, leg: Leg) -> Foot:
    name = _free_name(spec, "site", f"{leg.name}_foot")
    pos = tuple(round(float(x), 3) + 0.0 for x in leg.pos)
    # A contact lies between two surfaces, so the box must be slightly larger than the foot.
    size = tuple(round(float(x) + max(0.2 * float(leg.size.min()), 0.003), 3) for x in leg.size)
    return Foot(name, leg.body, pos, size)  # type: ignore[arg-type]


def _free_name(spec: mujoco.MjSpec, kind: str, name: str) -> str:
    while getattr(spec, kind)(name) is not None or spec.sensor(f"{name}_touch") is not None:
        name += "_"
    return name


def _offsets(num_feet: int) -> tuple[float, ...]:
    """Phases of feet in rows of left and right. Neighbours alternate: four legs trot, six walk on tripods."""
    return tuple(0.5 * ((i // 2 + i % 2) % 2) for i in range(num_feet))


def _report_legged(
    report: Report, found: RobotDescription, stance: Stance, limits: Mapping[str, float], share: float | None
) -> str:
    """Adds guesses and unknowns to the report; returns a description of how the robot stood.

    `share` is the height of the base over that with stretched legs; None if it is not known.
    """
    guessed, unknown = report.guessed, report.unknown
    guessed.append("Feet: where the lowest part of each leg touches the ground. Each gets a site and a touch sensor.")
    if found.drive in ("none", "motors"):
        guessed.append("Servo gains from the robot's weight, reach and inertias (see ksim.robot.plan).")
    stood = "it stood for 3 s" + (", helped against falling over" if stance.is_helped else "")
    if stance.crouches:
        guessed.append(f"Not to walk in, because far below the height of the legs: {', '.join(stance.crouches)}.")
    if stance.stands:
        of_legs = "" if share is None else f", {share:.0%} of the height with stretched legs"
        high = f"its base {stance.settled_height:.2f} m high{of_legs}"
        guessed.append(f"Standing pose: {stance.source}; {stood}, {high}.")
    else:
        stood = "it did not stay standing"
        unknown.append(
            f"A pose in which it stands: none of those tried stood for 3 s. The task takes {stance.source}. Look at it "
            "with run_mode=view, and change pose and height, or the gains."
        )
    if not found.imu:
        guessed.append("The IMU is in the origin of the base.")
    unknown.append("Which way is forward: the task takes the x axis of the base.")
    lacking = [name for name in found.driven if name not in limits]
    if lacking:
        unknown.append(f"Torque limits of {', '.join(lacking)}: the file has none, so their servos have none.")
    return stood


FREQUENCY_HZ = 2.0
"""Natural frequency of an arm's joints, in Hz."""


def fixed_plan(
    spec: mujoco.MjSpec, model: mujoco.MjModel, found: RobotDescription, report: Report, settings: Settings
) -> Plan:
    """Chooses the plan, and adds the guesses to the report. `spec` gets a ground.

    Raises:
        ConfigError: Some joints are undriven, but none of them is a hinge that could balance, or a robot in a plane
            starts below the ground.
    """
    floor = 0.0 if found.plane else _below(model, found)
    add_world(spec, report, floor)
    assert found.tip is not None
    body, pos = found.tip
    x, y, z = (round(float(x), 3) + 0.0 for x in pos)
    numbers: dict[str, Any] = {"tip": (body, (x, y, z)), "floor": floor}
    tip = f"The point of body {found.tip[0]!r} that is farthest from its joint"
    if found.other_arms:
        report.unknown.append(f"What the joints that lead to {', '.join(map(repr, found.other_arms))} are for.")
    if found.plane:
        return Plan(found, report, PlanarRobot(**numbers, **_plane_numbers(model, found, report)))
    if found.kind == "balance":
        low, high, starts_up = _tip_heights(model, found)
        report.guessed.append(f"The task: to keep {tip[0].lower()}{tip[1:]} up, because not every joint is driven.")
        report.guessed.append(
            "It starts " + ("upright." if starts_up else "hanging, and must swing up: that may take longer.")
        )
        robot = BalancingRobot(**numbers, tip_heights=(low, high), starts_up=starts_up, driven=found.driven)
        return Plan(found, report, robot)
    why = "the file drives every joint" if found.drive != "none" else "with motors on every joint it can"
    report.guessed.append(f"The task: {tip[0].lower()}{tip[1:]} reaches for points, because {why}.")
    qpos = model.key_qpos[0].copy() if model.nkey else clipped_reference(model)
    strength = ""
    if found.drive != "other":
        joints = found.driven or found.joints
        limits, kp = torque_limits(spec), own_kp(model, found)
        gains = gains_of(
            model,
            qpos,
            joints,
            (),
            limits=limits,
            frequency_hz=FREQUENCY_HZ,
            own_kp=kp,
            tip=found.tip,
            settings=settings,
        )
        numbers |= vars(drives_of(gains, found))
        if found.drive == "none":
            strength = strength_of(gains, limits, "twice the weight that they carry, with a payload")
            report.guessed.append(f"Motors on all joints, as strong as {strength}.")
            report.unknown.append(
                "Which joints are meant to have none, as that of a pole on a cart: give the others motors."
            )
        report.guessed.append("Servo gains from weights, reach and inertias (see ksim.robot.plan).")
    if not np.allclose(qpos, model.key_qpos[0] if model.nkey else model.qpos0):
        values = {name: float(qpos[model.joint(name).qposadr[0]]) for name in found.joints}
        numbers["pose"] = grouped(values, decimals=2)
    box, size = _reachable(model, found, qpos)
    robot = ArmRobot(**numbers, reach=box, coarse=max(round(size / 4, 2), 0.01))
    return Plan(found, report, robot, strength=strength)


def _plane_numbers(model: mujoco.MjModel, found: RobotDescription, report: Report) -> dict[str, Any]:
    """The numbers of a robot that moves in a plane."""
    assert found.tip is not None
    height = round(float(_tip_position(model, _at_start(model), found)[2]), 2)
    if height <= 0:
        raise ConfigError(
            f"The robot moves in a plane, but its base {found.tip[0]!r} starts {height:g} m above the ground. "
            "Raise it in the file."
        )
    report.guessed.append(f"The task: to run along the slide {found.plane[0]!r} at a commanded speed.")
    return {"plane": found.plane, "height": height, "forward": round(0.4 * math.sqrt(9.81 * height), 1)}


def _reachable(
    model: mujoco.MjModel, found: RobotDescription, qpos: np.ndarray, num_poses: int = 1000
) -> tuple[tuple[tuple[float, float], ...], float]:
    """Ranges of x, y and z in which an arm's tip is in most poses, and the diagonal of their box, all in m."""
    joints = found.driven or found.joints
    points = [_tip_position(model, data, found) for data in _random_poses(model, joints, qpos, num_poses)]
    lowest, highest = np.quantile(points, [0.15, 0.85], axis=0)
    ranges = tuple((round(float(a), 2), round(float(b), 2)) for a, b in zip(lowest, highest, strict=True))
    return ranges, float(np.linalg.norm(highest - lowest))


def _random_poses(
    model: mujoco.MjModel, joints: Sequence[str], qpos: np.ndarray, count: int
) -> Iterator[mujoco.MjData]:
    """The given pose, then poses with joints drawn within their ranges (unlimited hinges: a full turn, slides: 1 m)."""
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


def _below(model: mujoco.MjModel, found: RobotDescription) -> float:
    """A height for the floor, in m, that no part of a fixed robot reaches; 0 if the robot stays above 0."""
    geoms = [g for g in range(model.ngeom) if model.body_weldid[model.geom_bodyid[g]] != 0]
    heights = [
        float(lowest_point(model, data, g)[2])
        for data in _random_poses(model, found.joints, model.qpos0, 200)
        for g in geoms
    ]
    return min(0.0, round(min(heights, default=0.0) - 0.05, 2))


def _at_start(model: mujoco.MjModel) -> mujoco.MjData:
    """The model's data in the pose in which episodes start, after `mj_kinematics`."""
    return posed(model, model.key_qpos[0] if model.nkey else model.qpos0)


def _tip_position(model: mujoco.MjModel, data: mujoco.MjData, found: RobotDescription) -> np.ndarray:
    assert found.tip is not None
    return in_world(data, model.body(found.tip[0]).id, found.tip[1])


def _tip_heights(model: mujoco.MjModel, found: RobotDescription) -> tuple[float, float, bool]:
    """The lowest and highest height of the tip around the first undriven hinge, in m, and whether it starts upright."""
    data = _at_start(model)
    passive = [model.joint(name).id for name in found.joints if name not in found.driven]
    hinges = [j for j in passive if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_HINGE)]
    if not hinges:
        names = ", ".join(model.joint(j).name for j in passive)
        raise ConfigError(
            f"The robot is fixed to the world and nothing drives {names}, which turns nothing that could balance. "
            "Give it an actuator, or the robot a <freejoint/>."
        )
    middle_3, tip_3 = data.xanchor[hinges[0]], _tip_position(model, data, found)
    middle, radius = float(middle_3[2]), float(np.linalg.norm(tip_3 - middle_3))
    return round(middle - radius, 3), round(middle + radius, 3), bool(tip_3[2] > middle + 0.5 * radius)
