"""The robots of the examples are what the headers of their files say."""

import functools

import mujoco
import numpy as np
import pytest

from examples.quadruped import FEET, FEET_TOUCH, LEGS, QuadrupedConfig, QuadrupedTask
from examples.robots import HUMANOID, QUADRUPED
from ksim.physics import compile_model, load_spec

ROBOTS = pytest.mark.parametrize("path", [HUMANOID, QUADRUPED], ids=lambda path: path.stem)


@functools.cache
def robot(path):
    return mujoco.MjModel.from_xml_path(str(path))


def posed(model, joint_pos=None):
    """The robot in its keyframe, or with other positions of its joints there."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    if joint_pos is not None:
        data.qpos[7:] = joint_pos
    mujoco.mj_forward(model, data)
    return data


@functools.cache
def quadruped_under_its_actuators():
    task = QuadrupedTask(QuadrupedConfig())
    edits = [task.get_actuators().edit_spec]
    return compile_model(load_spec(QUADRUPED), dt=task.config.dt, ctrl_dt=task.config.ctrl_dt, edits=edits)


def standing(seconds, push=0.0):
    """The quadruped whose servos hold its keyframe, after a push sideways, in m/s."""
    model = quadruped_under_its_actuators()
    data = posed(model.mj_model)
    data.ctrl = model.default_qpos[7:]
    data.qvel[1] = push
    mujoco.mj_step(model.mj_model, data, nstep=round(seconds / model.dt))
    return data


@ROBOTS
def test_keyframe_is_symmetric_within_the_limits_and_just_above_the_floor(path):
    model = robot(path)
    joints = [model.joint(i) for i in range(1, model.njnt)]
    pose = dict(zip((joint.name for joint in joints), posed(model).qpos[7:].tolist(), strict=True))
    assert all(pose[name] == pose[name.replace("left", "right")] for name in pose)
    assert all(low <= pose[joint.name] <= high for joint in joints for low, high in [joint.range])
    data = posed(model)
    data.qpos[2] -= 1e-3
    mujoco.mj_forward(model, data)
    # At most 1 mm above the floor, and at most 0.5 mm below.
    assert data.ncon > 0
    assert data.contact.dist.min() > -1.5e-3


@ROBOTS
def test_mirrored_pose_has_its_center_of_mass_on_the_other_side(path):
    model = robot(path)
    names = [model.joint(i).name for i in range(1, model.njnt)]
    swapped = {"left": "right", "right": "left"}
    mirror = [names.index("_".join(swapped.get(part, part) for part in name.split("_"))) for name in names]
    pose = posed(model).qpos[7:] + np.random.default_rng(0).uniform(-0.2, 0.2, len(names))
    sign = np.array([-1.0 if name == "waist_yaw" else 1.0 for name in names])
    center_3, mirrored_3 = (posed(model, x).subtree_com[1] for x in (pose, sign * pose[mirror]))
    np.testing.assert_allclose(mirrored_3, center_3 * [1, -1, 1], atol=1e-9)
    assert abs(center_3[1]) > 1e-4


@ROBOTS
def test_parts_of_the_robot_collide_with_the_floor_alone(path):
    model = robot(path)
    floor = model.geom("floor").id
    first, second = np.meshgrid(range(model.ngeom), range(model.ngeom))
    collide = (model.geom_contype[first] & model.geom_conaffinity[second]) != 0
    assert collide.any()
    assert (((first == floor) ^ (second == floor)) | ~collide).all()


def test_quadruped_weighs_14_kg_and_has_12_joints():
    model = robot(QUADRUPED)
    np.testing.assert_allclose(model.body_mass.sum(), 14.0, atol=0.2)
    assert (model.njnt, model.nu) == (1 + 12, 12)


@pytest.mark.parametrize(
    ("joint", "part", "axis", "sign"),
    [
        ("front_left_hip_roll", "front_left_foot", 1, 1),
        ("front_right_hip_roll", "front_right_foot", 1, -1),
        ("rear_left_hip_pitch", "rear_left_knee", 0, -1),
        # Flexion brings the foot of a knee that points backwards up and forwards.
        ("rear_right_knee", "rear_right_foot", 0, 1),
        ("rear_right_knee", "rear_right_foot", 2, 1),
    ],
)
def test_quadrupeds_joints_turn_as_its_file_says(joint, part, axis, sign):
    model = robot(QUADRUPED)
    before, after = posed(model), posed(model)
    after.joint(joint).qpos += 0.1
    mujoco.mj_forward(model, after)
    assert sign * (after.site(part).xpos - before.site(part).xpos)[axis] > 0.005


def test_quadrupeds_foot_is_below_its_hip_where_the_knee_bends_twice_as_far():
    model = robot(QUADRUPED)
    data = posed(model, np.tile([0.0, 0.7, 1.4], 4))
    for leg, foot in zip(LEGS, FEET, strict=True):
        np.testing.assert_allclose(data.site(foot).xpos[:2], data.body(f"{leg}_thigh").xpos[:2], atol=1e-9)


@pytest.mark.parametrize("push", [0.0, 0.5])
def test_quadruped_stands_on_its_four_feet_alone(push):
    data = standing(seconds=4, push=push)
    np.testing.assert_allclose(data.qpos[2], 0.29, atol=0.02)
    np.testing.assert_allclose(data.qpos[4:6], 0, atol=0.03)
    assert np.abs(data.qvel).max() < 0.15
    foot_forces = [data.sensor(name).data[0] for name in FEET_TOUCH]
    # Its weight of 14.1 kg * 9.81 m/s^2, each foot bearing at least half its share.
    np.testing.assert_allclose(sum(foot_forces), 138, rtol=0.03)
    assert min(foot_forces) > 138 / 8
    assert data.sensor("trunk_touch").data[0] == 0


@pytest.mark.parametrize(
    ("leg_pose", "height", "touching", "clear"),
    [
        # On its belly, 0.065 below its middle, with legs folded backwards above it; and on its knees, which are
        # 0.2 * cos(1.0) + 0.026 = 0.134 below. Both are 1 mm deep.
        ([0.0, 1.8, 0.3], 0.064, "trunk_touch", "rear_left_knee_touch"),
        ([0.0, 1.0, 2.6], 0.133, "rear_left_knee_touch", "trunk_touch"),
    ],
)
def test_quadrupeds_sensors_feel_the_part_it_lies_on(leg_pose, height, touching, clear):
    model = robot(QUADRUPED)
    data = posed(model, np.tile(leg_pose, 4))
    data.qpos[2] = height
    mujoco.mj_forward(model, data)
    assert data.sensor(touching).data[0] > 1.0
    assert data.sensor(clear).data[0] == 0.0
