import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.physics import compile_model
from tests.support.contexts import DT, TOUCH, asking, biped, case, check_value, feet, make_context, values_over
from tests.support.robots import biped_spec

WALK, STAND = {"commands": asking(forward=0.5)}, {"commands": asking()}
SITES = ("left_foot", "right_foot")
# The clock turns in 40 steps of 0.02 s: a quarter of a turn is 10 steps.
CLOCK = {"command": "velocity", "period_s": 0.8, "duty": 0.5}
BOTH, LEFT, RIGHT, NONE = feet(True, True), feet(True, False), feet(False, True), feet(False, False)
# As long as the stance of each foot is 0.55 of a turn, both are down at its start.
PHASE = rewards.FeetPhase(sensors=TOUCH, command="velocity", period_s=0.8, duty=0.55)
TOGETHER = rewards.FeetPhase(sensors=TOUCH, offsets=(0.0, 0.0), **CLOCK)
TROT = rewards.FeetPhase(sensors=(*TOUCH, *TOUCH[::-1]), offsets=(0.0, 0.5, 0.5, 0.0), **CLOCK)
FORCE = rewards.FeetPhaseForce(sensors=TOUCH, std=50.0, edge_std=0.05, **CLOCK)
VELOCITY = rewards.FeetPhaseVelocity(sites=SITES, std=0.5, **CLOCK)
SWING = rewards.FootSwingHeight(sites=SITES, height=0.08, rest_height=0.02, **CLOCK)
POSE = rewards.SwingPose(legs=(("left_hip",), ("right_hip",)), bend=(0.6,), command="velocity", duty=0.5, period_s=0.8)
OWN_BENDS = dataclasses.replace(POSE, bend=((0.6,), (-0.2,)))
# Half a turn is 2 steps.
SYMMETRY = rewards.Symmetry(pairs=(("left_hip", "right_hip"),), command="velocity", period_s=0.08)
OPPOSITE = dataclasses.replace(SYMMETRY, signs=(-1.0,))
SLIDING = {"ksim_left_foot_velocity": [0.3, 0.4, 7], "ksim_right_foot_velocity": [1, 0, 7]}
GAIT, STANDING_GAIT = (rewards.TrackGait(sensors=TOUCH, command="gait", velocity=x) for x in (None, "velocity"))


@functools.cache
def with_velocity_sensors():
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=DT, edits=[VELOCITY.edit_spec])


def walking(step: int, **context):
    return WALK | {"episode_step": jnp.int32(step)} | context


def sites(left: float, right: float):
    """Heights of the feet, after the IMU's."""
    return {"site_xpos": [[0, 0, 9], [0, 0, left], [0, 0, right]]}


def joints(*joint_pos_t, commands=WALK):
    return [commands | {"episode_step": jnp.int32(t), "joint_pos": x} for t, x in enumerate(joint_pos_t)]


# fmt: off
CASES = [
    # At the start the left foot has phase 0 and the right 0.5, below 0.55: both down.
    case("phase: 1 when both feet are down as they should", PHASE, 1.0, **walking(0, sensors=BOTH)),
    case("phase: a half when the right should be down too", PHASE, 0.5, **walking(0, sensors=LEFT)),
    # After a quarter turn, phases 0.25 and 0.75: left down, right up.
    case("phase: 1 when the left stands and the right swings", PHASE, 1.0, **walking(10, sensors=LEFT)),
    case("phase: a half when the right should swing", PHASE, 0.5, **walking(10, sensors=BOTH)),
    case("phase: 0 when both do the opposite", PHASE, 0.0, **walking(10, sensors=RIGHT)),
    # After three quarters, phases 0.75 and 0.25: left up, right down.
    case("phase: 1 when the right stands and the left swings", PHASE, 1.0, **walking(30, sensors=RIGHT)),
    case("phase: 0 when both do the opposite, half a turn later", PHASE, 0.0, **walking(30, sensors=LEFT)),
    case("phase: standing, 1 when both are down", rewards.FeetPhase(sensors=TOUCH, command="velocity"), 1.0, **STAND,
         episode_step=jnp.int32(10), sensors=BOTH),
    case("phase: standing, a half when one is down", rewards.FeetPhase(sensors=TOUCH, command="velocity"), 0.5, **STAND,
         episode_step=jnp.int32(10), sensors=LEFT),
    case("phase: standing, 0 when none is down", rewards.FeetPhase(sensors=TOUCH, command="velocity"), 0.0, **STAND,
         episode_step=jnp.int32(10), sensors=NONE),
    # After a quarter turn both have phase 0.25.
    case("phase: equal offsets have feet down together", TOGETHER, 1.0, **walking(10, sensors=BOTH)),
    case("phase: equal offsets, a half when one is up", TOGETHER, 0.5, **walking(10, sensors=LEFT)),
    case("phase: equal offsets, 0 when both are up", TOGETHER, 0.0, **walking(10, sensors=NONE)),
    # After a quarter turn: phases 0.25, 0.75, 0.75, 0.25.
    case("phase: four feet that trot have diagonal ones down together", TROT, 1.0, **walking(10, sensors=LEFT)),
    # After a quarter turn the left foot is in the middle of its stance and the right of its swing: 1 - exp(-1/2) of
    # one of two feet. Edges are five standard deviations away.
    case("force: a swinging foot that presses by std costs half of a Gaussian", FORCE, (1 - np.exp(-0.5)) / 2,
         **walking(10, sensors={"left_touch": 300, "right_touch": 50})),
    # After half a turn the right foot's stance begins, and the left's ends: both half.
    case("force: half the weight where a swing ends", rewards.FeetPhaseForce(sensors=TOUCH, std=50.0, **CLOCK),
         (1 - np.exp(-0.5)) / 4, **walking(20, sensors={"left_touch": 0, "right_touch": 50})),
    case("force: 0 when asked to stand", rewards.FeetPhaseForce(sensors=TOUCH, **CLOCK), 0.0, **STAND,
         episode_step=jnp.int32(10), sensors=BOTH),
    # Speeds of 0.5 and 1 are 1 and 2 std.
    case("velocity: only the foot that should stand counts", VELOCITY, (1 - np.exp(-0.5)) / 2,
         **walking(10, sensors=SLIDING, model=with_velocity_sensors)),
    case("velocity: both count when standing", VELOCITY, (1 - np.exp(-0.5) + 1 - np.exp(-2.0)) / 2, **STAND,
         episode_step=jnp.int32(10), sensors=SLIDING, model=with_velocity_sensors),
    # A quarter turn: the right foot is in the middle of its swing, at 0.02 + 0.08; the left stands and is free.
    case("swing height: 0 on top of half a sine", SWING, 0.0, **walking(10, derived=sites(0.5, 0.10))),
    case("swing height: the squared error below it", SWING, 0.03**2, **walking(10, derived=sites(0.5, 0.07))),
    # An eighth turn: the right foot is at a quarter of its swing, sin(pi / 4) = 0.7071 of 0.08.
    case("swing height: at a quarter of the swing", SWING, 0.01**2,
         **walking(5, derived=sites(0.5, 0.02 + 0.08 * 0.70710678 + 0.01))),
    # Three quarters: now the left.
    case("swing height: the other foot half a turn later", SWING, 0.03**2, **walking(30, derived=sites(0.13, 0.5))),
    case("swing height: 0 when asked to stand", rewards.FootSwingHeight(sites=SITES, **CLOCK), 0.0, **STAND,
         episode_step=jnp.int32(10), derived=sites(5, 5)),
    # After a quarter turn, phases 0.25 and 0.75: left down, right in mid-swing and bent by all of 0.6 rad.
    case("pose: 0 when the swinging leg is bent", POSE, 0.0, **walking(10, joint_pos=(0.0, 0.6))),
    case("pose: the squared bend that is missing", POSE, 0.36, **walking(10, joint_pos=(0.0, 0.0))),
    case("pose: and that of a standing leg", POSE, 0.72, **walking(10, joint_pos=(0.6, 0.0))),
    case("pose: the other leg half a turn later", POSE, 0.0, **walking(30, joint_pos=(0.6, 0.0))),
    # Phases 1/12 and 7/12, the swing a sixth done: sin(pi / 6) = 1/2 of the bend, 0.3 rad.
    case("pose: half a sine of the bend", dataclasses.replace(POSE, period_s=5 * DT * 12), 0.0,
         **walking(5, joint_pos=(0.0, 0.3))),
    # The default pose is (0.3, -0.3): 0.2^2 + 0.3^2.
    case("pose: standing, the squared distance from the default pose", POSE, 0.13, **STAND, episode_step=jnp.int32(10),
         joint_pos=(0.5, 0.0), model=functools.partial(biped, knock_kneed=True)),
    case("pose: the right leg's own bend", OWN_BENDS, 0.0, **walking(10, joint_pos=(0.0, -0.2))),
    case("pose: the left leg's own bend", OWN_BENDS, 0.0, **walking(30, joint_pos=(0.6, 0.0))),
    case("symmetry: 0 when left does what right did half a turn ago", SYMMETRY, [0] * 5,
         episode=joints((0.1, -0.3), (0.2, 0.4), (-0.3, 0.1), (0.4, 0.2), (0.1, -0.3))),
    # At step 2: left 0.3 - right 0.1 before = 0.2, right 0.0 - left 0.4 before = -0.4.
    case("symmetry: both squared differences after half a turn", SYMMETRY, [0, 0, 0.2**2 + 0.4**2],
         episode=joints((0.4, 0.1), (0.0, 0.0), (0.3, 0.0))),
    case("symmetry: mirror images of opposite signs", OPPOSITE, [0, 0, 0],
         episode=joints((0.4, 0.1), (0.0, 0.0), (-0.1, -0.4))),
    case("symmetry: 0 when asked to stand", SYMMETRY, [0, 0, 0],
         episode=joints((0.4, 0.1), (0.0, 0.0), (0.3, 0.0), commands=STAND)),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)


def gait(frequency: float):
    """A gait of stances of half a turn, and of feet half a turn apart."""
    return {"gait": jnp.array([frequency, 0.5, 0.5])}


@pytest.mark.parametrize(
    ("term", "num_steps", "sensors", "velocity", "expected"),
    [
        # At 2 Hz and 0.02 s per step, 10 steps are 0.4 of a turn: left is down until 0.5, right at 0.9 in the air.
        (GAIT, 10, LEFT, WALK, 1.0),
        (GAIT, 10, BOTH, WALK, 0.5),
        (GAIT, 10, RIGHT, WALK, 0.0),
        # 20 steps are 0.8: left in the air, right at 0.3 down.
        (GAIT, 20, RIGHT, WALK, 1.0),
        # Asked to stand, all feet should be down.
        (STANDING_GAIT, 10, BOTH, STAND, 1.0),
        (STANDING_GAIT, 10, BOTH, WALK, 0.5),
    ],
)
def test_track_gait_follows_the_clock_of_the_commanded_frequency(term, num_steps, sensors, velocity, expected):
    context = make_context(sensors=sensors, commands=gait(2.0) | velocity["commands"])
    assert values_over(term, *[context] * (num_steps + 1))[-1] == expected


def test_track_gait_when_the_frequency_changes_goes_on_from_its_phase():
    # 10 steps at 2 Hz are 0.4 of a turn, 7 more at 1 Hz 0.14: at 0.54 the left foot has lifted, the right one landed.
    before, after = make_context(commands=gait(2.0)), make_context(sensors=RIGHT, commands=gait(1.0))
    assert values_over(GAIT, *[before] * 11, *[after] * 7)[-1] == 1.0


def test_track_gait_of_more_feet_than_the_command_has_is_an_error():
    term = rewards.TrackGait(sensors=(*TOUCH, *TOUCH), command="gait")
    with pytest.raises(ConfigError, match="4 sensors, but command 'gait' sets the gait of 2 feet"):
        values_over(term, make_context(commands=gait(2.0)))


def test_feet_phase_when_sensor_is_unknown_names_the_near_misses():
    with pytest.raises(ConfigError, match=r"no sensor 'left_tuch'.*'left_touch'"):
        rewards.FeetPhase(sensors=("left_tuch",), command="velocity")(make_context(**WALK))
