"""Terms under models with gears, velocity servos, motors without force limits, and bodies that move by themselves."""

import dataclasses

import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import randomizers
from ksim.physics import compile_model
from tests.support.contexts import biped, make_context
from tests.support.robots import ACTUATORS, biped_spec


def compiled(spec, *edits):
    return compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=edits)


def test_actuator_gains_of_a_velocity_servo_stay_as_they_are():
    spec = biped_spec()
    ACTUATORS.edit_spec(spec)
    velocity_servo = spec.actuators[0]
    velocity_servo.gainprm[0], velocity_servo.biasprm[0:3] = 5.0, [0, 0, -5.0]
    context = make_context(model=compiled(spec))
    drawn = randomizers.RandomActuatorGains(kp_factor=(0.5, 0.5), kd_factor=(0.5, 0.5))(context)
    np.testing.assert_allclose(drawn["actuator_gainprm"][:, 0], [5.0, 20.0])
    np.testing.assert_allclose(drawn["actuator_biasprm"][:, 2], [-5.0, -1.0])


def test_motor_strength_scales_the_gain_of_motors_and_the_range_of_servos():
    half = randomizers.RandomMotorStrength(factor=(0.5, 0.5))
    motors = half(make_context(model=compiled(biped_spec())))
    np.testing.assert_allclose(motors["actuator_gainprm"][:, 0], [0.5, 0.5])
    servos = half(make_context(model=biped()))
    np.testing.assert_allclose(servos["actuator_gainprm"][:, 0], [40.0, 40.0])
    np.testing.assert_allclose(servos["actuator_forcerange"], [[-10, 10]] * 2)


def test_motor_strength_of_a_servo_without_a_force_range_is_an_error():
    spec = biped_spec()
    ACTUATORS.edit_spec(spec)
    spec.actuators[1].forcelimited = False
    with pytest.raises(ConfigError, match=r"force range of actuator 'right_hip'"):
        randomizers.RandomMotorStrength()(make_context(model=compiled(spec)))


def test_inertia_of_a_body_that_moves_by_itself_is_an_error():
    spec = biped_spec()
    ball = spec.worldbody.add_body(name="ball", pos=[1, 0, 1])
    ball.add_freejoint()
    ball.add_geom(size=[0.1, 0, 0], mass=1)
    with pytest.raises(ConfigError, match=r"'ball' moves nothing else"):
        randomizers.RandomCenterOfMass(body="ball")(dataclasses.replace(make_context(), model=compiled(spec)))
