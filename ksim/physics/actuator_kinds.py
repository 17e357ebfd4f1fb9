"""Kinds of actuators and the meaning of their controls, from MuJoCo's gain, bias and dynamics types."""

import enum
import math

import mujoco
import numpy as np

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
