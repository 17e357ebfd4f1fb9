import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp import terminations
from ksim.mdp.terminations import BaseTilted, BaseTooFast, Custom, FarFromStart, JointOutOfRange, JointTooFast
from tests.support.contexts import biped, case, check_value, turned

# Of 4.99 m/s and 2.99 rad/s.
FAST = BaseTooFast(max_lin_vel=4.99, max_ang_vel=2.99)

# fmt: off
CASES = [
    # 0.06 s are 3 steps of 0.02 s.
    *(case(f"time limit: at step {step}", terminations.TimeLimit(seconds=0.06), ends, episode_step=jnp.int32(step))
      for step, ends in [(2, False), (3, True), (4, True)]),
    case("too low: below", terminations.BaseTooLow(height=0.3), True, height=0.29),
    case("too low: not above", terminations.BaseTooLow(height=0.3), False, height=0.31),
    case("too high: above", terminations.BaseTooHigh(height=1.0), True, height=1.1),
    case("too high: not below", terminations.BaseTooHigh(height=1.0), False, height=0.9),
    # pi / 4 is 45 degrees.
    *(case(f"tilted: by {degrees} about {axis}", BaseTilted(max_tilt=np.pi / 4), ends,
           orientation=turned(axis, degrees))
      for axis in "xy"
      for degrees, ends in [(0, False), (44, False), (-44, False), (46, True), (-46, True), (180, True)]),
    case("tilted: not by a heading", BaseTilted(), False, orientation=turned("z", 180)),
    # A length of 5 m/s.
    case("too fast: moving", FAST, True, lin_vel_world=(3, 0, -4)),
    # A length of 3 rad/s.
    case("too fast: turning", FAST, True, ang_vel_body=(2, -2, 1)),
    case("too fast: neither", FAST, False, lin_vel_world=(3, 0, -3.9), ang_vel_body=(2, -2, 0.9)),
    # sqrt(3^2 + 4^2) = 5
    case("too far: beyond the distance, whatever the height", terminations.TooFar(distance=4.9), True,
         ground_position=(3, -4), height=99),
    case("too far: within the distance, whatever the height", terminations.TooFar(distance=5.1), False,
         ground_position=(3, -4), height=99),
    case("far from start: beyond the distance", FarFromStart(distance=4.9), [False, True],
         episode=[{"ground_position": (10, 10)}, {"ground_position": (13, 6), "height": 99}]),
    case("far from start: within the distance", FarFromStart(distance=5.1), [False, False],
         episode=[{"ground_position": (10, 10)}, {"ground_position": (13, 6), "height": 99}]),
    # The range is -60 to 60 degrees, and 0.1 rad are 5.7.
    *(case(f"joint out of range: at {degrees}", JointOutOfRange(margin=0.1), ends, joint_pos=np.radians(degrees))
      for degrees, ends in [((65, -65), False), ((66, 0), True), ((0, 66), True), ((-66, 0), True)]),
    case("joint out of range: named joints alone", JointOutOfRange(joints=("left_hip",)), False,
         joint_pos=np.radians((0, 90))),
    case("joint out of range: not a joint without limits", JointOutOfRange(), False,
         model=lambda: biped(free_right_hip=True), joint_pos=np.radians((0, 500))),
    *(case(f"sensor above: any component of {reading}", terminations.SensorAbove(sensor="gyro", threshold=2.0), ends,
           sensors={"gyro": reading})
      for reading, ends in [((0, 0, 2.1), True), ((2, 2, 2), False), ((-9, -9, -9), False)]),
    *(case(f"joint too fast: either way, {joint_vel}", JointTooFast(max_vel=10.0), ends, joint_vel=joint_vel,
           lin_vel_world=(99, 99, 99)) for joint_vel, ends in [((0, -11), True), ((11, 0), True), ((9, -9), False)]),
    case("joint too fast: named joints alone", JointTooFast(max_vel=10.0, joints=("left_hip",)), False,
         joint_vel=(0, 99)),
    case("custom: not where its function is false", Custom(lambda context: context.physics.qpos[2] > 1.0), False,
         height=0.9),
    case("custom: where its function is true", Custom(lambda context: context.physics.qpos[2] > 1.0), True, height=1.1),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_ends(term, given, expected):
    check_value(term, given, expected)


@pytest.mark.parametrize(
    ("term", "truncates"),
    [
        (terminations.TooFar(distance=5.0), True),
        (FarFromStart(distance=5.0), True),
        (BaseTooFast(), False),
        (JointOutOfRange(), False),
        (terminations.SensorAbove(sensor="gyro"), False),
        (Custom(lambda context: context.physics.qpos[2] > 1.0, truncates=True), True),
        (Custom(lambda context: context.physics.qpos[2] > 1.0, truncates=False), False),
    ],
)
def test_episode_that_leaves_the_field_is_cut_and_one_that_breaks_a_rule_fails(term, truncates):
    assert term.truncates == truncates


def test_custom_has_the_needs_that_it_is_given():
    assert Custom(lambda context: context.derived("xpos")[0, 2] > 0, truncates=True, needs=("xpos",)).needs == ("xpos",)
