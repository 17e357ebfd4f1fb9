"""Torques and gains that the tool guesses, beside what the joints carry."""

import mujoco
import numpy as np
import pytest

from ksim.robot import gains_of
from ksim.robot.describe import look_at
from ksim.robot.plan import torque_limits
from tests.support.model_files import DOG

GRAVITY = 9.81
ARM = """
<mujoco>
  <worldbody>
    <body name="base">
      <geom type="box" size=".1 .1 .1" mass="4"/>
      <body name="upper" pos="0 0 .1">
        <joint name="shoulder" axis="0 1 0" range="-90 90" actuatorfrcrange="-30 30"/>
        <inertial pos=".25 0 0" mass="3" diaginertia=".01 .01 .01"/>
        <body name="lower" pos=".5 0 0">
          <joint name="wrist" axis="0 1 0" range="-90 90" actuatorfrcrange="-7 7" actuatorfrclimited="false"/>
          <inertial pos=".2 0 0" mass="1" diaginertia=".01 .01 .01"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def test_motors_of_an_arm_carry_twice_its_weight_and_a_quarter_of_it_at_the_tip():
    model = mujoco.MjModel.from_xml_string(ARM)
    options = {"limits": {}, "frequency_hz": 0.1}  # too slow to matter
    alone = gains_of(model, model.qpos0, ("shoulder", "wrist"), (), **options).torque
    loaded = gains_of(
        model, model.qpos0, ("shoulder", "wrist"), (), tip=("lower", np.array([0.4, 0, 0.1])), **options
    ).torque
    assert alone["wrist"] == pytest.approx(2 * GRAVITY * 1 * 0.2)
    assert alone["shoulder"] == pytest.approx(2 * GRAVITY * (3 * 0.25 + 1 * 0.7))
    # The robot weighs 8 kg; the tip is 0.41 m from the wrist's axis and 0.906 m from the shoulder's.
    assert loaded["wrist"] - alone["wrist"] == pytest.approx(2 * GRAVITY * 2 * np.hypot(0.4, 0.1))
    assert loaded["shoulder"] - alone["shoulder"] == pytest.approx(2 * GRAVITY * 2 * np.hypot(0.9, 0.1))


def test_limit_that_is_not_credible_widens_the_actions_of_the_models_own_motors_alone():
    model = mujoco.MjModel.from_xml_string(DOG)
    legs = look_at(model).legs
    scale = lambda limits, **options: gains_of(
        model, model.qpos0, ("FL_knee",), legs, limits=limits, frequency_hz=3.0, **options
    ).action_scale["FL_knee"]
    assert scale({"FL_knee": 1000.0}) == scale({})
    assert scale({"FL_knee": 1000.0}, has_motors=True) == 0.4 > scale({})


def test_limit_of_a_joint_that_is_switched_off_is_none():
    assert torque_limits(mujoco.MjSpec.from_string(ARM)) == {"shoulder": 30.0}
