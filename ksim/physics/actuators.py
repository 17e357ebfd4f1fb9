"""Actuators: the mapping from the policy's actions to controls."""

import dataclasses
import fnmatch
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.checks import CheckedModule, check_field
from ksim.errors import ConfigError, near_misses
from ksim.physics.actuator_kinds import joints_to_drive, needed_torque_range, position_inputs, torque_range
from ksim.physics.engine import MotorCurve
from ksim.physics.mjcf import label
from ksim.physics.model import PhysicsModel

PerJoint = float | Mapping[str, float]
"""One number for all joints, or numbers by pattern of the joint's name (`"*_knee"`). The first matching pattern
applies."""


class AbstractActuators(CheckedModule):
    """The actuators of the model, and the mapping from actions to their controls."""

    @abstractmethod
    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        """Replaces or adjusts the actuators of the model."""

    @abstractmethod
    def __call__(self, action: Float[Array, " a"], model: PhysicsModel) -> Float[Array, " u"]:
        """The controls for an action, one component per actuator."""

    def action_size(self, model: PhysicsModel) -> int:
        """Length of the action vector: by default, one component per control."""
        return model.mj_model.nu

    def motor_curve(self, model: PhysicsModel) -> MotorCurve | None:
        """The actuators' force ranges as a function of velocity, evaluated in every substep; None (default): fixed."""
        return None


class ModelActuators(AbstractActuators):
    """The actuators of the model, unchanged, on joints, tendons, sites or bodies.

    An action moves the target of a position servo on a hinge or slide joint away from the default pose, and sets any
    other control between the middle (0) and the ends (-1 and 1) of its range: a motor's force, a muscle's excitation,
    a velocity servo's target, the target of a servo that drives a tendon.

    action_scale: for servos, rad of target per unit of action. offset: for servos, rad of the target from the default
    pose at action 0, for example to carry the robot's weight.
    """

    action_scale: PerJoint = 0.25
    offset: PerJoint = 0.0

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        """Leaves the model unchanged."""

    def __call__(self, action: Float[Array, " a"], model: PhysicsModel) -> Float[Array, " u"]:
        mj_model = model.mj_model
        limited = mj_model.actuator_ctrllimited.astype(bool)
        low, high = mj_model.actuator_ctrlrange.T
        rest, per_unit = (low + high) / 2, (high - low) / 2
        servos = {
            u: (int(mj_model.actuator_outadr[i]), joint)
            for u, i in position_inputs(mj_model).items()
            if (joint := model.names.actuator_joint(i)) is not None
        }
        _check_ranges(mj_model, limited | np.isin(np.arange(mj_model.nu), list(servos)))
        if servos:
            places, joints = list(servos), [joint for _, joint in servos.values()]
            # A servo's control is a target for gear * position.
            gear = mj_model.actuator_gear[[out for out, _ in servos.values()], 0]
            default = model.default_qpos[model.names.joint_qpos(joints)]
            rest[places] = gear * (default + per_joint(self.offset, joints, "offset"))
            per_unit[places] = gear * per_joint(self.action_scale, joints, "action_scale")
        ctrl = jnp.asarray(rest + per_unit * action, jnp.float32)
        return jnp.clip(ctrl, np.where(limited, low, -np.inf), np.where(limited, high, np.inf))


class PositionActuators(AbstractActuators):
    """PD servos that replace the model's actuators. An action is an offset of the target from the default pose.

    The torque kp * (target - position) - kd * velocity is computed in every physics substep, and clipped to the force
    limits of the model's actuators. Targets are clipped to the joints' limits.

    kp: stiffness, in N m/rad. kd: damping, in N m s/rad. action_scale: rad of target per unit of action. offset: rad of
    the target from the default pose at action 0, for example to carry the robot's weight.
    """

    kp: PerJoint = 100.0
    kd: PerJoint = 5.0
    action_scale: PerJoint = 0.25
    offset: PerJoint = 0.0

    def __check_init__(self) -> None:
        _check_gains(self, "kp", "action_scale")

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        joints = joints_to_drive(spec, self)
        kps, kds = per_joint(self.kp, joints, "kp"), per_joint(self.kd, joints, "kd")
        for actuator, kp, kd in zip(spec.actuators, kps.tolist(), kds.tolist(), strict=True):
            limits = torque_range(spec, actuator)
            _drive_directly(actuator)
            actuator.set_to_position(kp=kp, kv=kd)
            actuator.forcelimited = limits is not None
            if limits is not None:
                actuator.forcerange = limits
        _forget_old_actuators(spec)

    def __call__(self, action: Float[Array, " a"], model: PhysicsModel) -> Float[Array, " u"]:
        joints = model.names.actuator_joints()
        rest = model.default_qpos[model.names.joint_qpos(joints)] + per_joint(self.offset, joints, "offset")
        low, high = model.names.joint_range(joints).T
        scale = per_joint(self.action_scale, joints, "action_scale")
        return jnp.clip(jnp.asarray(rest + scale * action, jnp.float32), low, high)


class PositionVelocityActuators(AbstractActuators):
    """PD servos that also have a velocity target: torque = kp * (target - position) + kd * (target - velocity).

    The first half of an action offsets the position targets from the default pose, as with `PositionActuators`. The
    second half sets the velocity targets.

    kp: stiffness, in N m/rad. kd: damping, in N m s/rad. action_scale: rad of target per unit of action.
    velocity_scale: rad/s of target per unit of action.

    The velocity target is passed to the servo as a part of the position target. If gains are randomized, it is
    therefore scaled by the factor of kp.
    """

    kp: PerJoint = 100.0
    kd: PerJoint = 5.0
    action_scale: PerJoint = 0.25
    velocity_scale: PerJoint = 1.0

    def __check_init__(self) -> None:
        _check_gains(self, "kp", "action_scale", "velocity_scale")

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        PositionActuators(self.kp, self.kd).edit_spec(spec)

    def action_size(self, model: PhysicsModel) -> int:
        return 2 * model.mj_model.nu

    def __call__(self, action: Float[Array, " a"], model: PhysicsModel) -> Float[Array, " u"]:
        position_action, velocity_action = jnp.split(action, 2)
        position_u = PositionActuators(self.kp, self.kd, self.action_scale)(position_action, model)
        joints = model.names.actuator_joints()
        velocity_u = per_joint(self.velocity_scale, joints, "velocity_scale") * velocity_action
        # The servo's force is kp * (control - position) - kd * velocity, so a velocity target v adds kd / kp * v to the
        # control.
        return position_u + per_joint(self.kd, joints, "kd") / per_joint(self.kp, joints, "kp") * velocity_u


@dataclasses.dataclass(frozen=True, eq=False)
class SpeedTorqueLine:
    """The torque limits of DC motors as a function of velocity: a `MotorCurve`.

    no_load_speed: speed of each actuator at which no torque is left, in rad/s. stall_ratio: the torque at rest over the
    limit.
    """

    no_load_speed: np.ndarray
    stall_ratio: float

    def __call__(self, velocity_u: Any, force_range_u2: Any) -> Any:
        xp = jnp if isinstance(velocity_u, Array) else np
        low_u, high_u = force_range_u2[..., 0], force_range_u2[..., 1]
        speed_u = velocity_u / self.no_load_speed
        high_u = xp.minimum(high_u, xp.maximum(self.stall_ratio * high_u * (1 - speed_u), 0.0))
        low_u = xp.maximum(low_u, xp.minimum(self.stall_ratio * low_u * (1 + speed_u), 0.0))
        return xp.stack([low_u, high_u], axis=-1)


class DcMotorActuators(AbstractActuators):
    """PD servos with DC motors, whose torque limit falls with speed.

    The torque limit is the speed-torque line of a motor at full voltage. In the direction of motion the torque is at
    most stall * (1 - velocity / no_load_speed). Against the direction of motion it is at most
    stall * (1 + velocity / no_load_speed). It never exceeds the force limit of the model's actuator.

    kp: stiffness, in N m/rad. kd: damping, in N m s/rad. no_load_speed: speed at which no torque is left, in rad/s.
    stall_ratio: the torque at rest over the force limit; above 1, the force limit (of the current) holds at low speeds.
    action_scale: rad of target per unit of action.
    """

    kp: PerJoint = 100.0
    kd: PerJoint = 5.0
    no_load_speed: PerJoint = 20.0
    stall_ratio: float = 1.5
    action_scale: PerJoint = 0.25

    def __check_init__(self) -> None:
        _check_gains(self, "kp", "no_load_speed", "stall_ratio", "action_scale")

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        joints_to_drive(spec, self)
        for actuator in spec.actuators:
            needed_torque_range(spec, actuator, self)
        PositionActuators(self.kp, self.kd).edit_spec(spec)

    def __call__(self, action: Float[Array, " a"], model: PhysicsModel) -> Float[Array, " u"]:
        return PositionActuators(self.kp, self.kd, self.action_scale)(action, model)

    def motor_curve(self, model: PhysicsModel) -> MotorCurve:
        no_load_speed_u = per_joint(self.no_load_speed, model.names.actuator_joints(), "no_load_speed")
        return SpeedTorqueLine(no_load_speed_u, self.stall_ratio)


class TorqueActuators(AbstractActuators):
    """Motors that replace the model's actuators: torques proportional to the action.

    An actuator's torque limit is the tightest of its force range, a motor's control range and the joint's
    actuatorfrcrange. action_scale: the fraction of that limit that an action of 1 applies.
    """

    action_scale: PerJoint = 1.0

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        joints_to_drive(spec, self)
        for actuator in spec.actuators:
            limits = needed_torque_range(spec, actuator, self)
            _drive_directly(actuator)
            actuator.set_to_motor()
            actuator.ctrllimited, actuator.ctrlrange = True, limits
        _forget_old_actuators(spec)

    def __call__(self, action: Float[Array, " a"], model: PhysicsModel) -> Float[Array, " u"]:
        low, high = np.asarray(model.mj_model.actuator_ctrlrange, np.float32).T
        scale = per_joint(self.action_scale, model.names.actuator_joints(), "action_scale")
        middle, half = (low + high) / 2, (high - low) / 2
        return jnp.clip(middle + scale * half * action, low, high)


def _drive_directly(actuator: mujoco.MjsActuator) -> None:
    """Sets an actuator's gear to 1 and removes its limits."""
    gear = actuator.gear[0]
    # MuJoCo reflects an actuator's inertia and damping to its joint by the square of the gear.
    actuator.armature, actuator.damping = actuator.armature * gear**2, np.array(actuator.damping) * gear**2
    actuator.gear[0] = 1.0
    actuator.ctrllimited = actuator.forcelimited = actuator.actlimited = mujoco.mjtLimited.mjLIMITED_FALSE
    actuator.actrange, actuator.inheritrange = [0.0, 0.0], 0.0


def _forget_old_actuators(spec: mujoco.MjSpec) -> None:
    """Removes the activations and controls of the replaced actuators from the keyframes."""
    for key in spec.keys:
        key.act, key.ctrl = [], []


def _check_ranges(model: mujoco.MjModel, has_meaning: np.ndarray) -> None:
    """Raises ConfigError unless actions can be mapped to every control; `has_meaning` is a flag per control."""
    for i, start in enumerate(model.actuator_ctrladr):
        if not has_meaning[start : start + model.actuator_ctrlnum[i]].all():
            what = label(model, "actuator", i)
            raise ConfigError(
                f"{what[0].upper()}{what[1:]} must be a position servo or have a control range, for ModelActuators to "
                "know how far an action moves it. A servo that drives no hinge or slide joint needs one as well. Give "
                "it a ctrlrange in the MJCF file (a pid also velrange and ffrange), or override get_actuators."
            )


def _check_gains(actuators: AbstractActuators, *above: str) -> None:
    """Raises ConfigError unless all numbers of `kd` are at least 0, and all numbers of the fields `above` above 0."""
    numbers = lambda field: list(value.values()) if isinstance(value := getattr(actuators, field), Mapping) else [value]
    check_field(actuators, "kd", all(number >= 0 for number in numbers("kd")), "0 or more")
    for field in above:
        check_field(actuators, field, all(number > 0 for number in numbers(field)), "above 0")


def per_joint(value: PerJoint, joints: list[str], what: str) -> np.ndarray:
    """One number per joint.

    Raises:
        ConfigError: A joint matches no pattern, or a pattern matches no joint.
    """
    if not isinstance(value, Mapping):
        return np.full(len(joints), value, np.float32)
    for pattern in value:
        if not fnmatch.filter(joints, pattern):
            raise ConfigError(f"Pattern {pattern!r} of {what} matches no joint. {near_misses(pattern, joints)}")
    numbers = []
    for joint in joints:
        matching = [number for pattern, number in value.items() if fnmatch.fnmatch(joint, pattern)]
        if not matching:
            raise ConfigError(f"No pattern of {what} matches joint {joint!r}. Add one, or '*' as the last.")
        numbers.append(matching[0])
    return np.asarray(numbers, np.float32)
