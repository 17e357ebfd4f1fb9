import functools

import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from ksim.physics import compile_model
from tests.support.contexts import DT, TOUCH, asking, case, check_value, feet, make_context, turned, values_over
from tests.support.robots import biped_spec

WALK, STAND = asking(forward=0.5), asking()
SITES = ("left_foot", "right_foot")
AIR_TIME = rewards.FeetAirTime(sensors=TOUCH, command="velocity", threshold_s=0.2, max_s=0.5)
VARIANCE = rewards.AirTimeVariance(sensors=TOUCH, command="velocity")
SINGLE = rewards.SingleSupport(sensors=TOUCH, command="velocity")
APEX = rewards.FootApexHeight(sensors=TOUCH, sites=SITES, command="velocity", target=0.1)
DISTANCE = rewards.FeetDistance(sites=SITES, distance=(0.2, 0.3))
SLIP = rewards.FeetSlip(sensors=TOUCH, sites=SITES)
CLEARANCE = rewards.FootClearance(sites=SITES, target=0.08)
IMPACT = rewards.ImpactForce(sensors=TOUCH, threshold=100.0)
# The left foot rolled by 30 degrees, the right one turned about the vertical.
C, S = np.cos(np.radians(30)), np.sin(np.radians(30))
TILTED = {"site_xmat": [np.eye(3).ravel(), [1, 0, 0, 0, C, -S, 0, S, C], [C, -S, 0, S, C, 0, 0, 0, 1]]}
# Speeds of sqrt(0.3^2 + 0.4^2) = 0.5 and of 2 along the ground.
MOVING = {"ksim_left_foot_velocity": [0.3, -0.4, 7], "ksim_right_foot_velocity": [0, 2, 7]}


@functools.cache
def with_velocity_sensors():
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=DT, edits=[SLIP.edit_spec, SLIP.edit_spec])


def sites(left, right):
    """Positions of the feet, after the IMU's."""
    return {"derived": {"site_xpos": [[0, 0, 9], left, right]}}


def stepping(*contacts_tf, heights_tf=None, commands=WALK):
    """An episode in which the feet are down as given."""
    heights_tf = heights_tf or [(0.0, 0.0)] * len(contacts_tf)
    at_heights = [sites([0, 0, left], [0, 0, right]) for left, right in heights_tf]
    steps = zip(contacts_tf, at_heights, strict=True)
    return [{"sensors": feet(*contacts), "commands": commands} | heights for contacts, heights in steps]


def left_lands_after(num_steps, commands=WALK):
    """Both feet are down, the left is in the air until it lands so many steps later, and both stay down."""
    return stepping((1, 1), (1, 1), *[(0, 1)] * (num_steps - 1), (1, 1), (1, 1), commands=commands)


def apex_of_7_cm(commands):
    heights_tf = [(0.5, 0.5), (0.07, 0.5), (0.04, 0.5), (0.3, 0.5), (0.3, 0.5)]
    return stepping((1, 1), (0, 1), (0, 1), (1, 1), (1, 1), heights_tf=heights_tf, commands=commands)


def over_ground(left, right):
    return {"model": with_velocity_sensors, "sensors": MOVING} | sites([5, 5, left], [5, 5, right])


# fmt: off
CASES = [
    # 15 steps of 0.02 s are 0.3 s, of which 0.1 s are beyond the threshold; a reward is per second: 0.1 / 0.02.
    case("air time: paid at the step of a landing only", AIR_TIME, [0] * 16 + [5.0, 0], episode=left_lands_after(15)),
    # (0.5 - 0.2) / 0.02, though it was up for 0.8 s.
    case("air time: no more than max", AIR_TIME, [0] * 41 + [15.0, 0], episode=left_lands_after(40)),
    # 9 steps are 0.18 s.
    case("air time: nothing below the threshold", AIR_TIME, [0] * 12, episode=left_lands_after(9)),
    # 2 * (0.3 - 0.2) / 0.02
    case("air time: for both feet that land", AIR_TIME, [0] * 16 + [10.0],
         episode=stepping((1, 1), (1, 1), *[(0, 0)] * 14, (1, 1))),
    case("air time: nothing for a foot that never lands", AIR_TIME, [0] * 42,
         episode=stepping((1, 1), (1, 1), *[(0, 1)] * 40)),
    case("air time: nothing while standing, even without a threshold",
         rewards.FeetAirTime(sensors=TOUCH, command="velocity", threshold_s=0.0), [0] * 11,
         episode=stepping(*[(1, 1)] * 11)),
    case("air time: nothing for a foot that chatters", AIR_TIME, [0] * 41,
         episode=stepping((1, 1), *[(1, 1), (0, 1)] * 20)),
    case("air time: nothing when asked to stand", AIR_TIME, [0] * 18, episode=left_lands_after(15, commands=STAND)),
    # The left swings for 2 steps, 0.04 s: variance of (0.04, 0) is 0.02^2, from the landing on. Before that its stance
    # of one step ends: variance of (0.02, 0) is 0.01^2.
    case("air time variance: of a swing and of a stance", VARIANCE, [0, 0, 0.01**2, 0.01**2, 0.02**2 + 0.01**2],
         episode=stepping((1, 1), (1, 1), (0, 1), (0, 1), (1, 1))),
    case("air time variance: 0 when asked to stand", VARIANCE, [0] * 31,
         episode=stepping(*[(0, 1)] * 30, (1, 1), commands=STAND)),
    case("single support: 1 on the left foot", SINGLE, 1, sensors=feet(True, False), commands=WALK),
    case("single support: 1 on the right foot", SINGLE, 1, sensors=feet(False, True), commands=WALK),
    case("single support: 0 on both", SINGLE, 0, sensors=feet(True, True), commands=WALK),
    case("single support: 0 on none", SINGLE, 0, sensors=feet(False, False), commands=WALK),
    case("single support: standing, 1 on both", SINGLE, 1, sensors=feet(True, True), commands=STAND),
    case("single support: standing, 0 on one", SINGLE, 0, sensors=feet(True, False), commands=STAND),
    # The left foot's highest point is 0.07; what it is at the landing itself, and the right foot's, do not count.
    case("apex height: the squared error once, at a landing", APEX, [0, 0, 0, 0.03**2 / DT, 0],
         episode=apex_of_7_cm(WALK)),
    case("apex height: 0 when asked to stand", APEX, [0] * 5, episode=apex_of_7_cm(STAND)),
    # Between 0.2 and 0.3 is right; crossed feet are at a negative distance.
    case("distance: 0 within its range", DISTANCE, 0.0, **sites([0.5, 0.1, 0], [-0.5, -0.15, 0])),
    case("distance: too close", DISTANCE, 0.05, **sites([0.5, 0.1, 0], [-0.5, -0.05, 0])),
    case("distance: too wide", DISTANCE, 0.2, **sites([0.5, 0.3, 0], [-0.5, -0.2, 0])),
    case("distance: crossed", DISTANCE, 0.4, **sites([0.5, -0.1, 0], [-0.5, 0.1, 0])),
    # Facing the world's y, its left is -x.
    case("distance: along the base's own left", DISTANCE, 0.0, orientation=turned("z", 90),
         **sites([-0.1, 0.5, 0], [0.15, -0.5, 0])),
    # sin^2 30 = 0.25
    case("flat: the squared sine of a tilted foot", rewards.FeetFlat(sites=SITES, sensors=None), 0.25, derived=TILTED,
         sensors=feet(False, True)),
    case("flat: with sensors, of a foot that is down", rewards.FeetFlat(sites=SITES, sensors=TOUCH), 0.25,
         derived=TILTED, sensors=feet(True, True)),
    case("flat: with sensors, not of one in the air", rewards.FeetFlat(sites=SITES, sensors=TOUCH), 0, derived=TILTED,
         sensors=feet(False, True)),
    # 0.3^2 + 0.4^2
    case("slip: of the foot that is down, without the vertical", SLIP, 0.25, model=with_velocity_sensors,
         sensors=feet(True, False) | MOVING),
    case("slip: the sum of feet that are down", SLIP, 0.25, model=with_velocity_sensors,
         sensors=feet(True, True) | {"ksim_left_foot_velocity": [0.3, 0, 0], "ksim_right_foot_velocity": [0, 0.4, 0]}),
    # 0.05^2 * 0.5
    case("clearance: the left foot's squared shortfall times its speed", CLEARANCE, 0.00125, **over_ground(0.03, 0.10)),
    # 0.01^2 * 2
    case("clearance: the right foot's", CLEARANCE, 0.0002, **over_ground(0.08, 0.07)),
    # 0.05^2 * 0.5 + 0.01^2 * 2
    case("clearance: the sum of both", CLEARANCE, 0.00145, **over_ground(0.03, 0.07)),
    case("clearance: 0 above the target", CLEARANCE, 0.0, **over_ground(0.09, 0.10)),
    case("clearance: 0 for feet at rest, however low", CLEARANCE, 0.0, model=with_velocity_sensors,
         derived={"site_xpos": np.zeros((3, 3))}),
    # Of each over 100 N: 20 alone, 20 + 30, and nothing at the threshold itself.
    case("impact: the excess of one foot", IMPACT, 20, sensors={"left_touch": 120, "right_touch": 90}),
    case("impact: the sum of both", IMPACT, 50, sensors={"left_touch": 120, "right_touch": 130}),
    case("impact: 0 at the threshold", IMPACT, 0, sensors={"left_touch": 100, "right_touch": 0}),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)


def test_air_time_variance_when_a_swing_is_longer_than_max_counts_as_max():
    # Half of 0.1 s, squared.
    term = rewards.AirTimeVariance(sensors=TOUCH, command="velocity", max_s=0.1)
    contexts = [make_context(**given) for given in stepping(*[(0, 1)] * 30, (1, 1))]
    np.testing.assert_allclose(values_over(term, *contexts)[-1], 0.05**2, rtol=1e-4)


def test_feet_slip_and_clearance_add_each_sensor_once_however_often_they_edit_the_model():
    # The biped has 3 sensors of its own.
    assert with_velocity_sensors().mj_model.nsensor == 3 + 2
    spec = biped_spec()
    SLIP.edit_spec(spec)
    CLEARANCE.edit_spec(spec)
    assert len(spec.sensors) == 3 + 2


def test_feet_slip_when_base_faces_left_has_sensors_of_the_world_frame():
    model = with_velocity_sensors()
    data = mujoco.MjData(model.mj_model)
    data.qpos[3:7] = turned("z", 90)
    data.qvel[0] = 2.0
    mujoco.mj_forward(model.mj_model, data)
    reading_3 = data.sensordata[model.names.sensor("ksim_left_foot_velocity")]
    np.testing.assert_allclose(reading_3, [2, 0, 0], atol=1e-6)


@pytest.mark.parametrize(("kind", "sensors"), [(rewards.FeetSlip, {"sensors": TOUCH}), (rewards.FootClearance, {})])
def test_feet_terms_when_site_is_unknown_name_the_near_misses(kind, sensors):
    with pytest.raises(ConfigError, match=r"no site 'left_fot'.*'left_foot'"):
        kind(sites=("left_fot", "right_foot"), **sensors).edit_spec(biped_spec())
