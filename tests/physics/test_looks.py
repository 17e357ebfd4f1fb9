"""Light, sky and the camera's place."""

import mujoco
import numpy as np
import pytest

from ksim.physics.model import compile_model
from ksim.physics.rendering import add_light_and_sky, frame_robot

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
    assert 0.5 < distance * np.sin(half_angle) < 0.8  # the robot reaches 0.5 m from its middle


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
