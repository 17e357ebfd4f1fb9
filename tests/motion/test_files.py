"""Files of reference motions, and the library made of them."""

import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.motion.files import load_library, load_motion, make_library, save_motion
from ksim.motion.motion import Motion
from tests.support.clips import spinning, swaying
from tests.support.contexts import biped


def assert_same_poses(first: Motion, second: Motion) -> None:
    assert first.fps == second.fps
    assert first.joints == second.joints
    for field in ("root_pos", "root_quat", "joint_pos"):
        np.testing.assert_allclose(getattr(first, field), getattr(second, field), atol=1e-6)


def test_saved_motion_is_read_back(tmp_path):
    save_motion(swaying(), tmp_path / "sway.npz")
    motion = load_motion(tmp_path / "sway.npz", biped())
    assert motion.name == "sway"
    assert_same_poses(motion, swaying())


def test_npz_of_qpos_is_read_in_the_order_of_the_model(tmp_path):
    sway = swaying()
    qpos = np.concatenate([sway.root_pos, sway.root_quat, sway.joint_pos], axis=1)
    np.savez(tmp_path / "walk.npz", qpos=qpos, fps=50)
    assert_same_poses(load_motion(tmp_path / "walk.npz", biped()), sway)


def test_csv_is_read_as_lafan1_lays_it_out(tmp_path):
    sway = swaying(fps=30.0)
    xyzw = sway.root_quat[:, [1, 2, 3, 0]]
    np.savetxt(tmp_path / "dance.csv", np.concatenate([sway.root_pos, xyzw, sway.joint_pos], axis=1), delimiter=",")
    assert_same_poses(load_motion(tmp_path / "dance.csv", biped(), fps=30.0), sway)
    assert load_motion(tmp_path / "dance.csv", biped(), fps=60.0).fps == 60.0


def test_joints_are_mapped_by_name_and_those_left_out_stay_at_their_default(tmp_path):
    sway = swaying()
    other = Motion("other", 50.0, ("hip_R", "tail"), sway.root_pos, sway.root_quat, sway.joint_pos)
    save_motion(other, tmp_path / "other.npz")
    motion = load_motion(tmp_path / "other.npz", biped(), joint_names={"hip_R": "right_hip", "tail": None})
    assert motion.joints == ("right_hip",)
    library = make_library([motion], biped(knock_kneed=True))
    np.testing.assert_allclose(library.qpos[:, 7], 0.3, atol=1e-6)  # the left hip's default
    np.testing.assert_allclose(library.qpos[:, 8], sway.joint_pos[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("joint_names", "message"),
    [
        ({}, "no joint 'hip_R'.*Map it in joint_names"),
        ({"hip_L": "left_hip"}, "maps 'hip_L', but .*no such joint"),
        ({"hip_R": "left_hip", "tail": "left_hip"}, "Two joints of .* are mapped to 'left_hip'"),
        ({"hip_R": None, "tail": None}, "moves no joint of the robot"),
    ],
)
def test_joints_when_they_do_not_fit_the_robot_are_an_error(tmp_path, joint_names, message):
    sway = swaying()
    save_motion(Motion("x", 50.0, ("hip_R", "tail"), sway.root_pos, sway.root_quat, sway.joint_pos), tmp_path / "x.npz")
    with pytest.raises(ConfigError, match=message):
        load_motion(tmp_path / "x.npz", biped(), joint_names=joint_names)


POSES = {"fps": 50.0, "root_pos": np.zeros((3, 3)), "root_quat": np.eye(4)[[0, 0, 0]], "joint_pos": np.zeros((3, 2))}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"qpos": np.zeros((3, 9))}, "does not say how many frames per second"),
        ({"fps": 50.0, "qpos": np.zeros((3, 8))}, r"shape \(3, 8\) must be of shape \(frames, 9\)"),
        ({"fps": 50.0, "joint_pos": np.zeros((3, 2))}, "neither 'qpos' nor 'root_pos', 'root_quat'"),
        ({"fps": [], "qpos": np.zeros((3, 9))}, r"fps of shape \(0,\) must be one number"),
        ({"fps": "fast", "qpos": np.zeros((3, 9))}, "fps of type <U4 must be of numbers"),
        ({"fps": 50.0, "qpos": [["a"] * 9]}, "qpos of type <U1 must be of numbers"),
        (POSES | {"root_pos": 0.0}, r"root_pos of shape \(\) must be of shape \(frames, 3\)"),
        (POSES | {"joint_names": "hip"}, r"joint_names of shape \(\) must be a list of names"),
    ],
)
def test_npz_that_is_not_as_it_must_be_is_an_error(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ConfigError, match=message):
        load_motion(tmp_path / "x.npz", biped())


def test_file_when_it_is_missing_or_of_another_kind_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_motion(tmp_path / "x.npz", biped())
    for name, content, message in (
        ("x.bvh", "", "must be an .npz, a .csv or a .pkl"),
        ("x.csv", "a,b", "header must name the base's position x"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigError, match=message):
            load_motion(tmp_path / name, biped())


def test_library_has_the_clips_one_after_the_other_at_the_control_rate(tmp_path):
    save_motion(swaying(11), tmp_path / "long.npz")
    save_motion(swaying(7, fps=30.0), tmp_path / "short.npz")
    library = load_library([tmp_path / "long.npz", tmp_path / "short.npz"], biped(), bin_s=0.08)
    # 0.2 s are 11 frames of 20 ms; so are the 6 / 30 s of the second.
    assert library.names == ("long", "short")
    assert library.first.tolist() == [0, 11]
    assert library.last.tolist() == [10, 21]
    assert library.clip.tolist() == [0] * 11 + [1] * 11
    # Of 10 frames from which an episode may start at most 4 are in a bin.
    assert library.bin[:11].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert library.bin_first.tolist() == [0, 4, 7, 11, 15, 18]
    assert library.bin_size.tolist() == [4, 3, 3, 4, 3, 3]
    np.testing.assert_allclose(library.qvel[:, 0], 1.0, atol=1e-4)


def test_velocities_of_bodies_are_differences_of_their_positions():
    library = make_library([swaying(51)], biped())
    for body in library.body_index(["trunk", "left_leg"]):
        moved = np.gradient(library.body_pos[:, body], 0.02, axis=0)
        np.testing.assert_allclose(library.body_lin_vel[1:-1, body], moved[1:-1], atol=1e-3)
    np.testing.assert_allclose(library.body_ang_vel[:, 1], np.tile([0, 0, 1.0], (51, 1)), atol=1e-4)


def test_poses_of_bodies_are_mujocos():
    library, model = make_library([swaying()], biped()), biped().mj_model
    data = mujoco.MjData(model)
    data.qpos[:] = library.qpos[5]
    mujoco.mj_kinematics(model, data)
    np.testing.assert_allclose(library.body_pos[5], data.xpos, atol=1e-6)


def test_following_bins_stay_within_the_clip():
    library = make_library([swaying(11), swaying(7, name="other")], biped(), bin_s=0.08)
    after_hb, inside_hb = library.following_bins(3)
    # Bins 0 to 2 are of the first clip, 3 and 4 of the second.
    assert after_hb[1].tolist() == [1, 2, 2, 4, 4]
    assert inside_hb[1].tolist() == [True, True, False, True, False]
    assert inside_hb[2].tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("motions", "message"),
    [
        ([], "at least one motion"),
        ([swaying(), swaying()], "Two motions are named 'sway'"),
        ([swaying(2, fps=100.0)], "must last at least a control step"),
        ([spinning(50.0)], "no joint 'hip'"),
    ],
)
def test_library_when_the_motions_make_none_is_an_error(motions, message):
    with pytest.raises(ConfigError, match=message):
        make_library(motions, biped())
