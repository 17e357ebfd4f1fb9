import mujoco
import numpy as np
import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

from ksim.viewer.browser import reward_columns
from ksim.viewer.scene import arrow_mesh, contact_forces, heading
from ksim.viewer.session import Frame, Pose

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


def test_plotted_rewards_end_with_the_newest_frame():
    frames = [Frame(0.0, np.zeros(1), np.zeros(1), {}, None, {}, {"total": float(i)}) for i in range(600)]
    time_t, total_t, missing_t = reward_columns(frames, ["total", "alive"], 0.02)
    assert len(time_t) == 200
    assert (time_t[-1], total_t[-1], total_t[-2]) == (0.0, 599.0, 596.0)
    assert time_t[0] == pytest.approx(-199 * 3 * 0.02)
    assert not missing_t.any()
