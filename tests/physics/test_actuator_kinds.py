"""Actuators of every element that MJCF has, as they are in the model, on whatever they drive."""

import dataclasses

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import randomizers
from ksim.physics import DcMotorActuators, ModelActuators, PositionActuators, TorqueActuators, compile_model
from ksim.physics.actuator_kinds import ActuatorKind, actuator_kinds, limit_controls
from tests.support.contexts import make_context

ARM = """
<mujoco>
  <option><flag gravity="disable"/></option>
  <worldbody>
    <site name="anchor"/>
    <body name="arm">
      <joint name="hinge" axis="0 0 1" range="-90 90" {joint}/>
      <geom type="capsule" fromto="0 0 0 1 0 0" size=".05"/>
      <site name="tip" pos="1 0 0"/>
      <body name="wrist" pos="1 0 0">
        <joint name="ball" type="ball"/>
        <geom name="pad" size=".1"/>
      </body>
    </body>
  </worldbody>
  <tendon><fixed name="cord"><joint joint="hinge" coef="2"/></fixed></tendon>
  <actuator>{actuator}</actuator>
  <keyframe><key qpos="0.5 1 0 0 0"/></keyframe>
</mujoco>
"""


def arm(actuator, *edits, joint=""):
    spec = mujoco.MjSpec.from_string(ARM.format(actuator=actuator, joint=joint))
    return compile_model(spec, dt=0.01, ctrl_dt=0.01, edits=edits)


def controls(actuator):
    """The controls for actions -1, 0 and 1, with 0.1 rad of target per unit; the default pose is 0.5 rad."""
    model, actuators = arm(actuator), ModelActuators(action_scale=0.1)
    return [actuators(jnp.full(model.mj_model.nu, action), model).tolist() for action in (-1.0, 0.0, 1.0)]


@pytest.mark.parametrize(
    ("actuator", "kind", "expected"),
    [
        ('<motor joint="hinge" ctrlrange="-2 4"/>', "FORCE", (-2, 1, 4)),
        ('<position joint="hinge" kp="20"/>', "POSITION", (0.4, 0.5, 0.6)),
        ('<position joint="hinge" kp="20" timeconst=".2" kv="1"/>', "POSITION", (0.4, 0.5, 0.6)),
        ('<position joint="hinge" kp="20" dampratio="1" gear="-2"/>', "POSITION", (-0.8, -1.0, -1.2)),
        ('<position jointinparent="hinge" kp="20" ctrlrange="-1 .55"/>', "POSITION", (0.4, 0.5, 0.55)),
        ('<position joint="hinge" kp="20" inheritrange="1"/>', "POSITION", (0.4, 0.5, 0.6)),
        ('<velocity joint="hinge" kv="3" ctrlrange="-6 6"/>', "VELOCITY", (-6, 0, 6)),
        ('<intvelocity joint="hinge" kp="4" ctrlrange="-3 3"/>', "INTEGRATED_VELOCITY", (-3, 0, 3)),
        ('<damper joint="hinge" kv="2" ctrlrange="0 1"/>', "VARIABLE_GAIN", (0, 0.5, 1)),
        ('<cylinder joint="hinge" area="3" bias="1 0 0" ctrlrange="0 8"/>', "FORCE", (0, 4, 8)),
        ('<muscle joint="hinge" ctrlrange="0 1" lengthrange="0 1"/>', "MUSCLE", (0, 0.5, 1)),
        ('<adhesion body="wrist" ctrlrange="0 10"/>', "FORCE", (0, 5, 10)),
        ('<dcmotor joint="hinge" resistance="1" motorconst=".1" ctrlrange="-24 24"/>', "OTHER", (-24, 0, 24)),
        # A general actuator is what its gain and bias make of it.
        ('<general joint="hinge" biastype="affine" gainprm="30" biasprm="0 -30 -2" ctrlrange="-1 1"/>', "POSITION",
         (0.4, 0.5, 0.6)),
        ('<general joint="hinge" biastype="affine" gainprm=".3" biasprm="0 -90 -9" ctrlrange="0 255"/>', "SPRUNG",
         (0, 127.5, 255)),
        ('<general joint="hinge" biasprm="0 -5 0" ctrlrange="-1 1"/>', "FORCE", (-1, 0, 1)),  # the bias is not used
        ('<general joint="hinge" biastype="affine" biasprm="0 0 -.1" ctrlrange="-1 1"/>', "FORCE", (-1, 0, 1)),
        ('<general joint="hinge" dyntype="integrator" gainprm="7" ctrlrange="-1 3"/>', "FORCE", (-1, 1, 3)),
        ('<general joint="hinge" gaintype="affine" gainprm="1 2 3" ctrlrange="-1 3"/>', "VARIABLE_GAIN", (-1, 1, 3)),
        # What drives no hinge or slide joint has no pose to move away from, also a servo.
        ('<position tendon="cord" kp="20" ctrlrange="-1 3"/>', "POSITION", (-1, 1, 3)),
        ('<position tendon="cord" kp="20" ctrlrange="-1 3" timeconst="1"/>', "POSITION", (-1, 1, 3)),
        ('<position joint="ball" kp="20" ctrlrange="-1 3" gear="0 1 0"/>', "POSITION", (-1, 1, 3)),
        ('<position site="tip" refsite="anchor" kp="20" gear="1 0 0" ctrlrange="0 2"/>', "POSITION", (0, 1, 2)),
        ('<motor site="tip" gear="0 0 1" ctrlrange="0 9"/>', "FORCE", (0, 4.5, 9)),
        ('<motor cranksite="tip" slidersite="anchor" cranklength="2" ctrlrange="-1 1"/>', "FORCE", (-1, 0, 1)),
    ],
)  # fmt: skip
def test_action_of_an_actuator_moves_a_servos_target_or_spans_its_control_range(actuator, kind, expected):
    assert actuator_kinds(arm(actuator).mj_model) == [ActuatorKind[kind]]
    np.testing.assert_allclose(np.ravel(controls(actuator)), expected, rtol=1e-6, atol=1e-6)


def test_action_of_an_actuator_with_several_inputs_has_a_component_for_each():
    pid = '<pid joint="hinge" kp="3" kv="1" input="pos vel ff" velrange="-2 2" ffrange="0 6"/>'
    motor = '<motor joint="hinge" ctrlrange="-1 1"/>'
    low, middle, high = controls(pid + motor)
    np.testing.assert_allclose(middle, [0.5, 0, 3, 0], rtol=1e-6)
    np.testing.assert_allclose(high, [0.6, 2, 6, 1], rtol=1e-6)
    np.testing.assert_allclose(low, [0.4, -2, 0, -1], rtol=1e-6)


@pytest.mark.parametrize(
    ("actuator", "message"),
    [
        ('<motor tendon="cord"/>', r"Actuator 0 \(unnamed, drives tendon 'cord'\) must be a position servo or have a"),
        ('<position site="tip" refsite="anchor" kp="1" gear="1"/>', r"drives site 'tip'\).*no hinge or slide joint"),
        ('<intvelocity name="spin" joint="hinge"/>', r"Actuator 'spin' must be.*Give it a ctrlrange"),
        ('<pid joint="hinge" kp="1" kv="1"/>', r"drives joint 'hinge'\).*velrange"),
    ],
)
def test_control_without_a_range_is_an_error_that_names_its_actuator(actuator, message):
    with pytest.raises(ConfigError, match=message):
        controls(actuator)


def test_muscle_moves_its_joint_as_it_does_in_plain_mujoco():
    model = arm('<muscle joint="hinge" ctrlrange="0 1" lengthrange="0 1" force="10"/>')
    data = mujoco.MjData(model.mj_model)
    data.ctrl[:] = ModelActuators()(jnp.ones(1), model)
    mujoco.mj_step(model.mj_model, data, 20)
    assert data.act[0] > 0.9  # excited in full


FORCES = [
    # The tightest holds: 2 N m by the control, not 200 by the force range.
    ('gear="2" ctrlrange="-1 1" forcerange="-100 100"', "", (-2, 2)),
    ('gear="2" ctrlrange="-100 100" forcerange="-3 1"', "", (-6, 2)),
    # A negative gear turns the range around.
    ('gear="-2" forcerange="-1 3"', "", (-6, 2)),
    ('gear="-2" gainprm="5" ctrlrange="-1 3"', "", (-30, 10)),
    ('gear="2" gainprm="-5" ctrlrange="-1 3"', "", (-30, 10)),
    ('ctrlrange="-9 9"', 'actuatorfrcrange="-4 5"', (-4, 5)),
    ("", 'actuatorfrcrange="-4 5"', (-4, 5)),
    # MuJoCo counts the compensation of gravity among the joint's forces, and limits their sum by itself.
    ('ctrlrange="-9 9"', 'actuatorfrcrange="-4 5" actuatorgravcomp="true"', (-9, 9)),
    ('biastype="affine" biasprm="1 0 0" dyntype="filter" ctrlrange="0 3" gainprm="2"', "", (1, 7)),
    ('dyntype="integrator" actrange="-2 3" ctrlrange="-50 50" gainprm="2"', "", (-4, 6)),
    # The control of a servo is no force.
    ('biastype="affine" gainprm="5" biasprm="0 -5 0" ctrlrange="-1 1" forcerange="-7 7"', "", (-7, 7)),
    ('biastype="affine" gainprm="5" biasprm="0 0 -5" ctrlrange="-1 1" forcerange="-7 7"', "", (-7, 7)),
]


@pytest.mark.parametrize(("actuator", "joint", "expected"), FORCES)
def test_torque_limit_is_the_tightest_of_the_files(actuator, joint, expected):
    general = f'<general joint="hinge" {actuator}/>'
    torques = arm(general, TorqueActuators().edit_spec, joint=joint)
    reached = [TorqueActuators()(jnp.array([action]), torques).item() for action in (-1.0, 1.0)]
    np.testing.assert_allclose(reached, expected)
    for actuators in (PositionActuators(), DcMotorActuators()):
        servo = arm(general, actuators.edit_spec, joint=joint).mj_model
        np.testing.assert_allclose(servo.actuator_forcerange[0], expected)


@pytest.mark.parametrize("actuators", [TorqueActuators(), DcMotorActuators()])
@pytest.mark.parametrize(
    "actuator",
    [
        '<velocity joint="hinge" kv="5" ctrlrange="-1 1"/>',
        '<intvelocity joint="hinge" kp="5" ctrlrange="-1 1" actrange="-1 1"/>',
        '<damper joint="hinge" kv="5" ctrlrange="0 1"/>',
        '<muscle joint="hinge" ctrlrange="0 1" lengthrange="0 1"/>',
    ],
)
def test_control_range_that_is_no_force_is_no_torque_limit(actuators, actuator):
    with pytest.raises(ConfigError, match=r"Actuator 0 \(unnamed, drives joint 'hinge'\) must have a torque limit"):
        arm(actuator, actuators.edit_spec)


@pytest.mark.parametrize("actuators", [PositionActuators(kp=7.0, kd=0.0), TorqueActuators()])
def test_actuator_of_any_kind_can_be_replaced(actuators):
    for actuator in (
        '<position joint="hinge" kp="20" gear="3" timeconst="1" forcerange="-1 1" inheritrange="1"/>',
        '<intvelocity joint="hinge" kp="4" gear="3" actrange="-1 1" forcerange="-1 1"/>',
        '<muscle joint="hinge" gear="3" lengthrange="0 1" forcerange="-1 1"/>',
        '<pid joint="hinge" kp="1" ki="1" gear="3" input="pos vel ff" velrange="-1 1" forcerange="-1 1"/>',
        '<dcmotor joint="hinge" gear="3" resistance="1" motorconst=".1" inductance="1 1" saturation="1 0 0"/>',
    ):
        model = arm(actuator, actuators.edit_spec)
        assert (model.mj_model.nu, model.mj_model.na) == (1, 0)
        data = mujoco.MjData(model.mj_model)
        data.ctrl[:] = 100.0
        mujoco.mj_forward(model.mj_model, data)
        np.testing.assert_allclose(data.qfrc_actuator[0], 3.0, err_msg=actuator)


@pytest.mark.parametrize("actuators", [PositionActuators(), TorqueActuators(), DcMotorActuators()])
def test_keyframe_with_the_activation_of_an_actuator_that_is_replaced_keeps_its_pose(actuators):
    def add_keyframe(spec):
        spec.add_key(name="raised", qpos=[1.5, 1, 0, 0, 0], act=[1.5], ctrl=[1.5])

    servo = '<position joint="hinge" kp="20" timeconst="1" forcerange="-1 1"/>'
    model = arm(servo, add_keyframe, actuators.edit_spec).mj_model
    assert model.key("raised").qpos[0] == 1.5
    assert (model.na, model.key("raised").ctrl) == (0, 0.0)


def test_inertia_and_damping_of_a_geared_actuator_stay_at_its_joint():
    geared = '<motor joint="hinge" gear="3" armature=".1" damping="2 .1 .01" ctrlrange="-1 1"/>'
    accelerations = []
    for edits in ([], [TorqueActuators().edit_spec]):
        model = arm(geared, *edits).mj_model
        data = mujoco.MjData(model)
        data.qvel[0] = 2.0
        mujoco.mj_forward(model, data)
        accelerations.append(data.qacc[0])
    np.testing.assert_allclose(*accelerations)


@pytest.mark.parametrize("actuators", [PositionActuators(), TorqueActuators(), DcMotorActuators()])
@pytest.mark.parametrize(
    ("actuator", "instead"),
    [
        ('<motor name="pull" tendon="cord" ctrlrange="-1 1"/>', "actuator 'pull' acts on tendon 'cord'"),
        ('<motor joint="ball" ctrlrange="-1 1"/>', r"actuator 0 \(unnamed.*acts on ball joint 'ball'"),
        ('<adhesion name="stick" body="wrist" ctrlrange="0 1"/>', "acts on body 'wrist'"),
    ],
)
def test_actuators_that_need_joints_refuse_others_by_name(actuators, actuator, instead):
    with pytest.raises(
        ConfigError, match=rf"{type(actuators).__name__} needs .* joint, but .*{instead}.*ModelActuators"
    ):
        arm(actuator, actuators.edit_spec)


KINDS = """
  <motor joint="hinge"/>
  <position joint="hinge" kp="20" kv="2" forcerange="-5 5"/>
  <intvelocity joint="hinge" kp="4" kv="1" forcerange="-5 5"/>
  <velocity joint="hinge" kv="3" forcerange="-5 5"/>
  <damper joint="hinge" kv="2" ctrlrange="0 1"/>
  <muscle joint="hinge" ctrlrange="0 1" lengthrange="0 1" force="10"/>
  <pid joint="hinge" kp="6" kv="2" ki="1" forcerange="-5 5"/>
"""


def changed(drawn, model, field):
    """The places in a field of the model that a randomizer changed, and by which factors."""
    compiled = getattr(model.mj_model, field)
    factor = np.divide(drawn[field], compiled, where=compiled != 0, out=np.ones_like(compiled))
    return {(int(i), int(j)): round(float(factor[i, j]), 5) for i, j in np.argwhere(~np.isclose(factor, 1.0))}


def test_random_gains_change_position_servos_alone():
    model = arm(KINDS)
    gains = randomizers.RandomActuatorGains(kp_factor=(0.5, 0.5), kd_factor=(2.0, 2.0))
    drawn = gains(dataclasses.replace(make_context(), model=model))
    assert changed(drawn, model, "actuator_gainprm") == {(1, 0): 0.5, (2, 0): 0.5}
    servos = {(i, 1): 0.5 for i in (1, 2, 6)} | {(i, 2): 2.0 for i in (1, 2, 6)}
    assert changed(drawn, model, "actuator_biasprm") == servos


def test_random_strength_changes_what_each_kind_can_give_and_no_servos_target():
    model = arm(KINDS)
    drawn = randomizers.RandomMotorStrength(factor=(0.5, 0.5))(dataclasses.replace(make_context(), model=model))
    # The gain of the motor and of the damper, and the muscle's peak force with the scale that it may come from.
    assert changed(drawn, model, "actuator_gainprm") == {(0, 0): 0.5, (4, 2): 0.5, (5, 2): 0.5, (5, 3): 0.5}
    assert changed(drawn, model, "actuator_forcerange") == {(i, side): 0.5 for i in (1, 2, 3, 6) for side in (0, 1)}


@pytest.mark.parametrize("servo", ['<velocity joint="hinge"/>', '<intvelocity joint="hinge"/>'])
def test_random_strength_of_a_servo_without_a_force_range_is_an_error_that_names_it(servo):
    context = dataclasses.replace(make_context(), model=arm(servo))
    with pytest.raises(ConfigError, match=r"force range of actuator 0 \(unnamed, drives joint 'hinge'\)"):
        randomizers.RandomMotorStrength()(context)


@pytest.mark.parametrize(
    ("actuator", "joint", "ctrlrange"),
    [
        ('<motor joint="hinge" gear="2"/>', 'actuatorfrcrange="-6 6"', [-3, 3]),
        ('<motor joint="hinge" gear="-2" forcerange="-1 4"/>', "", [-1, 4]),
        ('<motor joint="hinge" ctrlrange="-5 5"/>', 'actuatorfrcrange="-6 6"', [-5, 5]),
        ('<motor joint="hinge"/>', "", None),
        ('<position joint="hinge"/>', 'actuatorfrcrange="-6 6"', None),
        ('<motor tendon="cord" forcerange="-1 1"/>', "", None),
    ],
)
def test_motor_without_a_control_range_gets_that_of_its_torque_limits(actuator, joint, ctrlrange):
    model = arm(actuator, limit_controls, joint=joint).mj_model
    assert bool(model.actuator_ctrllimited[0]) == (ctrlrange is not None)
    if ctrlrange is not None:
        np.testing.assert_allclose(model.actuator_ctrlrange, [ctrlrange])
