"""Kinds of actuators and the meaning of their controls, from MuJoCo's gain, bias and dynamics types."""

import enum
import math

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics.mjcf import spec_driven, spec_label

_GAIN, _BIAS, _DYN = mujoco.mjtGain, mujoco.mjtBias, mujoco.mjtDyn
_FILTERS = (_DYN.mjDYN_NONE, _DYN.mjDYN_FILTER, _DYN.mjDYN_FILTEREXACT)


class ActuatorKind(enum.Enum):
    """Kinds of actuators, by what their control means.

    Attributes:
        FORCE: A force, by a fixed gain: `motor`, `cylinder`, `adhesion`.
        SPRUNG: A force against a spring, or a target in its own units: a `general` with a fixed gain and a stiffness
            that differs from it.
        POSITION: A target for the length: `position`, and a `general` whose gain equals the stiffness of its bias.
        INTEGRATED_VELOCITY: The rate at which the target of a position servo moves: `intvelocity`.
        VELOCITY: A target for the velocity: `velocity`.
        VARIABLE_GAIN: The factor of a gain that depends on length and velocity: `damper`.
        MUSCLE: The excitation of a `muscle`.
        PID: A target length, a target velocity and a force, or those of them that the `pid` declares.
        OTHER: Anything else: `dcmotor`, `orientation`, plugins and callbacks.
    """

    FORCE = enum.auto()
    SPRUNG = enum.auto()
    POSITION = enum.auto()
    INTEGRATED_VELOCITY = enum.auto()
    VELOCITY = enum.auto()
    VARIABLE_GAIN = enum.auto()
    MUSCLE = enum.auto()
    PID = enum.auto()
    OTHER = enum.auto()


def kind_of(gaintype: int, biastype: int, dyntype: int, gainprm: np.ndarray, biasprm: np.ndarray) -> ActuatorKind:
    """The kind of an actuator, from its fields in MjModel or MjSpec.

    MuJoCo's XML reference, under `actuator`, says which fields each element sets. As MuJoCo does for `inheritrange`, a
    servo is distinguished from a force with a spring by its gain, which equals its stiffness.
    """
    if gaintype == _GAIN.mjGAIN_FIXED and biastype in (_BIAS.mjBIAS_NONE, _BIAS.mjBIAS_AFFINE):
        stiffness, damping = (-biasprm[1], -biasprm[2]) if biastype == _BIAS.mjBIAS_AFFINE else (0.0, 0.0)
        if stiffness != 0:
            is_servo = math.isclose(gainprm[0], stiffness, rel_tol=1e-6)
            if is_servo and dyntype == _DYN.mjDYN_INTEGRATOR:
                return ActuatorKind.INTEGRATED_VELOCITY
            return ActuatorKind.POSITION if is_servo and dyntype in _FILTERS else ActuatorKind.SPRUNG
        is_servo = damping != 0 and math.isclose(gainprm[0], damping, rel_tol=1e-6)
        return ActuatorKind.VELOCITY if is_servo and dyntype in _FILTERS else ActuatorKind.FORCE
    if gaintype == _GAIN.mjGAIN_AFFINE and biastype in (_BIAS.mjBIAS_NONE, _BIAS.mjBIAS_AFFINE):
        return ActuatorKind.VARIABLE_GAIN
    if gaintype == _GAIN.mjGAIN_MUSCLE:
        return ActuatorKind.MUSCLE
    return ActuatorKind.PID if gaintype == _GAIN.mjGAIN_PID else ActuatorKind.OTHER


def actuator_kinds(model: mujoco.MjModel) -> list[ActuatorKind]:
    """The kind of each actuator of a compiled model."""
    types = zip(model.actuator_gaintype, model.actuator_biastype, model.actuator_dyntype, strict=True)
    parameters = zip(model.actuator_gainprm, model.actuator_biasprm, strict=True)
    return [kind_of(int(g), int(b), int(d), *prm) for (g, b, d), prm in zip(types, parameters, strict=True)]


def position_inputs(model: mujoco.MjModel) -> dict[int, int]:
    """Actuators by the index of their control, for controls that are target lengths.

    That is the control of a position servo, and the first control of a PID or DC motor that declares a target length.
    """
    declared = model.actuator_ctrlspec & int(mujoco.mjtCtrlInput.mjINPUT_POS) != 0
    has_controller = np.isin(model.actuator_gaintype, (int(_GAIN.mjGAIN_PID), int(_GAIN.mjGAIN_DCMOTOR)))
    kinds = actuator_kinds(model)
    return {
        int(model.actuator_ctrladr[i]): i
        for i in range(model.nactuator)
        if kinds[i] is ActuatorKind.POSITION or (has_controller[i] and declared[i])
    }


_ONE_DOF = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
_ON_JOINTS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)


def joints_to_drive(spec: mujoco.MjSpec, drive: object) -> list[str]:
    """The hinge or slide joint of each actuator. Errors name the class of `drive`, which will drive the joints.

    Raises:
        ConfigError: An actuator drives something else, or two actuators drive the same joint.
    """
    of_joint: dict[str, mujoco.MjsActuator] = {}
    for actuator in spec.actuators:
        joint = spec.joint(actuator.target) if actuator.trntype in _ON_JOINTS else None
        if joint is None or joint.type not in _ONE_DOF:
            instead = spec_driven(actuator) if joint is None else f"{joint.type.name[6:].lower()} joint {joint.name!r}"
            raise ConfigError(
                f"{type(drive).__name__} needs every actuator to drive a hinge or slide joint, but "
                f"{spec_label(actuator)} acts on {instead}. Remove the actuator from the MJCF file, or let "
                "get_actuators return ModelActuators(), which uses the model's actuators unchanged."
            )
        other = of_joint.setdefault(actuator.target, actuator)
        if other is not actuator:
            raise ConfigError(
                f"{type(drive).__name__} puts one servo or motor in the place of each actuator, but both "
                f"{spec_label(other)} and {spec_label(actuator)} drive joint {actuator.target!r}, which would get two, "
                "with twice the gains and torque. Remove one of them in get_robot or in the MJCF file, or let "
                "get_actuators return ModelActuators(), which uses the model's actuators unchanged."
            )
    return [actuator.target for actuator in spec.actuators]


def torque_range(spec: mujoco.MjSpec, actuator: mujoco.MjsActuator) -> np.ndarray | None:
    """The lowest and the highest torque of an actuator at its joint, in N m (N on a slide); None if it is unlimited.

    The tightest of these limits applies: the force range times gear; the control range times gain and gear, if the
    control is a force; and the joint's actuatorfrcrange. The last is ignored if it limits the sum of the actuators and
    of gravity compensation, because MuJoCo then still applies it.
    """
    gear = actuator.gear[0]
    limits = np.array([-np.inf, np.inf])
    # The gain multiplies the control, or the activation of an integrator, which the control range does not bound.
    signal = "act" if actuator.dyntype == mujoco.mjtDyn.mjDYN_INTEGRATOR else "ctrl"
    if _kind(actuator) is ActuatorKind.FORCE and is_limited(actuator, signal):
        bias = actuator.biasprm[0] if actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE else 0.0
        limits = np.sort(np.array(getattr(actuator, f"{signal}range")) * actuator.gainprm[0]) + bias
    if is_limited(actuator, "force"):
        limits = np.clip(limits, *actuator.forcerange)
    # A negative gear swaps the ends.
    limits = np.sort(limits * gear) if gear else np.zeros(2)
    joint = spec.joint(actuator.target)
    if is_limited(joint, "actfrc") and not joint.actgravcomp:
        limits = np.clip(limits, *joint.actfrcrange)
    return limits if np.isfinite(limits).all() else None


def needed_torque_range(spec: mujoco.MjSpec, actuator: mujoco.MjsActuator, drive: object) -> np.ndarray:
    """The torque range of an actuator (see `torque_range`), for a `drive` that needs one.

    Raises:
        ConfigError: Nothing limits the torque.
    """
    limits = torque_range(spec, actuator)
    if limits is None:
        what = spec_label(actuator)
        raise ConfigError(
            f"{what[0].upper()}{what[1:]} must have a torque limit to be driven by {type(drive).__name__}. Give it a "
            "forcerange, or its joint an actuatorfrcrange, in the MJCF file."
        )
    return limits


def limit_controls(spec: mujoco.MjSpec) -> list[str]:
    """Gives motors without a control range one, by the torque limits of motor and joint; returns their names.

    Actions need it: they are fractions of the range. A motor without any limit stays as it is.
    """
    limited = []
    for actuator in spec.actuators:
        per_control = actuator.gainprm[0] * actuator.gear[0]
        if _kind(actuator) is not ActuatorKind.FORCE or is_limited(actuator, "ctrl") or not per_control:
            continue
        if spec.joint(actuator.target) is not None and (limits := torque_range(spec, actuator)) is not None:
            actuator.ctrllimited, actuator.ctrlrange = True, np.sort(limits / per_control)
            limited.append(actuator.name or actuator.target)
    return limited


def _kind(actuator: mujoco.MjsActuator) -> ActuatorKind:
    types = (int(actuator.gaintype), int(actuator.biastype), int(actuator.dyntype))
    return kind_of(*types, np.asarray(actuator.gainprm), np.asarray(actuator.biasprm))


def is_limited(element: mujoco.MjsActuator | mujoco.MjsJoint, what: str) -> bool:
    """Whether an element's `ctrl`, `force`, ... is limited. By MuJoCo's default it is if a range is given."""
    flag = int(getattr(element, f"{what}limited"))
    low, high = getattr(element, f"{what}range")
    return bool(low < high) if flag == int(mujoco.mjtLimited.mjLIMITED_AUTO) else bool(flag)
