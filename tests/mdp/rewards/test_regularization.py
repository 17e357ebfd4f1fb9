import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.physics import compile_model
from tests.support.contexts import DT, biped, case, check_value, make_context, turned
from tests.support.robots import BIPED, biped_spec

KNOCK_KNEED = functools.partial(biped, knock_kneed=True)  # by default at (0.3, -0.3) rad
FREE_RIGHT_HIP = functools.partial(biped, free_right_hip=True)
TUMBLING = {"lin_vel_world": (9, 9, 9), "ang_vel_body": (9, 9, 9)}
POWER = {"lin_vel_world": (9, 9, 9), "derived": {"actuator_force": [3, -4]}}
LIMITS = rewards.JointLimits(soft_fraction=0.9)


def compiled(spec):
    return compile_model(spec, dt=0.004, ctrl_dt=DT)


@functools.cache
def swapped():
    """The biped whose first actuator drives the right hip."""
    mjcf = BIPED.replace('joint="left_hip"', 'joint="it"').replace('joint="right_hip"', 'joint="left_hip"')
    return compiled(mujoco.MjSpec.from_string(mjcf.replace('joint="it"', 'joint="right_hip"')))


@functools.cache
def geared():
    """The biped whose left motor turns 10 times as fast as its joint."""
    spec = biped_spec()
    spec.actuators[0].gear[0] = 10.0
    return compiled(spec)


@functools.cache
def with_ball():
    """The biped whose last actuator has three forces."""
    head = '<body><joint name="ball" type="ball"/><geom size=".1"/></body><body name="left_leg"'
    turner = '<orientation joint="ball" kp="1" forcerange="0 10"/></actuator>'
    mjcf = BIPED.replace('<body name="left_leg"', head).replace("</actuator>", turner)
    model = compiled(mujoco.MjSpec.from_string(mjcf))
    assert list(model.mj_model.actuator_outnum) == [1, 1, 3]
    return model


def tilted(axis: str, degrees: float):
    return {"orientation": turned(axis, degrees)}


def acting(*actions: tuple[float, float]):
    """An episode with these actions, the one before the first being zero."""
    before = [(0.0, 0.0), *actions[:-1]]
    return [{"action": jnp.array(a), "previous_action": jnp.array(b)} for a, b in zip(actions, before, strict=True)]


# fmt: off
CASES = [
    case("alive: 1 before the fall", rewards.Alive(), 1.0, terminated=jnp.bool_(False)),
    case("alive: 0 at the fall", rewards.Alive(), 0.0, terminated=jnp.bool_(True)),
    case("termination penalty: 0 before the fall", rewards.TerminationPenalty(), 0.0, terminated=jnp.bool_(False)),
    case("termination penalty: 1 at the fall", rewards.TerminationPenalty(), 1.0, terminated=jnp.bool_(True)),
    # sin^2 30 = 0.25
    case("tilt: the squared sine of a roll", rewards.BaseTilt(), 0.25, **tilted("x", 30)),
    case("tilt: the squared sine of a pitch", rewards.BaseTilt(), 0.25, **tilted("y", 30)),
    case("tilt: none for a heading", rewards.BaseTilt(), 0.0, **tilted("z", 30)),
    # cos 60 = 0.5
    case("upright: 1 upright", rewards.Upright(), 1, **tilted("x", 0)),
    case("upright: the cosine of a roll", rewards.Upright(), 0.5, **tilted("x", 60)),
    case("upright: the cosine of a pitch", rewards.Upright(), 0.5, **tilted("y", -60)),
    case("upright: 1 for a heading", rewards.Upright(), 1, **tilted("z", 60)),
    case("upright: 0 on a side", rewards.Upright(), 0, **tilted("x", 90)),
    case("upright: -1 upside down", rewards.Upright(), -1, **tilted("y", 180)),
    case("roll: the squared angle", rewards.BaseRoll(), np.radians(30) ** 2, **tilted("x", 30)),
    case("roll: beyond a right angle", rewards.BaseRoll(), np.radians(120) ** 2, **tilted("x", 120)),
    case("roll: 0 for a pitch", rewards.BaseRoll(), 0, **tilted("y", -20)),
    case("roll: 0 for a heading", rewards.BaseRoll(), 0, **tilted("z", 50)),
    case("pitch: the squared angle", rewards.BasePitch(), np.radians(20) ** 2, **tilted("y", -20)),
    case("pitch: 0 for a roll", rewards.BasePitch(), 0, **tilted("x", 30)),
    case("pitch: 0 for a roll beyond a right angle", rewards.BasePitch(), 0, **tilted("x", 120)),
    case("pitch: 0 for a heading", rewards.BasePitch(), 0, **tilted("z", 50)),
    case("pitch: 0 at its target", rewards.BasePitch(target=float(np.radians(20))), 0.0, **tilted("y", 20)),
    case("height error: a tenth below", rewards.BaseHeightError(target=0.4), 0.01, height=0.3),
    case("height error: a tenth above", rewards.BaseHeightError(target=0.4), 0.01, height=0.5),
    # (-0.3)^2
    case("vertical velocity: squared, without the horizontal", rewards.VerticalVelocity(), 0.09,
         lin_vel_world=(5, 6, -0.3)),
    # 3^2 + 4^2
    case("roll and pitch rate: squared, without the yaw", rewards.RollPitchRate(), 25.0, ang_vel_body=(3, -4, 7)),
    # 0.3 / 0.02 = 15 and 0.4 / 0.02 = 20; then no change.
    case("linear acceleration: squared changes per second", rewards.BaseLinearAcceleration(), [0, 625, 0],
         episode=[{}] + [{"lin_vel_world": (0.3, 0, 0.4), "ang_vel_body": (0, 0.2, 0)}] * 2),
    # 0.2 / 0.02 = 10
    case("angular acceleration: squared changes per second", rewards.BaseAngularAcceleration(), [0, 100, 0],
         episode=[{}] + [{"lin_vel_world": (0.3, 0, 0.4), "ang_vel_body": (0, 0.2, 0)}] * 2),
    # |0.4 - 0.3| + |-0.5 + 0.3|
    case("joint deviation: distances from a bent default pose", rewards.JointDeviation(), 0.3, model=KNOCK_KNEED,
         joint_pos=(0.4, -0.5)),
    case("joint deviation: named joints alone", rewards.JointDeviation(joints=("right_hip",)), 0.2,
         joint_pos=(0.1, -0.2)),
    # (1 - 0)^2 + (-1 - 1)^2
    case("action rate: squared changes", rewards.ActionRate(), 5.0, action=jnp.array([1.0, -1.0]),
         previous_action=jnp.array([0.0, 1.0])),
    # From rest: (1, 0) - 0, then (0, 2) - (1, 0), then no change after (0, 2).
    case("action acceleration: squared second differences", rewards.ActionAcceleration(), [0, 1, 1 + 4, 4],
         episode=acting((0.0, 0.0), (1.0, 0.0), (1.0, 2.0), (1.0, 2.0))),
    # Of 0, 1, 1, 3 the changes are 1, 0, 2, their changes 1, -1, 2, and theirs 1, -2, 3.
    case("action jerk: squared third differences", rewards.ActionJerk(), [0, 1, 4, 9],
         episode=acting((0.0, 0.0), (1.0, 0.0), (1.0, 0.0), (3.0, 0.0))),
    # (1.2 - 1) / 0.02 = 10 and (1.6 - 2) / 0.02 = -20; the episode starts without, and so does what keeps its speed.
    case("joint acceleration: squared changes per second", rewards.JointAcceleration(), [0, 100 + 400, 0],
         episode=[{"joint_vel": joint_vel} for joint_vel in [(1, 2), (1.2, 1.6), (1.2, 1.6)]]),
    # -20^2
    case("joint acceleration: named joints alone, without the base", rewards.JointAcceleration(joints=("right_hip",)),
         [0, 400], episode=[{"joint_vel": (1, 2)}, {"lin_vel_world": (9, 9, 9), "joint_vel": (1.2, 1.6)}]),
    # |3 * 2| + |-4 * 1|
    case("mechanical power: of driving and of braking", rewards.MechanicalPower(), 10.0, **POWER, joint_vel=(2, 1)),
    # |3 * 1| on the right, |-4 * 2| on the left
    case("mechanical power: actuators in another order than joints", rewards.MechanicalPower(), 11.0, model=swapped,
         joint_vel=(2, 1), derived={"actuator_force": [3, -4]}),
    # Force 2 at the motor, which turns 10 times as fast as the joint at 3 rad/s.
    case("mechanical power: of a geared motor at its joint", rewards.MechanicalPower(), 60.0, model=geared,
         joint_vel=(3, 0), derived={"actuator_force": [2, 0]}),
    # 10 W of a robot of 7.4 kg at 0.5 m/s.
    case("cost of transport: power over weight and horizontal speed", rewards.CostOfTransport(min_speed=0.2),
         10 / (7.4 * 9.81 * 0.5), lin_vel_world=(0, 0.5, 9), joint_vel=(2, 1), derived=POWER["derived"]),
    case("cost of transport: of at least the least speed", rewards.CostOfTransport(min_speed=0.2),
         10 / (7.4 * 9.81 * 0.2), lin_vel_world=(0, 0, 9), joint_vel=(2, 1), derived=POWER["derived"]),
    # 3^2 + 4^2
    case("torque effort: squared forces", rewards.TorqueEffort(), 25.0, **POWER),
    # 1^2 + 2^2
    case("joint velocity effort: of joints, without the base", rewards.JointVelocityEffort(), 5.0, **TUMBLING,
         joint_vel=(1, -2)),
    case("joint velocity effort: named joints alone", rewards.JointVelocityEffort(joints=("left_hip",)), 1.0,
         **TUMBLING, joint_vel=(1, -2)),
    # The range is -20 to 20 N m, of which 0.8 end at 16.
    *(case(f"torque limits: fractions beyond the inner range, {forces}", rewards.TorqueLimits(soft_fraction=0.8),
           expected, derived={"actuator_force": forces})
      for (forces, expected) in [((16, -16), 0.0), ((18, 0), 0.1), ((0, -20), 0.2), ((18, -20), 0.3)]),
    # The norm of (0, 6, 8) is 10, which is 2 beyond 8; half of the range is 5.
    case("torque limits: the norm of an actuator's several forces", rewards.TorqueLimits(soft_fraction=0.8), 0.4,
         model=with_ball, joint_pos=[0] * 6, joint_vel=[0] * 5, derived={"actuator_force": [99, 99, 0, 6, 8]}),
    # 0.9 * 10 = 9 rad/s: 0.5 on the left, 3 on the right.
    case("joint velocity limits: by how much beyond the inner fraction", rewards.JointVelocityLimits(max_vel=10.0), 3.5,
         lin_vel_world=(99, 99, 99), joint_vel=(9.5, -12)),
    case("joint velocity limits: named joints alone", rewards.JointVelocityLimits(max_vel=10.0, joints=("left_hip",)),
         0.5, joint_vel=(9.5, -12)),
    # The range is -60 to 60 degrees, of which the inner nine tenths end at -54 and 54.
    *(case(f"joint limits: how far out of the inner range, {degrees}", LIMITS, np.radians(expected),
           joint_pos=np.radians(degrees))
      for (degrees, expected) in [((0, 0), 0), ((53, -53), 0), ((57, 0), 3), ((0, -58), 4), ((57, -58), 3 + 4)]),
    case("joint limits: a joint without limits does not count", LIMITS, np.radians(3), model=FREE_RIGHT_HIP,
         joint_pos=np.radians([57, 500])),
    case("joint limits: named joints alone, by default of nine tenths", rewards.JointLimits(joints=("right_hip",)),
         np.radians(3), joint_pos=np.radians([60, 57])),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)


@pytest.mark.parametrize("kind", [rewards.MechanicalPower, rewards.TorqueEffort])
def test_effort_declares_the_force_that_it_reads(kind):
    assert kind.needs == ("actuator_force",)


def test_torque_limits_when_no_actuator_has_a_force_range_are_an_error():
    context = make_context(model=compiled(biped_spec()), derived={"actuator_force": [0, 0]})
    with pytest.raises(ConfigError, match=r"needs an actuator with a force range"):
        rewards.TorqueLimits()(context)
