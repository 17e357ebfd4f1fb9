import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import observations
from ksim.physics import compile_model
from tests.support.contexts import TOUCH, biped, case, check_value, make_context, turned
from tests.support.robots import ACTUATORS, biped_spec

KNOCK_KNEED = functools.partial(biped, knock_kneed=True)  # by default at (0.3, -0.3) rad
BACKWARDS = ("right_hip", "left_hip")
TORQUE = {"qfrc_actuator": [9, 9, 9, 9, 9, 9, 5, -6]}

# fmt: off
CASES = [
    # 0.5 - 0.3 and -0.5 + 0.3
    case("joint position: relative to a bent default pose", observations.JointPosition(), [0.2, -0.2],
         model=KNOCK_KNEED, joint_pos=(0.5, -0.5)),
    case("joint position: named joints in their order", observations.JointPosition(joints=BACKWARDS), [0.2, 0.1],
         joint_pos=(0.1, 0.2)),
    case("joint velocity: named joints alone", observations.JointVelocity(joints=("right_hip",)), [4],
         joint_vel=(3, 4)),
    case("joint velocity: without the base", observations.JointVelocity(), [3, 4], lin_vel_world=(9, 9, 9),
         ang_vel_body=(9, 9, 9), joint_vel=(3, 4)),
    case("actuator force", observations.ActuatorForce(), [5, -6], derived={"actuator_force": [5, -6]}),
    case("actuator control: as the context gives it", observations.ActuatorControl(), [0.5, -2],
         control=jnp.array([0.5, -2])),
    case("joint torque: without the base", observations.JointTorque(), [5, -6], derived=TORQUE),
    case("joint torque: named joints alone", observations.JointTorque(joints=("right_hip",)), [-6], derived=TORQUE),
    case("sensor: of several the named one", observations.SensorReading(sensor="gyro"), [1, 2, 3],
         sensors={"gyro": [1, 2, 3], "left_touch": 4, "right_touch": 5}),
    case("sensor: one number as a vector", observations.SensorReading(sensor="right_touch"), [5],
         sensors={"gyro": [1, 2, 3], "left_touch": 4, "right_touch": 5}),
    case("foot force: readings in the order of the names", observations.FootForce(sensors=TOUCH[::-1]), [0.5, 30],
         sensors={"left_touch": 30, "right_touch": 0.5}),
    case("foot contact: 1 above the threshold", observations.FootContact(sensors=TOUCH, threshold=2.0), [1, 0],
         sensors={"left_touch": 2.1, "right_touch": 1.9}),
    case("foot contact: 0 at the threshold", observations.FootContact(sensors=TOUCH), [0, 0],
         sensors={"left_touch": 1.0}),
    # At the reset 0; then the left foot is up for two steps of 0.02 s, lands, and is up again; the right stays down.
    case("foot air time: counts the seconds in the air", observations.FootAirTime(sensors=TOUCH),
         [[0, 0], [0.02, 0], [0.04, 0], [0, 0], [0.02, 0]],
         episode=[{"sensors": {"left_touch": left, "right_touch": 5}} for left in (0, 0, 0, 5, 0)]),
    case("foot air time: a force at the threshold is in the air",
         observations.FootAirTime(sensors=TOUCH, threshold=2.0), [[0, 0], [0.02, 0]],
         episode=[{"sensors": {"left_touch": 2.0, "right_touch": 2.1}}] * 2),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)


def test_force_and_torque_declare_the_fields_that_they_read():
    assert observations.ActuatorForce.needs == ("actuator_force",)
    assert observations.JointTorque.needs == ("qfrc_actuator",)


def test_sensor_of_one_number_is_a_vector():
    assert observations.SensorReading(sensor="right_touch")(make_context()).shape == (1,)


def test_joint_terms_when_joint_is_unknown_name_the_near_misses():
    with pytest.raises(ConfigError, match=r"no joint 'left_hop'.*'left_hip'"):
        observations.JointVelocity(joints=("left_hop",))(make_context())


# The IMU.


def imu_data(spec, *terms):
    """A context of the biped with what the terms add, on its back in free fall and slowly turning."""
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[ACTUATORS.edit_spec, *(t.edit_spec for t in terms)])
    data = mujoco.MjData(model.mj_model)
    data.qpos[:7] = [0, 0, 3, *turned("y", -90)]
    data.qvel[3:6] = [0.1, 0.2, 0.3]
    mujoco.mj_forward(model.mj_model, data)
    return make_context(model=model, derived={"sensordata": data.sensordata})


def test_imu_gyro_when_its_site_is_turned_reads_in_the_sites_frame():
    # The site's x is the trunk's y, and its y the trunk's -x.
    spec, term = biped_spec(), observations.ImuGyro(site="imu")
    spec.site("imu").quat = turned("z", 90)
    np.testing.assert_allclose(term(imu_data(spec, term)), [0.2, -0.1, 0.3], atol=1e-6)


def test_imu_gyro_when_the_model_has_one_there_adds_none():
    spec, added = biped_spec(), observations.ImuGyro(site="left_foot")
    observations.ImuGyro(site="imu").edit_spec(spec)
    assert len(spec.sensors) == 3
    added.edit_spec(spec)
    added.edit_spec(spec)
    assert [sensor.name for sensor in spec.sensors][3:] == ["ksim_left_foot_gyro"]


def test_imu_accelerometer_when_the_robot_falls_freely_reads_almost_nothing_and_when_lifted_an_upward_pull():
    spec, term = biped_spec(), observations.ImuAccelerometer(site="imu")
    # Almost: the turning and the servos of the legs accelerate the trunk a little.
    falling_3 = term(imu_data(spec, term))
    assert np.linalg.norm(falling_3) < 2.0
    # Lifted by twice its weight it is accelerated up by 9.81 m/s^2, to which gravity adds as much.
    spec.body("trunk").gravcomp = 2.0
    for leg in ("left_leg", "right_leg"):
        spec.body(leg).gravcomp = 2.0
    lifted_3 = term(imu_data(spec, term))
    # On its back the trunk's forward points up.
    np.testing.assert_allclose(lifted_3 - falling_3, [2 * 9.81, 0, 0], atol=0.05)


def test_imu_terms_when_the_site_is_unknown_name_the_near_misses():
    for term in (observations.ImuGyro(site="inu"), observations.ImuAccelerometer(site="inu")):
        with pytest.raises(ConfigError, match=r"no site 'inu'.*'imu'"):
            term.edit_spec(biped_spec())
