"""Light, sky, paint and the camera's place."""

import mujoco
import numpy as np
import pytest

from ksim.physics.model import compile_model
from ksim.physics.rendering import LIMB_RGB, TRUNK_RGB, add_light_and_sky, frame_robot, painted

ROBOT = """
<mujoco>
  <worldbody>
    <geom type="plane" size="20 20 .1"/>
    <geom type="box" pos="9 0 1" size="1 1 1"/>
    <body name="base" pos="3 2 1">
      <freejoint/>
      <geom size="{size}"/>
      <body pos="0 0 {reach}"><joint/><geom size="{size}"/></body>
    </body>
  </worldbody>
</mujoco>
"""


def make(size, reach):
    model = mujoco.MjModel.from_xml_string(ROBOT.format(size=size, reach=reach))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


@pytest.mark.parametrize("body", [0, 1, 2])
def test_camera_looks_at_the_middle_of_the_robot_and_sees_it_whole(body):
    model, data = make(size=0.1, reach=0.8)
    middle_3, distance = frame_robot(model, data, body)
    np.testing.assert_allclose(middle_3, [3, 2, 1.4])
    half_angle = np.radians(model.vis.global_.fovy) / 2
    assert 0.5 < distance * np.sin(half_angle) < 0.75  # the robot reaches 0.5 m from its middle


def test_distance_goes_with_the_size_of_the_robot():
    _, far = frame_robot(*make(size=0.5, reach=4.0), 1)
    _, near = frame_robot(*make(size=0.005, reach=0.04), 1)
    assert far / near == pytest.approx(100, rel=1e-3)


def test_model_without_geoms_has_a_camera_too():
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom type='plane' size='1 1 1'/></worldbody></mujoco>")
    middle_3, distance = frame_robot(model, mujoco.MjData(model))
    assert np.isfinite(middle_3).all()
    assert distance > 0


def test_every_compiled_model_has_a_light_and_a_sky_and_keeps_its_own():
    spec = mujoco.MjSpec.from_string(ROBOT.format(size=0.1, reach=0.8))
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02).mj_model
    assert model.nlight == 1
    assert model.tex_type.tolist() == [mujoco.mjtTexture.mjTEXTURE_SKYBOX]
    assert not spec.lights  # left as it is
    assert add_light_and_sky(spec) == ["light", "sky"]
    assert add_light_and_sky(spec) == []


PAINT = """
<mujoco>
  <asset>
    <mesh name="tetrahedron" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>
    <material name="steel" rgba=".2 .3 .4 1"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="20 20 .1"/>
    <body name="base">
      <freejoint/>
      <geom name="trunk" size=".1"/>
      <geom name="steel" size=".1" material="steel"/>
      <geom name="red" size=".1" rgba="1 0 0 1"/>
      <body name="left">
        <joint/>
        <geom name="left" size=".1"/>
        <body><joint/><geom name="left_foot" size=".1"/></body>
      </body>
      <body name="right">
        <joint/>
        <geom name="right" size=".1"/>
        <geom name="shell" type="mesh" mesh="tetrahedron" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def test_paint_tells_the_limbs_apart_and_leaves_colours_of_the_file():
    model = mujoco.MjModel.from_xml_string(PAINT)
    before = model.geom_rgba.copy()
    shown = painted(model, model.body("base").id)
    rgb = lambda name: shown.geom(name).rgba[:3]
    np.testing.assert_allclose(rgb("trunk"), TRUNK_RGB)
    np.testing.assert_allclose(rgb("left"), LIMB_RGB[0], atol=1e-6)
    np.testing.assert_allclose(rgb("left_foot"), LIMB_RGB[0], atol=1e-6)
    np.testing.assert_allclose(rgb("shell"), LIMB_RGB[1], atol=1e-6)
    np.testing.assert_allclose(rgb("red"), [1, 0, 0])
    for name in ("steel", "floor"):
        np.testing.assert_array_equal(rgb(name), model.geom(name).rgba[:3])
    np.testing.assert_array_equal(model.geom_rgba, before)  # of the model that is stepped


def test_geoms_to_collide_with_are_hidden_where_a_body_has_meshes_to_be_seen():
    model = mujoco.MjModel.from_xml_string(PAINT)
    shown = painted(model, model.body("base").id)
    hidden = {shown.geom(i).name for i in range(shown.ngeom) if shown.geom_rgba[i, 3] == 0}
    assert hidden == {"right"}
