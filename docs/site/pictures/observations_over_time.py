"""Pictures of observations that depend on time: over a walk, a simulated swing, or a signal."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import mujoco
import numpy as np

from docs.site.pictures.panels import Draw, timeline
from docs.site.pictures.rewards_over_time import moving
from docs.site.pictures.robot import ACTUATORS, DT, TOUCH, context, model, of_data
from docs.site.pictures.snapshot import Snapshot, values_over
from docs.site.pictures.walk import contacts, walk
from ksim.mdp import observations
from ksim.mdp.observations import AbstractObservation

KNEE, XYZ = ("left_knee",), ("x", "y", "z")
_stride = functools.partial(walk, 2.4, 0.8, 1.6)


@functools.cache
def swing() -> tuple[Snapshot, ...]:
    """A simulation of the robot, hung up by its trunk, whose left knee is sent to bend by 0.8 rad and back."""
    physics_model = model()
    mj_model = physics_model.mj_model
    data = mujoco.MjData(mj_model)
    mujoco.mj_resetDataKeyframe(mj_model, data, 0)
    data.qpos[2] = 0.8
    hung = data.qpos[:7].copy()
    knee = physics_model.names.actuator_joints().index(KNEE[0])
    data.ctrl = np.asarray(ACTUATORS(jnp.zeros(mj_model.nu), physics_model))
    frames = []
    for step in range(61):
        action = np.zeros(mj_model.nu, np.float32)
        action[knee] = 1.6 if 10 <= step < 35 else 0.0
        control = np.asarray(ACTUATORS(jnp.asarray(action), physics_model))
        seen = {"action": action, "control": control, "episode_step": np.int32(step)}
        frames.append(of_data(physics_model, _copy(mj_model, data), **seen))
        data.ctrl = control
        for _ in range(physics_model.decimation):
            mujoco.mj_step(mj_model, data)
            data.qpos[:7], data.qvel[:6] = hung, 0.0
    return tuple(frames)


def _copy(mj_model: mujoco.MjModel, data: mujoco.MjData) -> mujoco.MjData:
    copy = mujoco.MjData(mj_model)
    copy.qpos, copy.qvel, copy.ctrl, copy.time = data.qpos, data.qvel, data.ctrl, data.time
    return copy


def _target(frames: Any) -> Any:
    """The servo's target beside the knee's position, in rad."""
    knee = model().names.actuator_joints().index(KNEE[0])
    place = model().names.joint_qpos(KNEE)[0]
    return [[seen.control[knee], seen.physics.qpos[place]] for seen in frames]


_SWING: dict[str, Any] = {"given": _target, "given_label": "left knee,\nrad", "given_labels": ("target", "position")}


def _knee(term: Any, y_label: str) -> Draw:
    of_knee = model().names.actuator_joints().index(KNEE[0])
    read = lambda value, _: value[of_knee] if value.size > 1 else value
    return timeline(term, swing, y_label=y_label, read=read, **_SWING)


@functools.cache
def _actions() -> tuple[Snapshot, ...]:
    action_t = np.sin(np.arange(26) / 3).astype(np.float32).round(2) * (np.arange(26) >= 3)
    still = context()
    vector = lambda t: np.eye(model().mj_model.nu, dtype=np.float32)[0] * (action_t[t] if t >= 0 else 0.0)
    return tuple(
        dataclasses.replace(still, action=vector(t), previous_action=vector(t - 1), episode_step=np.int32(t))
        for t in range(26)
    )


def _first(value: Any, _: Snapshot) -> Any:
    return value[..., 0]


_ACTIONS: dict[str, Any] = {
    "given": lambda frames: [seen.action[0] for seen in frames],
    "given_label": "action",
    "style": "steps-post",
    "y_label": "observation",
}


class Signal(AbstractObservation):
    """A signal made by hand: a step up, a ramp down."""

    noise: Any = None

    def __call__(self, context):
        t = context.episode_step
        return jnp.where(t < 8, 0.0, jnp.where(t < 22, 1.0, jnp.maximum(1 - (t - 22) / 12, 0.0)))[None]


@functools.cache
def _still() -> tuple[Snapshot, ...]:
    first = context()
    return tuple(dataclasses.replace(first, episode_step=np.int32(t)) for t in range(46))


def _wrapped(term: Any, labels: Any = (), read: Any = lambda value, _: value) -> Draw:
    signal = lambda frames: values_over(Signal(), frames)
    return timeline(
        term,
        _still,
        given=signal,
        given_label="wrapped\nobservation",
        y_label="observation",
        labels=labels,
        read=read,
        style="steps-post",
    )


@functools.cache
def _gaits() -> tuple[Snapshot, ...]:
    """Two gaits that were commanded one after the other: frequency, duty, offset of the second foot."""
    first = context()
    gait = lambda t: np.array([1.0, 0.6, 0.5] if t < 75 else [2.0, 0.6, 0.5], np.float32)
    return tuple(dataclasses.replace(first, commands={"gait": gait(t)}, episode_step=np.int32(t)) for t in range(126))


@functools.cache
def _commanded() -> tuple[Snapshot, ...]:
    first = context()
    value = lambda t: np.array([0.8, 0.0, 0.3] if t < 40 else [0.2, -0.3, -0.5], np.float32)
    return tuple(
        dataclasses.replace(first, commands={"velocity": value(t)}, episode_step=np.int32(t)) for t in range(81)
    )


@functools.cache
def _turning() -> tuple[Snapshot, ...]:
    """A base that is held, and tilts to and fro."""
    frequency = 2 * np.pi  # rad/s
    frames = []
    for step in range(76):
        sine, cosine = np.sin(frequency * step * DT), np.cos(frequency * step * DT)
        accelerations = np.zeros(model().mj_model.nv)
        accelerations[4] = -0.5 * frequency**2 * sine
        frames.append(
            context(
                pitch=0.5 * sine,
                ang_vel=(0, 0.5 * frequency * cosine, 0),
                accelerations=accelerations,
                height=0.6,
                episode_step=np.int32(step),
            )
        )
    return tuple(frames)


@functools.cache
def _turning_and_speeding(kind: str) -> tuple[Snapshot, ...]:
    """As `moving`, of a robot that has turned left by 0.7 rad."""
    half = 0.35
    turned = np.array([np.cos(half), 0, 0, np.sin(half)], np.float32)
    frames = []
    for seen in moving(kind):
        qpos = seen.physics.qpos.copy()
        qpos[3:7] = turned
        frames.append(seen.with_physics(qpos=qpos))
    return tuple(frames)


def _velocity(place: int, label: str) -> dict[str, Any]:
    return {"given": lambda frames: [seen.physics.qvel[place] for seen in frames], "given_label": label, "labels": XYZ}


_ALONG_X = _velocity(0, "velocity along\nworld x, m/s")
_YAW = _velocity(5, "yaw rate,\nrad/s")
_TILT: dict[str, Any] = {
    "given": lambda frames: [2 * np.arctan2(seen.physics.qpos[5], seen.physics.qpos[3]) for seen in frames],
    "given_label": "pitch, rad",
    "labels": XYZ,
}

PICTURES: dict[type, Draw] = {
    observations.BaseLinearAcceleration: timeline(
        observations.BaseLinearAcceleration(),
        lambda: _turning_and_speeding("lin_vel"),
        y_label="in the base's\nframe, m/s²",
        **_ALONG_X,
    ),
    observations.BaseLinearAccelerationWorld: timeline(
        observations.BaseLinearAccelerationWorld(),
        lambda: _turning_and_speeding("lin_vel"),
        y_label="in the world\nframe, m/s²",
        **_ALONG_X,
    ),
    observations.BaseAngularAcceleration: timeline(
        observations.BaseAngularAcceleration(),
        lambda: _turning_and_speeding("ang_vel"),
        y_label="in the base's\nframe, rad/s²",
        **_YAW,
    ),
    observations.BaseAngularAccelerationWorld: timeline(
        observations.BaseAngularAccelerationWorld(),
        lambda: _turning_and_speeding("ang_vel"),
        y_label="in the world\nframe, rad/s²",
        **_YAW,
    ),
    observations.JointAcceleration: _knee(observations.JointAcceleration(KNEE), "rad/s²"),
    observations.JointVelocity: _knee(observations.JointVelocity(KNEE), "rad/s"),
    observations.JointTorque: _knee(observations.JointTorque(KNEE), "N m"),
    observations.ActuatorForce: _knee(observations.ActuatorForce(), "N m"),
    observations.ActuatorControl: _knee(observations.ActuatorControl(), "rad"),
    observations.CenterOfMassVelocity: timeline(
        observations.CenterOfMassVelocity(),
        swing,
        y_label="of the left\nshin",
        read=lambda value, _: value[2, 1::2],
        labels=("turn about y, rad/s", "along x, m/s", "along z, m/s"),
        **_SWING,
    ),
    observations.ImuGyro: timeline(observations.ImuGyro("imu"), _turning, y_label="rad/s", **_TILT),
    observations.ImuAccelerometer: timeline(
        observations.ImuAccelerometer("imu"),
        _turning,
        y_label="m/s²",
        **(_TILT | {"labels": XYZ}),
    ),
    observations.SensorReading: timeline(
        observations.SensorReading("left_touch"), _stride, y_label="left_touch, N", feet=contacts, style="steps-post"
    ),
    observations.FootForce: timeline(
        observations.FootForce(TOUCH), _stride, y_label="N", labels=("left", "right"), feet=contacts, style="steps-post"
    ),
    observations.FootContact: timeline(
        observations.FootContact(TOUCH),
        _stride,
        y_label="observation",
        labels=("left", "right"),
        feet=contacts,
        style="steps-post",
    ),
    observations.FootAirTime: timeline(
        observations.FootAirTime(TOUCH), _stride, y_label="s", labels=("left", "right"), feet=contacts
    ),
    observations.CommandValue: timeline(
        observations.CommandValue("velocity"),
        _commanded,
        y_label="observation",
        labels=("forward, m/s", "leftward, m/s", "yaw rate, rad/s"),
        style="steps-post",
    ),
    observations.LastAction: timeline(observations.LastAction(), _actions, read=_first, **_ACTIONS),
    observations.PreviousAction: timeline(observations.PreviousAction(), _actions, read=_first, **_ACTIONS),
    observations.ActionHistory: timeline(
        observations.ActionHistory(steps=3),
        _actions,
        read=_first,
        labels=("newest", "one before", "two before"),
        **_ACTIONS,
    ),
    observations.TimeLeft: timeline(
        observations.TimeLeft(seconds=20.0),
        lambda: tuple(dataclasses.replace(context(), episode_step=np.int32(t)) for t in range(0, 1001, 50)),
        y_label="s",
    ),
    observations.PhaseClock: timeline(
        observations.PhaseClock(period_s=0.8),
        functools.partial(walk, 2.4),
        y_label="observation",
        labels=("sine", "cosine"),
        feet=contacts,
    ),
    observations.GaitClock: timeline(
        observations.GaitClock("gait"),
        _gaits,
        y_label="observation",
        labels=("sine, foot 1", "sine, foot 2", "cosine, foot 1", "cosine, foot 2"),
        given=lambda frames: [seen.commands["gait"][0] for seen in frames],
        given_label="frequency,\nHz",
    ),
    observations.Delayed: _wrapped(observations.Delayed(Signal(), steps=(4, 4))),
    observations.Lagged: _wrapped(
        {f"time constant {s} s": observations.Lagged(Signal(), time_constant_s=(s, s)) for s in (0.02, 0.1)}
    ),
    observations.History: _wrapped(observations.History(Signal(), steps=3), ("newest", "one before", "two before")),
    observations.Misaligned: timeline(
        observations.Misaligned(observations.ProjectedGravity(), max_angle=0.5),
        _turning,
        y_label="misaligned",
        labels=XYZ,
        given_labels=("x", "y", "z"),
        given_label="gravity,\naligned",
        given=lambda frames: values_over(observations.ProjectedGravity(), frames),
    ),
}
