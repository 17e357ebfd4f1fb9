import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.physics.rotations import multiply_quaternions
from tests.support.contexts import asking, biped, case, check_value, make_context, turned

WALK, STAND = asking(forward=0.5), asking()
ONE_STD = np.exp(-0.5)
KNOCK_KNEED = functools.partial(biped, knock_kneed=True)  # by default at (0.3, -0.3) rad
VELOCITY, YAW_RATE = rewards.TrackLinearVelocity(command="velocity"), rewards.TrackYawRate(command="velocity")
HEIGHT = rewards.TrackHeight(command="height", std=0.05)
STILL = rewards.StandStill(command="velocity")
REACH = rewards.TrackPosition(command="reach", site="left_foot", std=0.1)
FORWARD = {"commands": WALK, "lin_vel_world": (0.5, 0, 0)}
# Nose down by 30 degrees, facing the world's y.
LEANING = multiply_quaternions(jnp.array(turned("z", 90)), jnp.array(turned("y", 30)))
# The base at (1, 2, 0.5) faces the world's y: 0.3 forward is y, 0.1 leftward is -x.
REACHED = {
    "ground_position": (1, 2),
    "orientation": turned("z", 90),
    "derived": {"site_xpos": [[0, 0, 0], [1 - 0.1, 2 + 0.3, 0.5 - 0.2], [9, 9, 9]]},
}


def of_std(kind: type, command: str, std: float):
    return kind(command=command, std=float(std))


def commanded(name: str, *numbers: float):
    return {"commands": {name: jnp.array(numbers)}}


# fmt: off
CASES = [
    # The base faces the world's y, so that forward is y and leftward is -x.
    case("velocity: 1 when the base moves as asked in its heading", VELOCITY, 1.0, orientation=turned("z", 90),
         lin_vel_world=(-0.2, 0.5, 0), commands=asking(forward=0.5, leftward=0.2)),
    # The error has length sqrt(0.3^2 + 0.4^2) = 0.5.
    case("velocity: exp(-1/2) when the error is std", of_std(rewards.TrackLinearVelocity, "velocity", 0.5), ONE_STD,
         lin_vel_world=(0.8, -0.4, 0), commands=WALK),
    case("velocity: along the ground when pitched", VELOCITY, 1.0, **FORWARD, orientation=turned("y", 30)),
    case("velocity: hops and spins do not count", VELOCITY, 1.0, lin_vel_world=(0.5, 0, 3), ang_vel_body=(1, 2, 3),
         commands=WALK),
    case("yaw rate: 1 as asked", YAW_RATE, 1.0, ang_vel_body=(0, 0, 0.4), commands=asking(yaw_rate=0.4)),
    case("yaw rate: exp(-1/2) when the error is std", of_std(rewards.TrackYawRate, "velocity", 0.5), ONE_STD,
         ang_vel_body=(0, 0, -0.2), commands=asking(yaw_rate=0.3)),
    # On its right side, the base's left (y) points up.
    case("yaw rate: about the vertical when lying on a side", YAW_RATE, 1.0, orientation=turned("x", 90),
         ang_vel_body=(0, 0.4, 9), commands=asking(yaw_rate=0.4)),
    case("heading: 1 when facing as asked", rewards.TrackHeading(command="heading"), 1.0, orientation=turned("z", 90),
         **commanded("heading", np.pi / 2)),
    # From 170 to -170 degrees it is 20 degrees over the back.
    case("heading: the short way round", of_std(rewards.TrackHeading, "heading", np.radians(20)), ONE_STD,
         orientation=turned("z", 170), **commanded("heading", np.radians(-170))),
    # Errors of 0, 1 and 2 std of 0.05.
    case("height: 1 without an error", HEIGHT, 1.0, height=0.45, **commanded("height", 0.45)),
    case("height: one std", HEIGHT, ONE_STD, height=0.4, **commanded("height", 0.45)),
    case("height: two std", HEIGHT, np.exp(-2.0), height=0.55, **commanded("height", 0.45)),
    # |0.4 - 0.3| + |-0.5 + 0.3|
    case("stand still: distances from the default pose", STILL, 0.3, model=KNOCK_KNEED, joint_pos=(0.4, -0.5),
         commands=STAND),
    case("stand still: a command below a tenth is to stand", STILL, 0.3, joint_pos=(0.1, -0.2),
         commands=asking(yaw_rate=0.09)),
    case("stand still: 0 for a command above a tenth", STILL, 0.0, joint_pos=(0.1, -0.2),
         commands=asking(yaw_rate=0.11)),
    case("stand still: named joints alone", rewards.StandStill(command="velocity", joints=("right_hip",)), 0.2,
         joint_pos=(0.1, -0.2), commands=STAND),
    case("roll and pitch: 1 as asked, whatever the heading", rewards.TrackRollPitch(command="lean"), 1.0,
         orientation=LEANING, **commanded("lean", 0.0, math.radians(30))),
    case("roll and pitch: exp(-1/2) when the error is std", of_std(rewards.TrackRollPitch, "lean", np.radians(20)),
         ONE_STD, orientation=turned("x", 20), **commanded("lean", 0.0, 0.0)),
    # Errors of 0.3 and -0.1: sqrt((0.09 + 0.01) / 2)
    case("joint pose: exp(-1/2) when the root mean square is std",
         of_std(rewards.TrackJointPose, "pose", np.sqrt(0.05)), ONE_STD, joint_pos=(0.5, 0.1),
         **commanded("pose", 0.2, 0.2)),
    case("joint pose: named joints in their order",
         rewards.TrackJointPose(command="pose", joints=("right_hip", "left_hip")), 1.0, joint_pos=(0.5, 0.1),
         **commanded("pose", 0.1, 0.5)),
    case("position: 1 as asked in the frame of a base that moved and turned", REACH, 1.0, **REACHED,
         **commanded("reach", 0.3, 0.1, -0.2)),
    case("position: exp(-1/2) when the error is std", REACH, ONE_STD, **REACHED, **commanded("reach", 0.3, 0.1, -0.1)),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)


def test_track_joint_pose_when_the_command_is_of_another_size_is_an_error():
    with pytest.raises(ConfigError, match=r"'velocity' must have 2 components \(one for each joint\)"):
        rewards.TrackJointPose(command="velocity")(make_context(commands=WALK))
