"""The tracking example and its motions."""

import mujoco
import numpy as np
import pytest

from examples.motions import MOTIONS
from examples.motions.poses import Foot, Keyframe, motion_of
from examples.robots import HUMANOID
from examples.tracking import HumanoidTrackingConfig, HumanoidTrackingTask
from ksim.errors import ConfigError
from ksim.motion.files import save_motion
from ksim.task.mdp import compile_robot
from tests.support.clips import swaying

FEET = [f"{side}_{end}_{edge}" for side in ("left", "right") for end in ("heel", "toe") for edge in ("in", "out")]


@pytest.fixture(scope="module")
def motions():
    task = HumanoidTrackingTask(HumanoidTrackingConfig())
    return task.motions(compile_robot(task, task.config))


def test_motions_of_the_example_are_small():
    assert sum(path.stat().st_size for path in MOTIONS) < 200_000


def test_motions_of_the_example_are_within_the_joints_and_above_the_ground(motions):
    assert motions.names == ("walk", "turn", "squat", "get_up")
    model = mujoco.MjModel.from_xml_path(str(HUMANOID))
    data, low_j, high_j = mujoco.MjData(model), *model.jnt_range[1:].T
    lowest = []
    for qpos in motions.qpos:
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        lowest.append(min(data.geom(name).xpos[2] - model.geom(name).size[0] for name in FEET))
    assert ((motions.qpos[:, 7:] > low_j - 0.05) & (motions.qpos[:, 7:] < high_j + 0.05)).all()
    assert min(lowest) > -0.012
    # A foot is on the ground nearly always.
    assert np.mean(np.array(lowest) < 0.01) > 0.95


def test_squat_keeps_its_feet_where_they_are(motions):
    squat = motions.clip == motions.names.index("squat")
    feet_t = motions.body_pos[squat][:, motions.body_index(["left_foot", "right_foot"])]
    assert np.ptp(feet_t, axis=0).max() < 0.005
    assert np.ptp(motions.qpos[squat, 2]) > 0.25


def test_motion_through_keyframes_passes_through_them():
    model = mujoco.MjModel.from_xml_path(str(HUMANOID))
    left, right = Foot(0.0, 0.1), Foot(0.0, -0.1)
    frames = [Keyframe(t, (0.02, y), height, 0.1, left, right) for t, y, height in ((0, 0, 0.75), (0.2, 0.02, 0.7))]
    motion = motion_of("sway", model, frames)
    assert motion.num_frames == 11
    data = mujoco.MjData(model)
    data.qpos[:] = [*motion.root_pos[-1], *motion.root_quat[-1], *motion.joint_pos[-1]]
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    np.testing.assert_allclose(data.subtree_com[1, :2], [0.02, 0.02], atol=2e-3)
    np.testing.assert_allclose(data.body("left_foot").xpos, [0.0, 0.1, 0.07], atol=2e-3)
    assert data.qpos[2] == pytest.approx(0.7)


def test_pose_that_is_out_of_reach_is_an_error():
    model = mujoco.MjModel.from_xml_path(str(HUMANOID))
    high = [Keyframe(t, (0.0, 0.0), 1.2, 0.0, Foot(0.0, 0.1), Foot(0.0, -0.1)) for t in (0.0, 0.1)]
    with pytest.raises(ValueError, match="out of reach"):
        motion_of("flight", model, high)


def test_motion_of_another_robot_on_the_command_line_is_an_error(tmp_path):
    save_motion(swaying(), tmp_path / "sway.npz")
    with pytest.raises(ConfigError, match="no joint 'left_hip'"):
        HumanoidTrackingTask(HumanoidTrackingConfig(motions=[str(tmp_path / "sway.npz")])).check()
