"""Files of other people's tools: what their numbers can be for the robot, and what is asked."""

import os
import pickle

import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ksim.errors import ConfigError
from ksim.motion.files import load_motion, save_motion
from ksim.motion.formats import _by_levels, load_arrays
from ksim.motion.motion import Motion
from ksim.physics import compile_model
from tests.support.clips import swaying
from tests.support.contexts import biped

LEG = """
<body name="{0}_thigh" pos="0 {1} 0">
  <joint name="{0}_hip_joint" axis="0 1 0" range="-60 60"/>
  <geom size=".05" pos="0 0 -.2"/>
  <body name="{0}_shin" pos="0 0 -.2">
    <joint name="{0}_knee_joint" axis="0 1 0" range="-90 90"/>
    <geom size=".05" pos="0 0 -.2"/>
  </body>
</body>"""
TWO_LEGS = f"""
<mujoco><worldbody><body name="trunk" pos="0 0 .5"><freejoint/><geom size=".1"/>
{LEG.format("left", 0.1)}{LEG.format("right", -0.1)}</body></worldbody></mujoco>"""


def two_legs():
    return compile_model(mujoco.MjSpec.from_string(TWO_LEGS), dt=0.005, ctrl_dt=0.02)


def turning(yaw_rad=0.0, num_frames=20):
    """The biped stands and turns by 0.3 rad from a yaw."""
    sway, yaw_t = swaying(num_frames), yaw_rad + np.linspace(0, 0.3, num_frames)
    return Rotation.from_euler("z", yaw_t[:, None]).as_quat(scalar_first=True), np.tile(
        sway.root_pos[0], (num_frames, 1)
    )


def write(path, root_quat, root_pos, joint_pos):
    np.savez(path, fps=50, root_pos=root_pos, root_quat=root_quat, joint_pos=joint_pos)
    return path


@pytest.mark.parametrize("yaw_rad", [0.0, 1.5, 3.0, -1.5])
def test_quaternions_in_the_other_order_are_refused_and_the_option_reads_them(tmp_path, yaw_rad):
    root_quat, root_pos = turning(yaw_rad)
    path = write(tmp_path / "x.npz", root_quat[:, [1, 2, 3, 0]], root_pos, np.zeros((20, 2)))
    with pytest.raises(ConfigError, match=r"order of its quaternions is not certain.*motion_quaternions=wxyz or xyzw"):
        load_motion(path, biped())
    motion = load_motion(path, biped(), quaternions="xyzw")
    np.testing.assert_allclose(motion.root_quat, root_quat, atol=1e-6)


@pytest.mark.parametrize("yaw_rad", [0.0, 0.8, -1.2])
def test_quaternions_in_the_order_of_the_layout_are_read(tmp_path, yaw_rad):
    root_quat, root_pos = turning(yaw_rad)
    motion = load_motion(write(tmp_path / "x.npz", root_quat, root_pos, np.zeros((20, 2))), biped())
    np.testing.assert_allclose(motion.root_quat, root_quat, atol=1e-6)


def test_quaternions_of_a_clip_that_walks_are_told_apart_by_where_it_walks(tmp_path):
    # Turned by 180 degrees, (0, 0, 0, 1) is as upright in both orders, but only in one it walks forward.
    root_quat = np.tile([0.0, 0, 0, 1], (20, 1))
    ahead = np.stack([-np.linspace(0, 1, 20), np.zeros(20), np.full(20, 0.5)], axis=1)
    motion = load_motion(write(tmp_path / "x.npz", root_quat, ahead, np.zeros((20, 2))), biped())
    np.testing.assert_allclose(motion.root_quat, root_quat)
    with pytest.raises(ConfigError, match=r"tilted by 0 degrees on average and moves -1\.00 m forward"):
        load_motion(write(tmp_path / "y.npz", root_quat, ahead * [-1, 1, 1], np.zeros((20, 2))), biped())


def test_angles_in_degrees_are_refused_and_the_option_reads_them(tmp_path, capsys):
    root_quat, root_pos = turning()
    degrees = np.stack([np.linspace(-40, 40, 20), np.linspace(30, 10, 20)], axis=1)
    table = np.concatenate([root_pos, root_quat[:, [1, 2, 3, 0]], degrees], axis=1)
    np.savetxt(tmp_path / "x.csv", table, delimiter=",")
    with pytest.raises(ConfigError, match=r"'left_hip' goes from -40 to 40, but can go from -1\.05 to 1\.05 rad.*=deg"):
        load_motion(tmp_path / "x.csv", biped(), fps=60)
    motion = load_motion(tmp_path / "x.csv", biped(), fps=60, angles="deg")
    np.testing.assert_allclose(motion.joint_pos, np.radians(degrees), atol=1e-6)
    said = capsys.readouterr().out
    assert "20 frames at 60 per second (given)" in said
    assert "quaternions (x, y, z, w), tilted by 0 degrees on average; 2 joints in deg, -0.70 to 0.70 rad" in said


def test_frame_in_which_a_joint_is_far_outside_its_range_is_named_and_not_taken_for_degrees(tmp_path):
    root_quat, root_pos = turning(num_frames=200)
    joint_pos = np.zeros((200, 2))
    joint_pos[17, 1] = 9.0
    path = write(tmp_path / "x.npz", root_quat, root_pos, joint_pos)
    with pytest.raises(ConfigError, match=r"'right_hip' goes from 0 to 9, .* most in frame 17\. Repair it, or set mot"):
        load_motion(path, biped())


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {}, "does not say how many frames per second it has. Give them: motion_fps"),
        ({}, {"fps": 5000.0}, r"at 5000 frames per second the fastest joint moves at .* faster than robots do"),
        ({"root_pos": 100.0}, {"fps": 50.0}, r"at a height of 50, the robot's is 0\.5 m\. Convert"),
        ({"joint_pos": 200.0}, {"fps": 50.0}, "also as degrees. The joints may be in another order"),
        ({}, {"fps": 50.0, "quaternions": "wxzy"}, "quaternions"),
        ({}, {"fps": 50.0, "angles": "grad"}, "angles"),
        ({}, {"fps": -1.0}, "frames per second"),
    ],
)
def test_numbers_that_no_robot_has_are_an_error(tmp_path, changes, arguments, message):
    root_quat, root_pos = turning()
    joint_pos = np.tile(np.linspace(0, 1, 20)[:, None], (1, 2))
    parts = {"root_pos": root_pos, "quat": root_quat[:, [1, 2, 3, 0]], "joint_pos": joint_pos}
    table = [array * changes.get(name, 1.0) for name, array in parts.items()]
    np.savetxt(tmp_path / "x.csv", np.concatenate(table, axis=1), delimiter=",")
    with pytest.raises(ConfigError, match=message):
        load_motion(tmp_path / "x.csv", biped(), **arguments)


def bodies_of(model, qpos_tq, order):
    data, pos, quat = mujoco.MjData(model.mj_model), [], []
    for qpos in qpos_tq:
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model.mj_model, data)
        pos.append(data.xpos[order].copy())
        quat.append(data.xquat[order].copy())
    return {"body_pos_w": np.array(pos), "body_quat_w": np.array(quat)}


def stepping(model):
    qpos_tq = np.tile(model.default_qpos, (10, 1))
    qpos_tq[:, 7:] = np.linspace(0, 1, 10)[:, None] * [0.5, 0.9, -0.4, 0.2]  # hip and knee, left and right
    return qpos_tq


@pytest.mark.parametrize("is_isaac", [False, True])
def test_npz_of_bodies_has_its_joints_in_the_order_that_fits_the_bodies(tmp_path, is_isaac):
    model = two_legs()
    qpos_tq = stepping(model)
    order = _by_levels(model.mj_model) if is_isaac else np.arange(1, model.mj_model.nbody)
    columns = [7, 9, 8, 10] if is_isaac else [7, 8, 9, 10]  # Isaac Lab: both hips, then both knees
    arrays = {"fps": np.array([50]), "joint_pos": qpos_tq[:, columns], **bodies_of(model, qpos_tq, order)}
    np.savez(tmp_path / "x.npz", **arrays)
    motion = load_motion(tmp_path / "x.npz", model)
    np.testing.assert_allclose(motion.joint_pos, qpos_tq[:, 7:])
    np.savez(tmp_path / "y.npz", **arrays | {"joint_pos": qpos_tq[:, [10, 9, 8, 7]]})
    with pytest.raises(ConfigError, match=r"no single order of them puts .* 5 bodies .*motion_joints"):
        load_motion(tmp_path / "y.npz", model)
    names = [
        f"{side}_{joint}" for side, joint in (("right", "knee"), ("right", "hip"), ("left", "knee"), ("left", "hip"))
    ]
    motion = load_motion(tmp_path / "y.npz", model, joints=names)  # without _joint behind them
    np.testing.assert_allclose(motion.joint_pos, qpos_tq[:, 7:])


def test_pickle_of_gmr_is_read(tmp_path):
    model = two_legs()
    qpos_tq = stepping(model)
    content = {
        "fps": 30, "root_pos": qpos_tq[:, :3], "root_rot": qpos_tq[:, [4, 5, 6, 3]].astype(np.float32),
        "dof_pos": qpos_tq[:, 7:], "local_body_pos": None, "link_body_list": ["trunk", "left_thigh"],
    }  # fmt: skip
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
        motion = load_motion(tmp_path / "x.pkl", model)
        assert motion.fps == 30
        np.testing.assert_allclose(motion.root_quat, qpos_tq[:, 3:7])
        np.testing.assert_allclose(motion.joint_pos, qpos_tq[:, 7:])
    lists = {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in content.items()}
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(lists))
    np.testing.assert_allclose(load_motion(tmp_path / "x.pkl", model).joint_pos, qpos_tq[:, 7:])
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(lists | {"dof_pos": [[0.0], [0.0, 1.0]]}))
    with pytest.raises(ConfigError, match=r"cannot be read as arrays in a pickle: .*inhomogeneous"):
        load_motion(tmp_path / "x.pkl", model)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"fps": 30}))
    with pytest.raises(ConfigError, match="must hold 'root_pos', 'root_rot', 'dof_pos', as GMR's do; it has 'fps'"):
        load_motion(tmp_path / "x.pkl", model)


class Harm:
    """Removes a directory as it is unpickled."""

    def __reduce__(self):
        return os.rmdir, ("canary",)


WITH_HARM = np.empty(1, object)
WITH_HARM[0] = Harm()
WHOLE = pickle.dumps({"root_pos": np.zeros((3, 3))})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Harm()), r"it would run \w+\.rmdir"),
        (pickle.dumps({"root_pos": WITH_HARM}), r"it would run \w+\.rmdir"),
        (b"\x80\x04cbuiltins\neval\n(V1+1\ntR.", r"it would run builtins\.eval"),
        (b"\x80\x04cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VO\ntRVx\ntR.", "none of numbers"),
        (b"\x80\x04cnumpy\ndtype\n(VO8\ntR.", "it has a _Number"),
        (b"\x80\x04]r\xff\xff\xff\x7f.", ""),  # an index of 2 GiB, for which unpicklers in C take memory
        (b"\x80\x04(l" + b"0lp" * 1000, ""),
        (WHOLE.replace(b"K\x03K\x03", b"K\xffK\xff"), "cannot reshape"),
        (WHOLE[:60], ""),
        (b"", "EOFError"),
    ],
)
def test_pickle_that_is_hostile_or_damaged_runs_nothing(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "canary").mkdir()
    (tmp_path / "x.pkl").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"(?s)cannot be read as arrays in a pickle.*{message}|must hold 'root_pos'"):
        load_motion(tmp_path / "x.pkl", biped())
    assert (tmp_path / "canary").is_dir()


def test_pickle_of_an_index_of_gigabytes_takes_no_memory():
    assert load_arrays(b"\x80\x04]r\xff\xff\xff\x7f.") == []


def test_csv_with_a_header_is_read_by_its_names(tmp_path):
    qpos_tq = stepping(two_legs())
    columns = {"time": np.arange(10) / 60}
    columns |= {f"root_quat_{x}": qpos_tq[:, 4 + i] for i, x in enumerate("xyz")}
    columns |= {f"root_pos_{x}": qpos_tq[:, i] for i, x in enumerate("xyz")}
    columns |= {"root_quat_w": qpos_tq[:, 3], "right_knee_joint_dof": qpos_tq[:, 10], "left_hip": qpos_tq[:, 7]}
    header = ",".join(columns)
    np.savetxt(tmp_path / "x.csv", np.stack(list(columns.values()), axis=1), delimiter=",", header=header, comments="")
    motion = load_motion(tmp_path / "x.csv", two_legs())
    assert motion.fps == 60
    assert motion.joints == ("left_hip_joint", "right_knee_joint")
    np.testing.assert_allclose(motion.root_quat, qpos_tq[:, 3:7])
    np.testing.assert_allclose(motion.joint_pos, qpos_tq[:, [7, 10]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y,z,qx,qy,qz\n0,0,0,0,0,0", "header must name the base's quaternion w"),
        ("x,x,z\n0,0,0", "two columns 'x'"),
        ("x,y,z,qw,qx,qy,qz,left_hip\n0,0,0,1,0,0,0", "8 numbers in each row after the first, but row 2 has"),
        ("x,y,z,qw,qx,qy,qz,left_hip\n0,0,0,1,0,0,0,a", "but row 2 has"),
        ("t,x,y,z,qw,qx,qy,qz,left_hip\n0,0,0,0,1,0,0,0,0\n0,0,0,0,1,0,0,0,0", "times of column 't' must grow"),
        ("t,x,y,z,qw,qx,qy,qz,k\n0,0,0,0,1,0,0,0,0\n33,0,0,0,1,0,0,0,0", r"0\.0303 frames per second; .* times in s"),
        ("x,y,z,qw,qx,qy,qz,torso_x\n0,0,0,1,0,0,0,0", "columns 'x' and 'torso_x' may both be 'x' of the base"),
        ("x,y,z,qw,qx,qy,qz,k,k_pos\n0,0,0,1,0,0,0,0,0", "columns 'k' and 'k_pos' may both be 'k'"),
        ("x,y,z,qw,qx,qy,qz,root_rotateX\n0,0,0,1,0,0,0,0", "no joint 'root_rotateX'"),
        ("", "no names"),
    ],
)
def test_table_that_is_not_as_it_must_be_is_an_error(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_motion(tmp_path / "x.csv", biped())


SHORT = "<body><joint name='{0}_joint' axis='0 1 0'/><geom size='.1'/></body>"
LONG_G1 = (
    "left_hip", "waist_yaw", "waist_roll", "waist_pitch", "left_wrist_roll", "left_wrist_pitch", "left_wrist_yaw",
)  # fmt: skip


def test_layout_with_fewer_joints_asks_for_their_order(tmp_path):
    joints = "".join(SHORT.format(name) for name in LONG_G1)
    spec = mujoco.MjSpec.from_string(
        f"<mujoco><worldbody><body pos='0 0 .5'><freejoint/><geom size='.1'/>{joints}</body></worldbody></mujoco>"
    )
    model = compile_model(spec, dt=0.005, ctrl_dt=0.02)
    root_quat, root_pos = turning()
    path = write(tmp_path / "x.npz", root_quat, root_pos, np.linspace(0, 0.3, 60).reshape(20, 3))
    given = "left_hip_joint,waist_yaw_joint,left_wrist_roll_joint"
    with pytest.raises(ConfigError, match=rf"Unitree's layout of 3 joints: motion_joints=\[{given}\]"):
        load_motion(path, model)
    assert load_motion(path, model, joints=given.split(",")).joints == tuple(given.split(","))


def test_saved_motion_that_lies_is_told_by_its_way_up(tmp_path):
    # On its back the base is as far from upright in both orders while it does not turn: the option decides.
    lying = np.tile([np.sqrt(0.5), 0, -np.sqrt(0.5), 0], (20, 1))
    motion = Motion("x", 50.0, ("left_hip", "right_hip"), turning()[1], lying, np.zeros((20, 2)))
    save_motion(motion, tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="order of its quaternions is not certain"):
        load_motion(tmp_path / "x.npz", biped())
    np.testing.assert_allclose(load_motion(tmp_path / "x.npz", biped(), quaternions="wxyz").root_quat, lying)
