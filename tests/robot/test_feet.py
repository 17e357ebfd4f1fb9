"""Feet of several bodies."""

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim import robot
from ksim.physics import compile_model
from ksim.robot.pose import settle

LEG = """
<body name="{side}_thigh" pos="0 {y} 0">
  <joint name="{side}_hip" axis="0 1 0" stiffness="2000" damping="20"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.03" contype="0" conaffinity="0"/>
  <body name="{side}_heel" pos="0 0 -0.45">
    <joint name="{side}_ankle" axis="0 1 0" stiffness="2000" damping="20"/>
    <geom type="box" pos="-0.03 0 0" size="0.05 0.04 0.02"/>
    <body name="{side}_toe" pos="0.02 0 0">
      <joint name="{side}_toe" axis="0 1 0" stiffness="2000" damping="20"/>
      <geom type="box" pos="0.05 0 {toe_z}" size="0.05 0.04 0.02"/>
    </body>
  </body>
</body>"""


def with_toes(toe_z):
    """A biped of 20 kg on feet of a heel and a toe; the toe is `toe_z` m above the heel."""
    legs = "".join(LEG.format(side=side, y=y, toe_z=toe_z) for side, y in (("left", 0.1), ("right", -0.1)))
    return mujoco.MjSpec.from_string(f"""
<mujoco>
  <option timestep="0.002"/>
  <worldbody>
    <geom type="plane" size="5 5 0.1"/>
    <body name="trunk" pos="0.03 0 0.47">
      <freejoint/>
      <geom type="box" size="0.05 0.1 0.05" pos="0.02 0 0.05" mass="16" contype="0" conaffinity="0"/>
      {legs}
    </body>
  </worldbody>
</mujoco>""")


@pytest.mark.parametrize("toe_z", [0.001, 0.0, -0.001])
def test_foot_of_several_bodies_when_looked_at_is_the_one_that_carries_the_others(toe_z):
    legs = robot.look_at(with_toes(toe_z).compile()).legs
    assert [leg.body for leg in legs] == ["left_heel", "right_heel"]


def test_robot_on_feet_of_heels_and_toes_when_let_go_stands_on_them():
    model = with_toes(0.0).compile()
    legs = robot.look_at(model).legs
    # The box around a foot of a heel from -0.08 to 0.02 m and a toe from 0.02 to 0.12 m, at 0.02 m behind the ankle.
    np.testing.assert_allclose([leg.pos for leg in legs], [[0.02, 0, 0]] * 2, atol=1e-6)
    np.testing.assert_allclose([leg.size for leg in legs], [[0.1, 0.04, 0.02]] * 2, atol=1e-6)
    _, upright_s, stands = settle(model, np.zeros(0), model.qpos0, "trunk", legs, is_helped=True)
    assert upright_s > 2.9
    assert stands


def test_touch_sensor_of_a_foot_when_it_has_a_toe_feels_the_whole_foot():
    spec = with_toes(0.0)
    feet = [robot.Foot(side, f"{side}_heel", (-0.03, 0, 0), (0.06, 0.05, 0.03)) for side in ("left", "right")]
    robot.add_feet(spec, feet)
    model = compile_model(spec, dt=0.002, ctrl_dt=0.02)
    data = mujoco.MjData(model.mj_model)
    mujoco.mj_step(model.mj_model, data, nstep=50)
    mujoco.mj_forward(model.mj_model, data)
    pressing = np.zeros(6)
    on_all_parts = 0.0
    for i in range(data.ncon):
        mujoco.mj_contactForce(model.mj_model, data, i, pressing)
        on_all_parts += pressing[0]
    heels = sum(float(data.sensor(foot.touch).data[0]) for foot in feet)
    assert 0.1 * on_all_parts < heels < 0.9 * on_all_parts
    readings = [model.names.reading(jnp.asarray(data.sensordata, jnp.float32), foot.touch) for foot in feet]
    np.testing.assert_allclose(float(np.sum(readings)), on_all_parts, rtol=1e-4)


def test_base_without_a_name_is_raised():
    spec = with_toes(0.0)
    spec.body("trunk").name = ""
    robot.raise_base(spec, 0.1)
    np.testing.assert_allclose(spec.compile().body_pos[1], [0.03, 0, 0.57])
