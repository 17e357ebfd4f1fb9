"""Runs an exported policy in plain MuJoCo: numpy and ONNX Runtime, without JAX and without ksim.

python examples/deploy.py runs/humanoid_walking_task/run_000/export/policy.onnx --command 0.8 0 0 --seconds 10

The metadata in the file hold everything needed. To run a policy on a real robot, copy this file and replace `Robot` by
your sensors and motors, or take the runner in C++ of deploy/cpp.
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import mujoco.viewer
import numpy as np
import onnxruntime

ROBOTS = Path(__file__).parent / "robots"
SMOOTHING, AROUND = "ActionSmoothing", "AroundMotion"
"""The action filters that belong to the controller; the other filters imitate a real robot."""
CHOICES = {name: getattr(mujoco, f"mjt{name.title()}") for name in ("integrator", "cone", "jacobian", "solver")}
"""The options of MuJoCo's model that are one of several."""
MAX_SIZE, MAX_SUBSTEPS, MAX_ITERATIONS = 100_000, 1000, 10_000
"""Upper limits: numbers in a command, physics steps per control step, iterations of any of MuJoCo's solvers."""
MAX_DELAY_MS = 1000.0
FALLEN_TILT = -0.5
"""Vertical component of gravity in the base's frame above which the robot has fallen: a tilt of 60 degrees."""


class Policy:
    """An exported policy, with its memory if it has one.

    Attributes:
        metadata: The metadata of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        properties = self._session.get_modelmeta().custom_metadata_map
        self.metadata = {name: json.loads(text) for name, text in properties.items()}
        check(self.metadata, {x.name: x.shape for x in self._session.get_inputs()})
        self.reset()

    def reset(self) -> None:
        """Resets the memory, for the start of an episode."""
        self._memory = {part["input"]: np.array([part["start"]], part["dtype"]) for part in self.metadata["memory"]}

    def __call__(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        """The action for an observation, raw vectors by the names of the file's inputs."""
        rows = {name: np.asarray(x, np.float32)[None] for name, x in obs.items()}
        action, *after = map(np.asarray, self._session.run(None, rows | self._memory))
        self._memory = {part["input"]: x for part, x in zip(self.metadata["memory"], after, strict=True)}
        return action[0]


def check(metadata: Mapping[str, Any], inputs: Mapping[str, Sequence[Any]]) -> None:
    """Checks sizes, times and names that would give wrong results silently, or run for ever.

    Args:
        metadata: The metadata of a file.
        inputs: The shapes of the file's inputs, by name.

    Raises:
        ValueError: They are not as ksim writes them. Other faults raise when they are used.
    """

    def demand(is_met: bool, rule: str) -> None:
        if not is_met:
            raise ValueError(rule)

    json.dumps(metadata, allow_nan=False)  # non-finite numbers are null
    demand(metadata["format"] == 2, f"format ({metadata['format']!r:.40}) must be 2")
    for group in metadata["observations"].values():
        size = inputs[group["input"]][1]
        demand(group["size"] == size, f"the size of {group['input']} ({group['size']!r:.40}) must be {size}")
        ends = [0, *(term["start"] + term["size"] for term in group.get("terms", []))]
        starts = [*(term["start"] for term in group.get("terms", [])), size]
        demand("terms" not in group or starts == ends, f"the terms of {group['input']} must fill it, one after another")
    for part in metadata["memory"]:
        demand(list(np.shape(part["start"])) == list(inputs[part["input"]][1:]), "memory must be as the file's inputs")
        demand(
            np.dtype(part["dtype"]).kind in "biuf", f"the dtype of memory ({part['dtype']!r:.40}) must be a number's"
        )
    if "robot" not in metadata:
        return
    control_s, physics_s = metadata["control_dt_s"], metadata["physics_dt_s"]
    demand(
        1e-6 < physics_s < 1 and 1 <= round(control_s / physics_s) <= MAX_SUBSTEPS,
        f"control_dt_s ({control_s!r:.40}) must be 1 to {MAX_SUBSTEPS} steps of physics_dt_s ({physics_s!r:.40})",
    )
    file = metadata["robot"]["file"]
    demand(
        file is None or Path(file).name == file, f"the robot's file ({file!r:.80}) must be a name without directories"
    )
    for name, value in metadata["model"]["option"].items():
        if name in CHOICES:
            CHOICES[name](value)
        is_count = "iterations" in name or "initpoints" in name
        demand(not is_count or 0 <= value <= MAX_ITERATIONS, f"{name} ({value!r:.40}) must be 0 to {MAX_ITERATIONS}")
    for name, command in metadata["commands"].items():
        is_size = type(command["size"]) is int and 0 < command["size"] <= MAX_SIZE
        demand(is_size, f"the size of command {name!r:.80} must be 1 to {MAX_SIZE}")
        if command["class"] == "MotionCommand":
            motions, num_frames = command["args"]["motions"], len(command["args"]["motions"]["qpos"])
            clips = list(zip(motions["names"], motions["first"], motions["last"], strict=True))
            are_within = bool(clips) and all(0 <= first < last < num_frames for _, first, last in clips)
            demand(are_within, f"the clips of command {name!r:.80} must lie within its {num_frames} frames")


def fill(array: np.ndarray, values: Any, name: str) -> None:
    """Sets all numbers of an array; unlike a plain assignment it spreads no single number over the array."""
    if np.shape(values) != array.shape:
        raise ValueError(f"{name} must have the shape {array.shape}, but has {np.shape(values)}")
    if not np.isfinite(np.asarray(values, float)).all():
        raise ValueError(f"{name} must have numbers that are finite")
    array[:] = values


@contextlib.contextmanager
def loading(mjcf: str | Path) -> Iterator[None]:
    """Reports a robot's file that MuJoCo refuses."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise SystemExit(f"{mjcf} cannot be loaded: {reason}. Mend it, or give another with --robot.") from error


def trained_model(mjcf: str | Path, metadata: Mapping[str, Any]) -> mujoco.MjModel:
    """The model of the training: the robot's file, with everything that training added to it or changed in it.

    Meshes and looks are the file's; all numbers of the simulation are those of the training.
    """
    wanted, actuators = metadata["model"], metadata["actuators"]
    names, structure = wanted["names"], wanted["structure"]
    with loading(mjcf):
        spec = mujoco.MjSpec.from_file(str(mjcf))
    for kind, parts in (("body", spec.bodies), ("joint", spec.joints)):
        theirs = names[kind]
        if len(parts) != len(theirs) or any(x.name not in ("", y) for x, y in zip(parts, theirs, strict=True)):
            raise SystemExit(_of_another_robot(mjcf, metadata))
        for part, name in zip(parts, theirs, strict=True):
            part.name = name  # training names those without one
    _match_actuators(spec, actuators, structure)
    if [actuator.name for actuator in spec.actuators] != actuators["names"]:
        raise SystemExit(_of_another_robot(mjcf, metadata))
    _match_geoms(spec, names["geom"], structure)
    _match_sites_and_sensors(spec, wanted)
    for key in list(spec.keys):
        spec.delete(key)  # the metadata have the state in which episodes start
    for name, value in wanted["option"].items():
        setattr(spec.option, name, value)
    try:
        model = spec.compile()
    except Exception:
        with loading(mjcf):  # whether the file alone fails, as for want of a mesh
            mujoco.MjSpec.from_file(str(mjcf)).compile()
        raise
    for name, values in structure.items():
        if not np.array_equal(np.ravel(getattr(model, name)), np.ravel(values)):
            raise SystemExit(
                f"{mjcf} cannot be made into the model of the training: {name} would be {getattr(model, name)}, but "
                f"must be {np.array(values)}. Save that model as a file (task.get_robot().to_file), and give it with "
                "--robot."
            )
    for name, values in wanted["fields"].items():
        if getattr(model, name).dtype.kind not in "fb":
            raise ValueError(f"{name} must be a field of real numbers or flags, none of addresses that MuJoCo follows")
        fill(getattr(model, name), values, name)
    # Where a part's frame is that of its body or its inertia, MuJoCo skips the offset between them, which may be new.
    for sameframe in (model.body_sameframe, model.geom_sameframe, model.site_sameframe):
        sameframe[:] = 0
    # It looks for contacts by boxes around geoms where the file has them.
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    return model


def _match_actuators(spec: mujoco.MjSpec, actuators: Mapping[str, Any], structure: Mapping[str, Any]) -> None:
    """Removes and adds actuators until they are those of the training, of the same kinds."""
    for actuator in list(spec.actuators):
        if actuator.name not in actuators["names"]:
            spec.delete(actuator)
    known = [actuator.name for actuator in spec.actuators]
    for name, joint in zip(actuators["names"], actuators["joints"], strict=True):
        if name not in known and joint is not None:
            spec.add_actuator(name=name, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    # Their kinds decide how many states and inputs the model is compiled with.
    kinds = {"dyntype": mujoco.mjtDyn, "gaintype": mujoco.mjtGain, "biastype": mujoco.mjtBias}
    for i, actuator in enumerate(spec.actuators):
        for name, kind in kinds.items():
            setattr(actuator, name, kind(structure[f"actuator_{name}"][i]))
        actuator.ctrlspec = structure["actuator_ctrlspec"][i]
        actuator.inheritrange = 0  # the metadata has the control range
        if actuator.dyntype == mujoco.mjtDyn.mjDYN_NONE:  # has no state whose range the file could give
            actuator.actlimited, actuator.actrange = mujoco.mjtLimited.mjLIMITED_FALSE, [0, 0]


def _match_geoms(spec: mujoco.MjSpec, names: Sequence[str], structure: Mapping[str, Any]) -> None:
    """Removes and adds geoms, body by body, until they are those of the training, with the same contact bits."""
    bits = ("contype", "conaffinity", "condim", "priority")
    kinds = [structure[f"geom_{name}"] for name in ("bodyid", "type", *bits)]
    rows = list(zip(names, *kinds, strict=True))
    for number, body in enumerate(spec.bodies):
        left = [(name, kind, values) for name, of, kind, *values in rows if of == number]
        for geom in list(body.geoms):
            if left and (geom.name, int(geom.type)) == left[0][:2]:
                for name, value in zip(bits, left.pop(0)[2], strict=True):
                    setattr(geom, name, value)
            else:
                spec.delete(geom)
        for name, kind, values in left:
            body.add_geom(
                name=name, type=mujoco.mjtGeom(kind), size=[1, 1, 1], mass=0, **dict(zip(bits, values, strict=True))
            )


def _match_sites_and_sensors(spec: mujoco.MjSpec, wanted: Mapping[str, Any]) -> None:
    """Adds the sites and sensors that the file lacks."""
    structure = wanted["structure"]
    kinds = zip(wanted["names"]["site"], structure["site_bodyid"], structure["site_type"], strict=True)
    known = {site.name for site in spec.sites}
    for name, body, kind in kinds:
        if name and name not in known:
            spec.bodies[body].add_site(name=name, type=mujoco.mjtGeom(kind), size=[1, 1, 1])
    known = {sensor.name for sensor in spec.sensors}
    for sensor in wanted["sensors"]:
        if sensor["name"] not in known:
            objects = {name: mujoco.mjtObj(sensor[name]) for name in ("objtype", "reftype")}
            spec.add_sensor(**sensor | objects | {"type": mujoco.mjtSensor(sensor["type"])})


@contextlib.contextmanager
def metadata_of(path: Path) -> Iterator[None]:
    """Reports whatever damaged, hostile or other metadata lead to, as one error."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        raise SystemExit(
            f"{path} cannot be run: it is no policy exported by ksim, or it is damaged "
            f"({type(error).__name__}: {reason}). Export it again with run_mode=export."
        ) from error


class Robot:
    """A simulated robot, controlled as in training.

    Attributes:
        model: MuJoCo's model, with the actuators that the policy was trained on.
        data: Its state.
        command: Commands by name, as vectors; of a motion the frame to reach next.
        motions: The clips of each motion that is commanded, by the command's name.
        last_action: The last action; initially zeros.
        clip: The index of the clip that is followed.
        delay_s: Time from an action to its effect, in s.
        drop: Probability that an action is lost, so that the motors keep the previous one.
        time_s: Seconds since the reset.
    """

    def __init__(self, mjcf: str | Path, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        actuators, self.model = metadata["actuators"], trained_model(mjcf, metadata)
        is_joint = np.isin(self.model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))
        self._joints = np.flatnonzero(is_joint)
        self._motor_curve, self._force_range = actuators["motor_curve"], self.model.actuator_forcerange.copy()
        if metadata["action_to_ctrl"] is None or "class" in (self._motor_curve or {}):
            raise SystemExit(f"Actuators {actuators['class']} are custom: implement them in Robot.step.")
        self._filters = [x for x in metadata["action_filters"].values() if x["class"] in (SMOOTHING, AROUND)]
        is_around = any(x["class"] == AROUND for x in self._filters)
        self._driven, _ = self.joints(actuators["joints"]) if is_around else ([], None)
        limit = lambda values, default: np.array([default if x is None else x for x in values])
        to_ctrl = metadata["action_to_ctrl"]
        self._offset, self._scale = np.array(to_ctrl["offset"]), np.array(to_ctrl["scale"])
        self._lower, self._upper = limit(to_ctrl["lower"], -np.inf), limit(to_ctrl["upper"], np.inf)
        self.default_qpos = np.array(metadata["robot"]["default_qpos"])
        self.command = {name: default_command(command) for name, command in metadata["commands"].items()}
        commands = metadata["commands"].items()
        self.motions = {
            name: {part: np.array(values) for part, values in term["args"]["motions"].items()}
            for name, term in commands
            if term["class"] == "MotionCommand"
        }
        self.clip, self.delay_s, self.drop = 0, 0.0, 0.0
        self.data = mujoco.MjData(self.model)
        self.reset()

    def reset(self, qpos: np.ndarray | None = None, qvel: np.ndarray | None = None) -> None:
        """Resets the robot to the start of episodes or of its clip, optionally with other positions and velocities."""
        for name, motions in self.motions.items():
            first = motions["first"][self.clip]
            self.command[name] = np.array([first + 1.0])
            if qpos is None:
                qpos, qvel = motions["qpos"][first], motions["qvel"][first]
        mujoco.mj_resetData(self.model, self.data)
        for name in ("qvel", "act", "mocap_pos", "mocap_quat"):
            if name in self._metadata["robot"]["start"]:
                fill(getattr(self.data, name), self._metadata["robot"]["start"][name], name)
        fill(self.data.qpos, self.default_qpos if qpos is None else qpos, "qpos")
        if qvel is not None:
            self.data.qvel[:] = qvel
        self.last_action = np.zeros(self._metadata["action_size"])
        self._smoothed = np.zeros((len(self._filters), len(self.last_action)))
        start = self.last_action
        for term in (x for x in self._filters if x["class"] == AROUND):
            start = self._around(start, term["args"]["command"])
        fill(self.data.ctrl, self.controls(start), "action_to_ctrl")
        self.model.actuator_forcerange[:] = self._force_range
        self._sent: list[tuple[float, np.ndarray]] = []
        self._rng = np.random.default_rng(0)
        mujoco.mj_forward(self.model, self.data)  # initial sensor readings
        self._start = self.data.qpos.copy()
        self._deepest = self._half_height() if self.has_base else 0.0

    def controls(self, action: np.ndarray) -> np.ndarray:
        """The controls for an action after the filters: for servos, their targets."""
        moved = self._scale * action if self._scale.ndim == 1 else self._scale @ action
        return np.clip(self._offset + moved, self._lower, self._upper)

    def filtered(self, action: np.ndarray) -> np.ndarray:
        """An action after the filters of the training, in their order."""
        for i, term in enumerate(self._filters):
            if term["class"] == AROUND:
                action = self._around(action, term["args"]["command"])
            else:
                share = 1 - np.exp(-self._metadata["control_dt_s"] / term["args"]["time_constant_s"])
                self._smoothed[i] += share * (action - self._smoothed[i])
                action = self._smoothed[i]
        return action

    def _around(self, action: np.ndarray, command: str) -> np.ndarray:
        """The action shifted so that it offsets targets from the motion's commanded frame, not the default pose."""
        frame = self.motions[command]["qpos"][int(self.command[command][0]), self._driven]
        return action + (frame - self.default_qpos[self._driven]) / self._scale

    def step(self, action: np.ndarray) -> None:
        """One control step.

        Afterwards sensors have their values from before the last physics step, as in training; positions and
        velocities are current.
        """
        acting = self.filtered(action)
        if self._rng.random() >= self.drop:
            self._sent.append((self.time_s + self.delay_s, self.controls(acting)))
        for _ in range(round(self._metadata["control_dt_s"] / self._metadata["physics_dt_s"])):
            while self._sent and self._sent[0][0] < self.time_s + 0.5 * self._metadata["physics_dt_s"]:
                self.data.ctrl[:] = self._sent.pop(0)[1]
            self._limit_forces()
            mujoco.mj_step(self.model, self.data)
        self.last_action = action
        for name in self.motions:
            self.command[name] = np.array([float(coming_frames(self, name, [1])[0])])

    def _limit_forces(self) -> None:
        """Lowers the torque limits of DC motors to those at their velocities."""
        if self._motor_curve is None:
            return
        stall_ratio, (low, high) = self._motor_curve["stall_ratio"], self._force_range.T
        speed = self._motor_velocity() / np.array(self._motor_curve["no_load_speed"])
        self.model.actuator_forcerange[:, 0] = np.maximum(low, np.minimum(stall_ratio * low * (1 + speed), 0))
        self.model.actuator_forcerange[:, 1] = np.minimum(high, np.maximum(stall_ratio * high * (1 - speed), 0))

    def _motor_velocity(self) -> np.ndarray:
        joints = self.model.actuator_trnid[:, 0]
        return self.model.actuator_gear[:, 0] * self.data.qvel[self.model.jnt_dofadr[joints]]

    @property
    def time_s(self) -> float:
        return float(self.data.time)

    def joints(self, names: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray]:
        """Indices of joints into qpos and qvel; by default all hinges and slides."""
        picked = self._joints if names is None else [self.model.joint(name).id for name in names]
        return self.model.jnt_qposadr[picked], self.model.jnt_dofadr[picked]

    @property
    def has_base(self) -> bool:
        """Whether the robot moves through the world."""
        return self._metadata["robot"]["base_body"] is not None

    def base(self) -> tuple[int, int]:
        """Indices of the base's free joint into qpos and qvel."""
        joint = self.model.body_jntadr[self._metadata["robot"]["base_body"]]
        return int(self.model.jnt_qposadr[joint]), int(self.model.jnt_dofadr[joint])

    @property
    def has_fallen(self) -> bool:
        """Whether the simulation blew up, the base is tilted by more than 60 degrees, or it has sunk.

        Sunk means lower than at the start, or than in the followed motion, by more than half the initial height of the
        robot's centre of mass above the ground.
        """
        if not np.isfinite(self.data.qpos).all():
            return True
        if not self.has_base:
            return False
        place, _ = self.base()
        frames = [motions["qpos"][int(self.command[name][0])] for name, motions in self.motions.items()]
        asked = min(qpos[place + 2] for qpos in (frames or [self._start]))
        return projected_gravity(self)[2] > FALLEN_TILT or asked - self.data.qpos[place + 2] > self._deepest

    def _half_height(self) -> float:
        """Half the height of the centre of mass above the ground, plus the height by which terrain may drop."""
        model, planes = self.model, self.model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)
        floors = model.geom_pos[planes & (model.geom_bodyid == 0), 2]
        height = self.data.subtree_com[self._metadata["robot"]["base_body"], 2] - (floors[0] if len(floors) else 0)
        return max(0.5 * height, 0.05) + model.hfield_size[:, 2].sum()


def _of_another_robot(mjcf: str | Path, metadata: Mapping[str, Any]) -> str:
    return (
        f"The joints and actuators of {mjcf} must be those of the policy, in the same order: "
        f"{', '.join(metadata['joints']['names'])}. Give the MJCF file of its training with --robot."
    )


def in_base_frame(robot: Robot, vector: np.ndarray) -> np.ndarray:
    """A vector of the world in the base's frame."""
    start, _ = robot.base()
    back, turned = np.zeros(4), np.zeros(3)
    mujoco.mju_negQuat(back, robot.data.qpos[start + 3 : start + 7])
    mujoco.mju_rotVecQuat(turned, vector, back)
    return turned


def projected_gravity(robot: Robot) -> np.ndarray:
    """The direction of gravity in the base's frame."""
    return in_base_frame(robot, np.array([0.0, 0.0, -1.0]))


def base_linear_velocity(robot: Robot) -> np.ndarray:
    """The base's linear velocity in its own frame, in m/s."""
    _, start = robot.base()
    return in_base_frame(robot, robot.data.qvel[start : start + 3])


def velocity_over_ground(robot: Robot) -> np.ndarray:
    """The base's forward and leftward velocity, as velocity commands have them: level, along its heading, in m/s."""
    place, start = robot.base()
    w, x, y, z = robot.data.qpos[place + 3 : place + 7]
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    forward, leftward = robot.data.qvel[start : start + 2]
    return np.array([
        np.cos(yaw) * forward + np.sin(yaw) * leftward,
        np.cos(yaw) * leftward - np.sin(yaw) * forward,
    ])  # fmt: skip


def base_angular_velocity(robot: Robot) -> np.ndarray:
    """The base's angular velocity in its own frame, in rad/s."""
    _, start = robot.base()
    return robot.data.qvel[start + 3 : start + 6]


def imu_reading(robot: Robot, site: str, kind: mujoco.mjtSensor) -> np.ndarray:
    """The reading of an IMU's sensor at a site, whatever it is called."""
    model = robot.model
    is_it = (model.sensor_type == int(kind)) & (model.sensor_objid == model.site(site).id)
    start = model.sensor_adr[np.flatnonzero(is_it)[0]]
    return robot.data.sensordata[start : start + 3]


def sensor_reading(robot: Robot, sensor: str) -> np.ndarray:
    """The reading of a sensor; of a foot of several bodies the sum of its sensors."""
    is_known = lambda name: mujoco.mj_name2id(robot.model, mujoco.mjtObj.mjOBJ_SENSOR, name) >= 0
    parts = itertools.takewhile(is_known, (f"ksim_{sensor}_part_{k}" for k in itertools.count(1)))
    return np.sum([robot.data.sensor(name).data for name in (sensor, *parts)], axis=0)


def joint_position(robot: Robot, joints: Sequence[str] | None) -> np.ndarray:
    """Positions of joints relative to the default pose, in rad."""
    places, _ = robot.joints(joints)
    return robot.data.qpos[places] - robot.default_qpos[places]


def joint_velocity(robot: Robot, joints: Sequence[str] | None) -> np.ndarray:
    """Velocities of joints, in rad/s."""
    return robot.data.qvel[robot.joints(joints)[1]]


def phase_clock(robot: Robot, period_s: float, side_offset: float = 0.5) -> np.ndarray:  # noqa: ARG001
    """Sine and cosine of a clock that turns once per period; how far the sides are apart matters in training alone."""
    angle = 2 * np.pi * robot.time_s / period_s
    return np.array([np.sin(angle), np.cos(angle)])


def coming_frames(robot: Robot, command: str, steps: Sequence[int]) -> list[int]:
    """The frames of a motion command, `steps` control steps ahead but no later than the last of its clip."""
    frame, last = int(robot.command[command][0]), robot.motions[command]["last"][robot.clip]
    return [min(frame + step, last) for step in steps]


def motion_phase(robot: Robot, command: str) -> np.ndarray:
    """The elapsed share of the clip, from 0 to 1."""
    first, last = (robot.motions[command][name][robot.clip] for name in ("first", "last"))
    return (robot.command[command] - first) / (last - first)


def motion_joints(robot: Robot, command: str, steps: Sequence[int], joints: Sequence[str] | None) -> np.ndarray:
    """Positions of joints in coming frames, relative to the default pose, in rad."""
    places, _ = robot.joints(joints)
    return robot.motions[command]["qpos"][coming_frames(robot, command, steps)][:, places] - robot.default_qpos[places]


def motion_joint_velocities(
    robot: Robot, command: str, steps: Sequence[int], joints: Sequence[str] | None
) -> np.ndarray:
    """Velocities of joints in coming frames, in rad/s."""
    _, places = robot.joints(joints)
    return robot.motions[command]["qvel"][coming_frames(robot, command, steps)][:, places]


def motion_base_position(robot: Robot, command: str, steps: Sequence[int]) -> np.ndarray:
    """Positions of the base in coming frames, relative to the robot's, in its base frame, in m."""
    start, _ = robot.base()
    qpos = robot.motions[command]["qpos"][coming_frames(robot, command, steps)]
    return np.array([in_base_frame(robot, row[:3] - robot.data.qpos[start : start + 3]) for row in qpos[:, start:]])


def motion_base_orientation(robot: Robot, command: str, steps: Sequence[int]) -> np.ndarray:
    """Directions of the base's x and y axes in coming frames, in the robot's base frame."""
    start, _ = robot.base()
    seen, matrix = [], np.zeros(9)
    for frame in coming_frames(robot, command, steps):
        mujoco.mju_quat2Mat(matrix, robot.motions[command]["qpos"][frame, start + 3 : start + 7])
        seen.append(np.concatenate([in_base_frame(robot, axis) for axis in matrix.reshape(3, 3).T[:2]]))
    return np.array(seen)


OBSERVATIONS: dict[str, Callable[..., np.ndarray]] = {
    "ProjectedGravity": projected_gravity,
    "BaseAngularVelocity": base_angular_velocity,
    "BaseLinearVelocity": base_linear_velocity,
    "SensorReading": sensor_reading,
    "ImuGyro": lambda robot, site: imu_reading(robot, site, mujoco.mjtSensor.mjSENS_GYRO),
    "ImuAccelerometer": lambda robot, site: imu_reading(robot, site, mujoco.mjtSensor.mjSENS_ACCELEROMETER),
    "JointPosition": joint_position,
    "JointVelocity": joint_velocity,
    "PhaseClock": phase_clock,
    "CommandValue": lambda robot, command: robot.command[command],
    "LastAction": lambda robot: robot.last_action,
    "MotionPhase": motion_phase,
    "MotionJoints": motion_joints,
    "MotionJointVelocities": motion_joint_velocities,
    "MotionBasePosition": motion_base_position,
    "MotionBaseOrientation": motion_base_orientation,
}
"""The function for each class of observation: `(robot, **arguments) -> array`."""
OWN_OBSERVATIONS: dict[str, Callable[..., np.ndarray]] = {}
"""Enter the functions for your own classes here, likewise. Their errors show where they happen."""


def observe(robot: Robot, metadata: dict[str, Any]) -> dict[str, np.ndarray]:
    """The observations as in training, by the names of the file's inputs."""
    obs, functions = {}, OBSERVATIONS | OWN_OBSERVATIONS
    for group in metadata["observations"].values():
        obs[group["input"]] = vector = np.full(group["size"], np.nan)
        for term in group["terms"]:
            if term["class"] not in functions:
                raise SystemExit(
                    f"Observation {term['name']!r} is a {term['class']}, which examples/deploy.py does not know. Write "
                    f"a function of the robot and of {term['args']} that returns its {term['size']} numbers, and enter "
                    f"it in OWN_OBSERVATIONS as {term['class']!r}. Known: {', '.join(functions)}."
                )
            value = functions[term["class"]](robot, **term["args"])
            vector[term["start"] : term["start"] + term["size"]] = np.ravel(value)
    return obs


def default_command(command: dict[str, Any]) -> np.ndarray:
    """The middle of the ranges of a command; zeros if it has no ranges."""
    middles = [(low + high) / 2 for low, high in command["ranges"].values()]
    return np.array(middles if len(middles) == command["size"] else [0.0] * command["size"])


def run(policy: Policy, robot: Robot, *, seconds: float, viewer: Any = None) -> tuple[float, float | None]:
    """Controls a robot by a policy until time is up, it has fallen or the viewer is closed.

    Returns:
        Seconds until it fell or the run ended, and the mean error of the base's velocity over the ground, in m/s; None
        without a velocity command.
    """
    policy.reset()
    robot.reset()
    num_steps = round(seconds / policy.metadata["control_dt_s"])
    commands = policy.metadata["commands"].items()
    asked = next((name for name, term in commands if term["class"] == "VelocityCommand"), None)
    errors = []
    for _ in range(num_steps):
        start_s = time.perf_counter()
        robot.step(policy(observe(robot, policy.metadata)))
        if robot.has_fallen:
            break
        if asked is not None:
            errors.append(np.linalg.norm(velocity_over_ground(robot) - robot.command[asked][:2]))
        if viewer is not None:
            if not viewer.is_running():
                break
            viewer.sync()
            time.sleep(max(0.0, policy.metadata["control_dt_s"] - (time.perf_counter() - start_s)))
    return robot.time_s, float(np.mean(errors)) if errors else None


def tell(robot: Robot, stood_s: float, velocity_error: float | None) -> None:
    """Prints how long the robot stood, where it went, and how well it followed its velocity command."""
    print(f"Stood for {stood_s:.2f} s{', then fell' if robot.has_fallen else ''}.")
    if robot.has_base:
        start, _ = robot.base()
        forward, sideways = (robot.data.qpos - robot.default_qpos)[start : start + 2]
        print(f"Moved {forward:+.2f} m forward and {sideways:+.2f} m to the left.")
    if velocity_error is not None:
        print(f"Velocity error: {velocity_error:.3f} m/s.")


def ask(robot: Robot, options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Sets the command or the motion that the user asks for."""
    clips = [str(name) for motions in robot.motions.values() for name in motions["names"]]
    if options.clip is not None and options.clip not in clips:
        parser.error(f"the policy tracks no motion {options.clip!r}; known: {', '.join(clips) or 'none'}")
    robot.clip = clips.index(options.clip) if options.clip else 0
    if options.command is not None and robot.motions:
        parser.error("the policy follows a motion; choose it by --clip and leave --command out")
    if options.command is not None and not robot.command:
        parser.error("the policy takes no command; leave --command out")
    for name, value in list(robot.command.items())[:1]:
        if options.command is not None and len(options.command) != len(value):
            parser.error(f"command {name!r} has {len(value)} numbers, but --command has {len(options.command)}")
        robot.command[name] = value if options.command is None else np.array(options.command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description="Runs an exported policy in plain MuJoCo.")
    parser.add_argument("policy", type=Path, help="policy.onnx, written by run_mode=export, or its directory")
    parser.add_argument("--robot", type=Path, help="MJCF file of the robot; default: robot/robot.xml beside the policy")
    parser.add_argument(
        "--command",
        type=float,
        nargs="+",
        help="first command of the policy, such as forward, leftward and turning velocity",
    )
    parser.add_argument("--clip", help="the motion to follow, of a policy that tracks motions; default: its first")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration in seconds")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="time from an action to its effect, in ms")
    parser.add_argument("--drop", type=float, default=0.0, help="share of the actions that are lost, from 0 to 1")
    parser.add_argument("--viewer", action="store_true", help="show it in MuJoCo's window, in real time")
    options = parser.parse_args(arguments)
    if not 0 < options.seconds < 1e6 or not np.isfinite(options.command or 0).all():
        parser.error("--seconds must be above 0 and below 1e6, and the numbers of --command must be finite")
    if not 0 <= options.delay_ms <= MAX_DELAY_MS or not 0 <= options.drop <= 1:
        parser.error(f"--delay-ms must be from 0 to {MAX_DELAY_MS:g}, and --drop from 0 to 1")
    if options.policy.is_dir():
        options.policy = options.policy / "policy.onnx"
    if not options.policy.is_file():
        parser.error(f"there is no file {options.policy}; write it with run_mode=export checkpoint=<run directory>")
    with metadata_of(options.policy):
        policy = Policy(options.policy)
        metadata = policy.metadata
        if "robot" not in metadata:
            parser.error(f"{options.policy} was trained without ksim's terms, so it holds no robot")
        mjcf = options.robot or options.policy.parent / "robot" / "robot.xml"
        if options.robot is None and not mjcf.is_file():  # the policy alone was copied
            mjcf = ROBOTS / (metadata["robot"]["file"] or "")
        if not mjcf.is_file():
            parser.error(f"there is no robot file {mjcf}; give the MJCF file of the training with --robot")
        robot = Robot(mjcf, metadata)
    ask(robot, options, parser)
    # With the user's own observations, an error may come from them, so show its traceback.
    with contextlib.nullcontext() if OWN_OBSERVATIONS else metadata_of(options.policy):
        for _ in range(2):  # the second step uses what the first one returned
            robot.step(policy(observe(robot, metadata)))
    left_out = [name for name, term in metadata["action_filters"].items() if term["class"] not in (SMOOTHING, AROUND)]
    left_out += ["the terrain (its floor is flat)"] if metadata["model"]["on_terrain"] else []
    if left_out:
        print(f"Not simulated, unlike in training: {', '.join(left_out)}.", file=sys.stderr)
    viewer = mujoco.viewer.launch_passive(robot.model, robot.data) if options.viewer else None
    asked = "; ".join(f"{name} {np.round(value, 3).tolist()}" for name, value in robot.command.items())
    print(f"Command: {asked or 'none'}")
    if options.delay_ms or options.drop:  # beside the run without, which nobody watches
        print("Undisturbed:")
        tell(robot, *run(policy, robot, seconds=options.seconds))
        print(f"With a delay of {options.delay_ms:g} ms and {options.drop:.1%} of the actions lost:")
        robot.delay_s, robot.drop = options.delay_ms / 1000, options.drop
    figures = run(policy, robot, seconds=options.seconds, viewer=viewer)
    if viewer is not None:
        viewer.close()
    tell(robot, *figures)


if __name__ == "__main__":
    main()
