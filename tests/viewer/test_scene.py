from typing import Any

import mujoco
import numpy as np
import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

import viser

from ksim.physics.rendering import GROUND_RGB, LIMB_RGB, LINE_RGB, TRUNK_RGB, bounding_sphere
from ksim.viewer.scene import (
    BrowserScene,
    arrow_mesh,
    capsule,
    contact_forces,
    geom_rgba,
    heading,
    height_field,
    line_rgb,
    mesh,
    robot_offsets,
)
from ksim.viewer.server import silence
from ksim.viewer.session import Frame, Pose

WORLD = """
<mujoco>
  <asset>
    <texture name="checker" type="2d" builtin="checker" rgb1="1 1 1" rgb2="0 0 0" width="64" height="64"/>
    <material name="floor" texture="checker" rgba="1 .5 .5 1"/>
    <material name="red" rgba="1 0 0 1"/>
    <mesh name="pyramid" vertex="1 1 0  1 -1 0  -1 1 0  -1 -1 0  0 0 2"/>
    <hfield name="ramp" nrow="2" ncol="3" size="3 1 0.5 .1" elevation="0 1 2 0 1 2"/>
  </asset>
  <worldbody>
    <geom type="plane" size="0 0 1" material="floor"/>
    <geom type="hfield" hfield="ramp"/>
    <body pos="1 2 3">
      <freejoint/>
      <geom type="sphere" size=".1" material="red"/>
      <geom type="box" size=".1 .2 .3" rgba="0 1 0 .5" material="red"/>
      <geom type="capsule" size=".1 .2"/>
      <geom type="cylinder" size=".1 .2"/>
      <geom type="ellipsoid" size=".1 .2 .3"/>
      <geom type="mesh" mesh="pyramid"/>
      <geom type="sphere" size="1" group="3"/>
    </body>
  </worldbody>
</mujoco>
"""


def node(server: viser.ViserServer, name: str) -> Any:
    return server.scene.get_handle_by_name(name)


@pytest.fixture(scope="module")
def mj_model():
    return mujoco.MjModel.from_xml_string(WORLD)


@pytest.fixture
def server():
    """A server without a scene."""
    with silence():
        server = viser.ViserServer(host="127.0.0.1", port=18180, verbose=False)
    yield server
    with silence():
        server.stop()


def test_every_shape_is_added_and_collision_groups_are_not(mj_model, server):
    data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, data)
    scene = BrowserScene(server, mj_model, None)
    for geom in range(mj_model.ngeom):
        body = mj_model.geom_bodyid[geom]
        shown = node(server, f"/world/robot_0/body_{body}/geom_{geom}") is not None
        assert shown == (mj_model.geom_group[geom] < 3), geom
    scene.update([data], np.array([1.0, 2.0, 0.0]))
    place_3 = scene.scale * np.array([1, 2, 3])
    np.testing.assert_allclose(node(server, "/world/robot_0/body_1").position, place_3)
    np.testing.assert_allclose(node(server, "/world").position, scene.scale * np.array([-1, -2, 0]))
    # The robot has a radius of 1 in the scene.
    assert scene.scale == pytest.approx(1 / bounding_sphere(mj_model, data)[1])
    sphere, ellipsoid = (node(server, f"/world/robot_0/body_1/geom_{i}") for i in (2, 6))
    np.testing.assert_allclose(sphere.scale * sphere.radius, scene.scale * 0.1)
    np.testing.assert_allclose(ellipsoid.scale, scene.scale * np.array([0.1, 0.2, 0.3]))


def test_colour_is_the_geoms_own_else_its_materials_times_its_texture(mj_model):
    np.testing.assert_allclose(geom_rgba(mj_model, 0), [0.5, 0.25, 0.25, 1], atol=0.01)  # half black, half white
    np.testing.assert_allclose(geom_rgba(mj_model, 1), [0.5, 0.5, 0.5, 1])  # MuJoCo's default
    np.testing.assert_allclose(geom_rgba(mj_model, 2), [1, 0, 0, 1])
    np.testing.assert_allclose(geom_rgba(mj_model, 3), [0, 1, 0, 0.5])


def test_plane_without_a_colour_has_that_of_videos_and_lines_differ_from_it():
    plain = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom type='plane' size='0 0 1'/></worldbody></mujoco>")
    np.testing.assert_allclose(geom_rgba(plain, 0)[:3], np.mean(GROUND_RGB, axis=0))
    np.testing.assert_allclose(line_rgb(np.array(GROUND_RGB[0])), LINE_RGB)
    assert np.abs(line_rgb(np.ones(3)) - 1).min() > 0.2


LIMBS = """
<mujoco>
  <worldbody>
    <geom type="plane" size="0 0 1"/>
    <body name="trunk" pos="0 0 1">
      <freejoint/><geom size=".1"/>
      <body><joint/><geom size=".1"/></body>
      <body><joint/><geom size=".1"/></body>
    </body>
  </worldbody>
</mujoco>
"""


def test_limbs_of_a_robot_without_colours_have_those_of_videos(server):
    mj_model = mujoco.MjModel.from_xml_string(LIMBS)
    BrowserScene(server, mj_model, mj_model.body("trunk").id)
    rgb = [node(server, f"/world/robot_0/body_{i}/geom_{i}").color for i in (1, 2, 3)]
    np.testing.assert_allclose(np.array(rgb) / 255, [TRUNK_RGB, LIMB_RGB[0], LIMB_RGB[1]], atol=0.01)


def test_capsule_is_a_cylinder_with_half_spheres_at_its_ends():
    vertices, faces = capsule(0.1, 0.2)
    np.testing.assert_allclose(vertices.max(axis=0), [0.1, 0.1, 0.3], atol=1e-6)
    np.testing.assert_allclose(vertices.min(axis=0), [-0.1, -0.1, -0.3], atol=1e-6)
    side = np.linalg.norm(vertices[np.abs(vertices[:, 2] - 0.2) < 1e-6][:, :2], axis=1)
    assert len(side) > 8
    np.testing.assert_allclose(side, 0.1, atol=1e-6)
    assert faces.max() < len(vertices)


def test_mesh_has_the_shape_of_its_asset(mj_model):
    vertices, faces = mesh(mj_model, 0)
    assert (len(vertices), len(faces)) == (5, 6)
    np.testing.assert_allclose(sorted(np.ptp(vertices, axis=0)), [2, 2, 2], atol=1e-5)
    assert faces.max() == 4


def test_height_field_rises_along_x(mj_model):
    vertices, faces = height_field(mj_model, 0)
    # Two rows along y, three columns along x; elevations 0, 1, 2 fill the height of 0.5 m.
    np.testing.assert_allclose(vertices[:3], [[-3, -1, 0], [0, -1, 0.25], [3, -1, 0.5]])
    np.testing.assert_allclose(vertices[3:], [[-3, 1, 0], [0, 1, 0.25], [3, 1, 0.5]])
    assert len(faces) == 4
    first, second, third = vertices[faces].transpose(1, 0, 2)
    assert (np.cross(second - first, third - first)[:, 2] > 0).all()


def test_robots_stand_side_by_side_about_the_middle_and_together_on_a_terrain(mj_model):
    flat = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom type='plane' size='0 0 1'/>"
        "<body><freejoint/><geom size='.5'/></body></worldbody></mujoco>"
    )
    offsets = robot_offsets(flat, 4, 0.5)
    np.testing.assert_allclose(offsets.mean(axis=0), 0, atol=1e-9)
    apart = np.linalg.norm(offsets[:, None] - offsets, axis=2) + 10 * np.eye(4)
    assert apart.min() > 1.0  # the robots' width
    assert not robot_offsets(flat, 1, 0.5).any()
    assert not robot_offsets(mj_model, 4, 0.5).any()


BOX = """
<mujoco>
  <worldbody>
    {before}
    <body name="box" pos="0 0 .0999"><freejoint/><geom type="box" size=".1 .1 .1" mass="2"/></body>
    {after}
  </worldbody>
</mujoco>
"""
FLOOR = "<geom type='plane' size='0 0 1'/>"


# The floor is the first geom of a contact or, as a box, the second: the force shown is that on the robot.
@pytest.mark.parametrize(("before", "after"), [(FLOOR, ""), ("", "<geom type='box' size='1 1 .5' pos='0 0 -.5'/>")])
def test_contact_forces_of_a_resting_box_are_its_weight_upwards(before, after):
    mj_model = mujoco.MjModel.from_xml_string(BOX.format(before=before, after=after))
    data = mujoco.MjData(mj_model)
    for _ in range(500):
        mujoco.mj_step(mj_model, data)
    forces_c23 = contact_forces(mj_model, data)
    assert len(forces_c23) == 4
    np.testing.assert_allclose(forces_c23[:, 1].sum(axis=0), [0, 0, 2 * 9.81], atol=0.05)
    np.testing.assert_allclose(forces_c23[:, 0, 2], 0.0, atol=1e-3)


def test_pose_computes_forces_from_the_recorded_actuation():
    # A slide that its actuator presses against the floor by 10 N, besides its weight of 2 kg.
    mj_model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom type='plane' size='0 0 1'/><body pos='0 0 .0999'><joint name='z' type='slide' "
        "axis='0 0 1'/><geom type='sphere' size='.1' mass='2'/></body></worldbody>"
        "<actuator><position joint='z' kp='1000'/></actuator></mujoco>"
    )
    data = mujoco.MjData(mj_model)
    data.ctrl[0] = -0.01
    for _ in range(500):
        mujoco.mj_step(mj_model, data)
    pose = Pose(mj_model)
    pose.show(Frame(1.0, data.qpos.copy(), data.qvel.copy(), {}, data.qfrc_actuator.copy(), {}, {}))
    expected = contact_forces(mj_model, data)[:, 1].sum(axis=0)
    assert expected[2] > 25
    np.testing.assert_allclose(contact_forces(mj_model, pose.data)[:, 1].sum(axis=0), expected, rtol=0.01)


def test_arrow_reaches_from_its_first_point_to_its_second_and_short_ones_are_left_out():
    lines = np.array([[[0, 0, 1.0], [0, 0, 3.0]], [[1, 1, 1], [1, 1, 1.001]]])
    vertices, faces = arrow_mesh(lines, radius=0.1)
    np.testing.assert_allclose([vertices[:, 2].min(), vertices[:, 2].max()], [1, 3], atol=1e-6)
    np.testing.assert_allclose(np.abs(vertices[:, :2]).max(), 0.25, atol=1e-6)  # the head
    assert faces.max() == len(vertices) - 1
    assert [len(x) for x in arrow_mesh(np.zeros((0, 2, 3)), 0.1)] == [0, 0]


def test_heading_is_level():
    mj_model = mujoco.MjModel.from_xml_string(BOX.format(before="", after=""))
    data = mujoco.MjData(mj_model)
    data.qpos[3:] = [np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)]  # a quarter turn to the left
    mujoco.mj_forward(mj_model, data)
    np.testing.assert_allclose(heading(data, 1), [0, 1], atol=1e-9)
