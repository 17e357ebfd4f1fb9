from pathlib import Path

import mujoco
import numpy as np
import pytest

import ksim
from ksim import robot
from ksim.physics.actuator_kinds import torque_range
from tests.support.model_files import ARM, CART_POLE, DOG, FOOTPRINT


def test_pose_becomes_the_first_keyframe_and_others_follow():
    spec = mujoco.MjSpec.from_string(DOG)
    spec.add_key(name="lying", qpos=[0, 0, 0.1, 1, 0, 0, 0] + [0.0] * 12)
    robot.set_pose(spec, {"*_knee": -1.2}, height=0.3)
    model = spec.compile()
    assert [model.key(i).name for i in range(model.nkey)] == ["home", "lying"]
    np.testing.assert_allclose(model.key_qpos[0], [0, 0, 0.3, 1, 0, 0, 0] + [0, 0, -1.2] * 4)


def test_height_of_a_pose_is_above_the_floor():
    spec = mujoco.MjSpec.from_string(DOG)
    robot.add_ground(spec, -0.5)
    robot.set_pose(spec, {}, height=0.3)
    assert spec.compile().key_qpos[0][2] == pytest.approx(-0.2)


def test_pattern_of_all_joints_is_heeded_by_motors_and_poses():
    spec = mujoco.MjSpec.from_string(DOG)
    robot.add_motors(spec, {"*_knee": 30.0, "*": 20.0})
    robot.set_pose(spec, {"*_knee": -1.2, "*": 0.1}, height=0.3)
    model = spec.compile()
    np.testing.assert_allclose(model.actuator_ctrlrange[:, 1], [20, 20, 30] * 4)
    np.testing.assert_allclose(model.key_qpos[0][7:], [0.1, 0.1, -1.2] * 4)


def test_added_motors_have_nothing_of_the_files_default_class():
    default = '<default><general gear="50" ctrlrange="-1 1" forcerange="-2 2" armature=".3" damping=".4"/></default>'
    spec = mujoco.MjSpec.from_string(DOG.replace("<worldbody>", f"{default}<worldbody>", 1))
    robot.add_motors(spec, {"*": 20.0})
    assert [torque_range(spec, motor).tolist() for motor in spec.actuators] == [[-20, 20]] * 12
    model = spec.compile()
    assert not model.actuator_armature.any()
    assert not model.actuator_damping.any()


def test_parts_without_a_name_get_one():
    Path("arm.xml").write_text(ARM)
    assert [joint.name for joint in robot.load("arm.xml").joints] == ["yaw", "joint_1", "elbow"]


def in_its_poses(model):
    """The model's data in the reference pose, then in its first keyframe."""
    data = mujoco.MjData(model)
    for qpos in (model.qpos0, model.key_qpos[0]):
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        yield data


def test_raised_base_leaves_the_robot_in_place():
    spec = mujoco.MjSpec.from_string(FOOTPRINT)
    before = spec.copy().compile()
    robot.raise_base(spec, 0.5)
    after = spec.compile()
    parts = lambda data: np.concatenate([data.geom_xpos, data.site_xpos, data.xpos[2:], data.xipos[1:]])
    places = [parts(data) for model in (before, after) for data in in_its_poses(model)]
    np.testing.assert_allclose(places[:2], places[2:], atol=1e-6)
    np.testing.assert_allclose(after.qpos0[:3], [0.3, 0, 0.5], atol=1e-6)
    # The keyframe's base lies on its side, so its z axis is the world's x axis.
    np.testing.assert_allclose(after.key_qpos[0][:3], [0.5, 0, 0], atol=1e-6)


def test_base_is_raised_beside_a_body_that_mujoco_fuses_with_the_world():
    table = '<compiler fusestatic="true"/><worldbody><body name="table" pos="5 0 0"><geom size=".1"/></body>'
    spec = mujoco.MjSpec.from_string(FOOTPRINT.replace("<worldbody>", table, 1))
    at = spec.body("table").pos.copy()
    robot.raise_base(spec, 0.5)
    np.testing.assert_array_equal(spec.body("table").pos, at)
    np.testing.assert_allclose(spec.compile().qpos0[:3], [0.3, 0, 0.5], atol=1e-6)


MOVED = """
<mujoco>
  <worldbody><body name="trunk" pos="0 0 1">
    <joint name="x" type="slide" axis="1 0 0"/> <joint name="z" type="slide" axis="0 0 1"/>
    <joint name="pitch" axis="0 1 0"/> <geom size=".1"/>
    <body name="leg"><joint name="hip" axis="0 1 0"/><geom size=".05" pos="0 0 -.2"/></body>
  </body></worldbody>
  <actuator><motor joint="x"/> <motor name="hip" joint="hip"/></actuator>
  <sensor><jointpos joint="x"/> <jointpos joint="hip"/></sensor>
  <equality><joint joint1="hip" joint2="pitch"/></equality>
  <keyframe><key qpos=".1 .3 .2 .5" ctrl="1 2"/></keyframe>
</mujoco>"""


BY_A_BALL = MOVED.replace('<joint name="pitch" axis="0 1 0"/>', '<joint name="pitch" type="ball"/>').replace(
    '<equality><joint joint1="hip" joint2="pitch"/></equality>', ""
)


@pytest.mark.parametrize("text", [MOVED, BY_A_BALL.replace(".1 .3 .2 .5", ".1 .3 .6 .8 0 0 .5")])
def test_freed_base_keeps_its_poses_and_loses_its_joints_with_all_that_is_on_them(text):
    spec = mujoco.MjSpec.from_string(text)
    before = spec.copy().compile()
    robot.free_base(spec, "trunk")
    after = spec.compile()
    assert (after.nq, after.nu, after.nsensor, after.neq) == (8, 1, 1, 0)
    np.testing.assert_allclose(after.key_ctrl, [[2]])
    places = [data.geom_xpos.copy() for model in (before, after) for data in in_its_poses(model)]
    np.testing.assert_allclose(places[:2], places[2:], atol=1e-9)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda spec: robot.add_motors(spec, {"slide": 1.0}), "actuators of its own"),
        (lambda spec: robot.raise_base(spec, 0.5), "free joint"),
        (lambda spec: robot.free_base(spec, "pole"), "'pole' is part of 'cart'"),
        (lambda spec: robot.free_base(spec, "carriage"), "no body 'carriage'"),
    ],
)
def test_edit_that_does_not_fit_the_model_is_refused(edit, message):
    with pytest.raises(ksim.ConfigError, match=message):
        edit(mujoco.MjSpec.from_string(CART_POLE))


def test_plain_contacts_stay_as_they_are():
    assert not robot.use_plain_contacts(mujoco.MjSpec.from_string(DOG))


def test_solver_gets_iterations_where_the_integrator_is_changed():
    spec = mujoco.MjSpec.from_string(DOG)
    spec.option.iterations, spec.option.ls_iterations = 1, 5
    robot.use_implicitfast(spec)
    assert (spec.option.iterations, spec.option.ls_iterations) == (8, 10)
