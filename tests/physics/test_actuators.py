import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.physics import (
    DcMotorActuators,
    ModelActuators,
    PositionActuators,
    PositionVelocityActuators,
    TorqueActuators,
    compile_model,
)
from ksim.policy.export.metadata import action_map
from tests.support.robots import biped_spec


def driven_by(actuators):
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=0.02, edits=[actuators.edit_spec])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PositionActuators(kp=0.0), r"PositionActuators has kp=0.0, which must be above 0"),
        (lambda: PositionActuators(kd=-1.0), r"kd=-1.0, which must be 0 or more"),
        (lambda: PositionVelocityActuators(kp={"left_*": 10.0, "*": 0.0}), "which must be above 0"),
        (lambda: DcMotorActuators(no_load_speed=0.0), "no_load_speed=0.0"),
        (lambda: DcMotorActuators(stall_ratio=-1.0), "stall_ratio=-1.0"),
    ],
)
def test_actuators_that_cannot_be_are_an_error(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_position_velocity_actuators_pull_towards_both_targets():
    actuators = PositionVelocityActuators(kp=40.0, kd=2.0, action_scale=0.5, velocity_scale=3.0)
    model = driven_by(actuators)
    assert actuators.action_size(model) == 4
    # Targets of 0.5 * 0.2 = 0.1 rad and 3 * 0.5 = 1.5 rad/s on the left: torque 40 * 0.1 + 2 * 1.5 = 7 N m at rest.
    control_u = actuators(jnp.array([0.2, 0.0, 0.5, 0.0]), model)
    gain = model.mj_model.actuator_gainprm[:, 0]
    np.testing.assert_allclose(gain * control_u, [7.0, 0.0], rtol=1e-5)
    np.testing.assert_allclose(model.mj_model.actuator_biasprm[:, 1:3], [[-40.0, -2.0]] * 2)


def test_dc_motors_without_a_torque_limit_are_an_error():
    spec = biped_spec()
    for actuator in spec.actuators:
        actuator.ctrllimited = False
    with pytest.raises(ConfigError, match="torque limit to be driven by DcMotorActuators"):
        compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[DcMotorActuators().edit_spec])


@pytest.mark.parametrize(
    "actuators", [PositionActuators(), PositionVelocityActuators(), DcMotorActuators(), TorqueActuators()]
)
def test_two_actuators_on_one_joint_when_they_would_be_replaced_are_an_error(actuators):
    spec = biped_spec()  # a PD servo is often written as a position and a velocity servo
    damper = spec.add_actuator(name="damper", target="left_hip", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    damper.set_to_velocity(kv=2.0)
    damper.forcelimited, damper.forcerange = True, [-6.0, 6.0]
    with pytest.raises(ConfigError, match="'left_hip' and actuator 'damper' drive joint 'left_hip', which would get"):
        compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[actuators.edit_spec])


ACTUATORS = {
    "position": PositionActuators(kp=40.0, kd=2.0, action_scale={"left*": 0.5, "*": 0.25}),
    "dc motor": DcMotorActuators(kp=40.0, kd=2.0),
    "torque": TorqueActuators(action_scale=0.5),
    "model": ModelActuators(),
}


@pytest.mark.parametrize("actuators", ACTUATORS.values(), ids=ACTUATORS)
def test_actions_become_controls_as_exported_numbers_say(actuators):
    model = driven_by(actuators)
    found = action_map(actuators, model)
    for action in np.random.default_rng(0).uniform(-10, 10, (20, 2)).astype(np.float32):
        expected = actuators(jnp.array(action), model)
        ctrl = np.clip(np.array(found["offset"]) + np.array(found["scale"]) * action, found["lower"], found["upper"])
        np.testing.assert_allclose(ctrl, expected, rtol=1e-5, atol=1e-6)


def test_actuators_that_are_no_clipped_line_export_no_numbers():
    # The position's target is clipped before the velocity's is added.
    actuators = PositionVelocityActuators(kp=40.0, kd=2.0)
    model = driven_by(actuators)
    assert action_map(actuators, model) is None
