"""`python -m ksim.tools.new`: what it finds in small models, and programs that train."""

import dataclasses
import re
import runpy

import mujoco
import numpy as np
import pytest

import ksim
from examples.robots import HUMANOID, QUADRUPED
from ksim import robot
from ksim.robot import choices
from ksim.robot.describe import grouped, look_at
from ksim.robot.pose import BENT_LEGS, STAYS_UP, bent_pose, find_stance, on_ground, settle
from ksim.tools import new
from ksim.tools.new import mirror_fault
from tests.support.processes import ROOT
from tests.support.robots import BIPED
from tests.support.tasks import WITHOUT_REPORTS, train_iterations

LEG = """
<body name="{name}_hip" pos="{x} {y} 0">
  <joint name="{name}_roll" axis="1 0 0" range="-40 40"/>
  <geom type="sphere" size=".03" mass=".2"/>
  <body name="{name}_thigh">
    <joint name="{name}_pitch" range="-90 90"/>
    <geom fromto="0 0 0 0 0 -.2" mass=".3"/>
    <body name="{name}_shin" pos="0 0 -.2">
      <joint name="{name}_knee" range="-140 -20"/>
      <geom fromto="0 0 0 0 0 -.18" mass=".1"/> <geom type="sphere" size=".02" pos="0 0 -.2" mass=".05"/>
    </body>
  </body>
</body>"""
# Without actuators, sensors, floor, light or keyframe; feet are geoms without a name.
DOG = f"""
<mujoco>
  <default><joint axis="0 1 0" armature=".005" damping=".1"/><geom type="capsule" size=".015"/></default>
  <worldbody>
    <body name="trunk" pos="0 0 .5">
      <freejoint/>
      <geom type="box" size=".2 .08 .04" mass="6"/>
      {LEG.format(name="FL", x=0.18, y=0.1)} {LEG.format(name="FR", x=0.18, y=-0.1)}
      {LEG.format(name="RL", x=-0.18, y=0.1)} {LEG.format(name="RR", x=-0.18, y=-0.1)}
    </body>
  </worldbody>
</mujoco>"""
CART_POLE = """
<mujoco>
  <worldbody>
    <body name="cart">
      <joint name="slide" type="slide" axis="1 0 0" range="-1 1"/>
      <geom type="box" size=".1 .1 .05" mass="1"/>
      <body name="pole">
        <joint name="pole" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 .5" size=".02" mass=".1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slide" ctrlrange="-1 1" gear="10"/></actuator>
</mujoco>"""
ARM = """
<mujoco>
  <worldbody>
    <body name="upper" pos="0 0 .3">
      <joint name="yaw" axis="0 0 1" range="-120 120"/> <joint axis="0 1 0" range="-90 90"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass="1"/>
      <body name="lower" pos=".3 0 0">
        <joint name="elbow" axis="0 1 0" range="-120 120"/>
        <geom type="capsule" fromto="0 0 0 .25 0 0" size=".02" mass=".5"/>
      </body>
    </body>
  </worldbody>
</mujoco>"""


def under_gravity(gravity):
    """The dog, with gravity in m/s^2."""
    return DOG.replace("<mujoco>", f'<mujoco><option gravity="{gravity}"/>')


BALL = '<mujoco><worldbody><body name="ball"><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
HOVERING = """
<mujoco><worldbody><body name="box"><freejoint/><geom size=".1"/>
  <body pos="0 0 .2"><joint axis="0 0 1"/><geom size=".05"/></body>
</body></worldbody></mujoco>"""
IN_A_PLANE = """
<mujoco><worldbody><body name="trunk">
  <joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/><geom size=".1"/>
  <body><joint name="hip" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -.5" size=".02"/></body>
</body></worldbody><actuator><motor joint="hip"/></actuator></mujoco>"""
ONE_LEG = f"""
<mujoco><default><geom type="capsule" size=".1"/></default><worldbody>
  <body name="trunk" pos="0 0 .5"><freejoint/><geom type="sphere"/>
  {LEG.format(name="tail", x=-0.1, y=0)}
</body></worldbody></mujoco>"""
SMALL = {"num_envs": 8, "rollout_length": 4, "tensorboard": False} | WITHOUT_REPORTS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new, "mirror_fault", lambda *_: None)  # takes seconds; a test of its own does that
    return tmp_path


def written(folder, text, name="my_robot.xml"):
    """The task class and its config of the program that is written for a model."""
    (folder / name).write_text(text)
    assert new.main([name]) == 0
    names = runpy.run_path(str(folder / name.replace(".xml", ".py")))
    return names["MyRobot"], names["CONFIG"], names


def task_of(task_class, config, **options):
    return task_class(dataclasses.replace(config, **(SMALL | options)))


def test_legs_of_a_dog_are_found_and_named_by_where_they_are(folder):
    (folder / "dog.xml").write_text(DOG)
    found = robot.look_at(robot.load("dog.xml").compile())
    assert (found.kind, found.base, found.drive, found.imu) == ("legged", "trunk", "none", None)
    assert [leg.name for leg in found.legs] == ["FL", "FR", "RL", "RR"]
    assert found.legs[0].joints == ("FL_roll", "FL_pitch", "FL_knee")
    # The sphere at the end of the shin, not the shin.
    np.testing.assert_allclose(found.legs[0].pos, [0, 0, -0.2], atol=0.01)
    assert found.legs[0].body == "FL_shin"


@pytest.mark.parametrize(("path", "legs"), [(HUMANOID, ["left", "right"]), (QUADRUPED, ["FL", "FR", "RL", "RR"])])
def test_robots_of_the_examples_are_understood(path, legs):
    plan = new.make_plan(path)
    assert [leg.name for leg in plan.findings.legs] == legs
    assert (plan.findings.drive, plan.findings.imu) == ("motors", "imu")
    assert plan.pose_source.startswith("keyframe")
    assert "stood for 3 s" in plan.stands
    assert not plan.torque


def test_three_commands_of_the_page_on_robots_lead_from_a_dog_to_its_policy(folder, capsys, monkeypatch):
    text = (ROOT / "docs/own_robot.md").read_text()
    write, train, view = text.split("<!-- runs: tests/tools/test_new.py -->\n```sh\n")[1].split("```")[0].splitlines()
    (folder / "my_robot.xml").write_text(DOG)
    assert new.main(write.split()[3:]) == 0
    output = capsys.readouterr().out
    assert output.endswith(f"  {train}\n  {view}\n")
    assert "No actuators." in output
    assert "no floor and no light and no sky" in output
    small = ["num_envs=8", "rollout_length=4", "max_iterations=2", "eval_at_end=false", "video=false", "plots=false"]
    monkeypatch.setattr("sys.argv", [*train.split()[1:], *small])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path("my_robot.py", run_name="__main__")
    assert stopped.value.code == 0
    assert (folder / view.partition("checkpoint=")[2] / "checkpoints" / "2").exists()


def test_bends_of_two_legs_lift_each_foot_straight_up_with_its_sole_level(folder):
    task_class, config, names = written(folder, HUMANOID.read_text())
    model = task_of(task_class, config).environment.engine.model.mj_model
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    for bends, foot in zip(names["BENDS"], names["FEET"], strict=True):
        mujoco.mj_kinematics(model, data)
        before_3, turn_33 = data.site(foot.name).xpos.copy(), data.site(foot.name).xmat.copy()
        for joint, bend in bends.items():
            data.joint(joint).qpos += bend
        mujoco.mj_kinematics(model, data)
        lift_3 = data.site(foot.name).xpos - before_3
        np.testing.assert_allclose(lift_3, [0, 0, 1.6 * names["SWING_M"]], atol=0.2 * names["SWING_M"])
        np.testing.assert_allclose(data.site(foot.name).xmat, turn_33, atol=0.08)


@pytest.mark.long
def test_program_for_a_robot_with_a_mirror_image_learns_from_it(folder, capsys, monkeypatch):
    monkeypatch.setattr(new, "mirror_fault", mirror_fault)
    task_class, config, _ = written(folder, DOG)
    assert "Its left is like its right" in capsys.readouterr().out
    assert config.symmetry == "augment"
    assert ("FL_knee", "FR_knee", 1) in task_of(task_class, config).mirror.pairs


def test_program_for_a_lopsided_robot_learns_without_symmetry(folder, capsys):
    _, config, _ = written(folder, DOG.replace('pos="0.18 -0.1 0"', 'pos="0.18 -0.2 0"'))
    assert config.symmetry == "off"
    output = " ".join(capsys.readouterr().out.split())
    assert "so it learns without symmetry: joint 'FL_roll' has no mirror image" in output


def test_program_promises_no_mirror_image_that_its_task_does_not_find(folder, capsys, monkeypatch):
    monkeypatch.setattr(new, "mirror_fault", lambda *_: "Component 0 of observation 'critic/contact' has none")
    _, config, _ = written(folder, DOG)
    assert config.symmetry == "off"
    output = " ".join(capsys.readouterr().out.split())
    assert "so it learns without symmetry: Component 0 of observation 'critic/contact' has none." in output
    assert "Its left is like its right" not in output


def test_fault_of_a_mirror_is_what_the_task_of_a_program_finds(folder):
    (folder / "robot.xml").write_text(BIPED)
    text = """
from pathlib import Path
import ksim
from ksim.mdp import observations, rewards
CONFIG = ksim.PPOConfig(dt=0.004)
class Walker(ksim.PPOTask[ksim.PPOConfig]):
    def get_robot(self):
        return Path(__file__).parent / "robot.xml"
    def get_rewards(self, physics_model):
        return [rewards.Alive(scale=1.0)]
    def get_observations(self, physics_model):
        return [observations.JointPosition(joints=("left_hip", {more}))]
"""
    find = lambda more: mirror_fault(text.format(more=more), "Walker", folder / "program.py")
    assert find('"right_hip"') is None
    assert find("") == (
        "Component 0 of observation 'actor/joint_position' has no mirror image: nothing in that observation has its "
        "value or the negative of it when the robot is mirrored"
    )


@pytest.mark.long
def test_program_for_two_legs_trains(folder):
    task_class, config, _ = written(folder, HUMANOID.read_text())
    _, history = train_iterations(task_of(task_class, config), 1)
    assert np.isfinite(history[-1]["reward/swing_pose"])


def test_gains_in_the_program_are_those_of_the_compiled_servos(folder):
    task_class, config, names = written(folder, DOG)
    model = task_of(task_class, config).environment.engine.model.mj_model
    for i in range(model.nu):
        pattern = "*_" + model.actuator(i).name.split("_")[1]
        np.testing.assert_allclose(model.actuator_gainprm[i, 0], names["STIFFNESS"][pattern])
        np.testing.assert_allclose(-model.actuator_biasprm[i, 2], names["DAMPING"][pattern])
        np.testing.assert_allclose(model.actuator_forcerange[i], np.array([-1, 1]) * names["TORQUE"][pattern])


def test_load_rule_is_the_weight_times_the_reach(folder):
    (folder / "dog.xml").write_text(DOG)
    plan = new.make_plan(folder / "dog.xml")
    # 8.6 kg * 9.81 m/s^2; the corner of a foot's box is 0.22 m below the knee, plus its half diagonal sideways.
    np.testing.assert_allclose(plan.stiffness["*_knee"], 8.6 * 9.81 * 0.22, rtol=0.06)


def test_robots_file_stays_as_it_is(folder):
    written(folder, DOG)
    assert (folder / "my_robot.xml").read_text() == DOG


def test_arm_without_actuators_gets_a_task_to_reach_and_trains(folder):
    task_class, config, names = written(folder, ARM)
    assert names["TIP"][0] == "lower"
    np.testing.assert_allclose(names["TIP"][1], [0.27, 0, 0], atol=1e-3)
    _, history = train_iterations(task_of(task_class, config), 1)
    assert history[-1]["error/target/position_m"] > 0


def test_second_arm_is_named_as_what_the_task_does_not_use(folder, capsys):
    arm = ARM.partition("<worldbody>")[2].partition("</worldbody>")[0]
    second = re.sub('name="', 'name="other_', arm).replace('pos="0 0 .3"', 'pos="0 1 .3"')
    (folder / "my_robot.xml").write_text(f"<mujoco><worldbody>{arm}{second}</worldbody></mujoco>")
    assert new.main(["my_robot.xml"]) == 0
    out = capsys.readouterr().out
    assert "What the joints that lead to 'other_lower' are for" in out.partition("Could not tell")[2]
    (folder / "my_robot.xml").write_text(ARM)
    assert new.main(["my_robot.xml", "--force"]) == 0
    assert "that lead to" not in capsys.readouterr().out


def test_cart_with_a_pole_gets_a_task_to_balance_and_trains(folder):
    task_class, config, names = written(folder, CART_POLE)
    assert names["HIGH"] == pytest.approx(0.52)
    _, history = train_iterations(task_of(task_class, config), 1)
    assert history[-1]["reward/upright"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BALL, "no hinge or slide joint"),
        (HOVERING, "no part that moves relative to it reaches below it|no legs"),
        (ONE_LEG, "only 'tail_shin' reaches near the ground, and one leg does not walk"),
        (IN_A_PLANE, "slide 'z', which nothing drives"),
        ("<mujoco", "cannot read the robot file"),
        (under_gravity("0 0 -1e300"), r"not finite in 32 bits: option gravity"),
        (under_gravity("0 0 -1e30"), r"Gravity \(1e\+30 m/s\^2\) must be between 0\.1 and 100 m/s\^2"),
        (under_gravity("0 0 -1e-30"), r"Gravity \(1e-30 m/s\^2\) must be between 0\.1 and 100 m/s\^2"),
    ],
)
def test_model_without_sense_is_an_error_that_says_what_is_missing(folder, capsys, text, message):
    (folder / "my_robot.xml").write_text(text)
    assert new.main(["my_robot.xml"]) == 2
    error = capsys.readouterr().out
    assert error.startswith("Error: ")
    assert re.search(message, error)
    assert not (folder / "my_robot.py").exists()


def test_robot_that_settles_below_the_ground_is_an_error_with_its_height(folder, capsys, monkeypatch):
    # As one whose feet and floor cannot touch each other.
    settle = lambda *args: dataclasses.replace(find_stance(*args), settled_height=-0.174, stands=True)
    monkeypatch.setattr(choices, "find_stance", settle)
    (folder / "my_robot.xml").write_text(DOG)
    assert new.main(["my_robot.xml"]) == 2
    assert re.search(r"base is -0\.174 m above the ground in .* Check that the feet can touch", capsys.readouterr().out)
    assert not (folder / "my_robot.py").exists()


def test_missing_file_is_an_error(folder, capsys):
    assert new.main(["nothing.xml"]) == 2
    assert "does not exist" in capsys.readouterr().out


def test_program_that_is_there_is_kept_without_force(folder, capsys):
    (folder / "my_robot.xml").write_text(CART_POLE)
    (folder / "my_robot.py").write_text("mine")
    assert new.main(["my_robot.xml"]) == 2
    assert "--force" in capsys.readouterr().out
    assert (folder / "my_robot.py").read_text() == "mine"
    assert new.main(["my_robot.xml", "--force"]) == 0
    assert "class MyRobot" in (folder / "my_robot.py").read_text()


@pytest.mark.parametrize("output", ["my-robot.py", "class.py", "robot.txt", "jax.py", "_.py"])
def test_output_that_python_cannot_import_is_an_error(folder, capsys, output):
    (folder / "my_robot.xml").write_text(CART_POLE)
    assert new.main(["my_robot.xml", "--output", output]) == 2
    assert f"--output ({output})" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("my_robot", "my_robot"),
        ("Spot-v2", "spot_v2"),
        ("3dof", "robot_3dof"),
        ("jax", "jax_robot"),
        ("class", "class_robot"),
    ],
)
def test_name_of_the_program_is_one_that_python_can_import(stem, name):
    assert new.module_name(stem) == name


def test_numbers_that_agree_on_all_sides_share_a_pattern():
    values = {
        "FL_hip": 1.0,
        "FR_hip": 1.02,
        "left_knee": 2.0,
        "right_knee": -2.0,
        "hip_1": 3.0,
        "hip_2": 3.0,
        "neck": 4.0,
    }
    assert grouped(values, digits=2) == {
        "*_hip": 1.0, "left_knee": 2.0, "right_knee": -2.0, "hip_*": 3.0, "neck": 4.0,
    }  # fmt: skip


def test_pose_becomes_the_first_keyframe_and_others_follow():
    spec = mujoco.MjSpec.from_string(DOG)
    spec.add_key(name="lying", qpos=[0, 0, 0.1, 1, 0, 0, 0] + [0.0] * 12)
    robot.set_pose(spec, {"*_knee": -1.2}, height=0.3)
    model = spec.compile()
    assert [model.key(i).name for i in range(model.nkey)] == ["home", "lying"]
    np.testing.assert_allclose(model.key_qpos[0], [0, 0, 0.3, 1, 0, 0, 0] + [0, 0, -1.2] * 4)


def test_motors_on_bodies_apart_from_the_robot_are_left_out_and_named(folder, capsys):
    joints = [f"{leg}_{joint}" for leg in ("FL", "FR", "RL", "RR") for joint in ("roll", "pitch", "knee")]
    motors = "".join(f'<motor joint="{joint}" ctrlrange="-20 20"/>' for joint in joints)
    spare = """<body name="spare" pos="0 0 20"><joint name="spare"/><geom type="sphere" size=".1"/></body>"""
    text = DOG.replace("</worldbody>", f'{spare}</worldbody><actuator>{motors}<motor joint="spare"/></actuator>')
    task_class, config, _ = written(folder, text)
    assert "motors, and left out: 'spare'." in capsys.readouterr().out
    model = task_of(task_class, config).get_robot().compile()
    assert [model.joint(j).name for j in model.actuator_trnid[:, 0]] == joints
    assert 'robot.leave_out(spec, ["spare"])' in (folder / "my_robot.py").read_text()
    found = new.make_plan(folder / "my_robot.xml").findings
    assert (found.drive, found.driven) == ("motors", tuple(joints))


def test_pattern_of_all_joints_is_heeded_by_motors_and_poses():
    spec = mujoco.MjSpec.from_string(DOG)
    robot.add_motors(spec, {"*_knee": 30.0, "*": 20.0})
    robot.set_pose(spec, {"*_knee": -1.2, "*": 0.1}, height=0.3)
    model = spec.compile()
    np.testing.assert_allclose(model.actuator_ctrlrange[:, 1], [20, 20, 30] * 4)
    np.testing.assert_allclose(model.key_qpos[0][7:], [0.1, 0.1, -1.2] * 4)


def test_parts_without_a_name_get_one(folder):
    (folder / "arm.xml").write_text(ARM)
    assert [joint.name for joint in robot.load("arm.xml").joints] == ["yaw", "joint_1", "elbow"]


def test_motors_are_not_added_to_a_model_with_actuators():
    with pytest.raises(ksim.ConfigError, match="actuators of its own"):
        robot.add_motors(mujoco.MjSpec.from_string(CART_POLE), {"slide": 1.0})


FOOTPRINT = """
<mujoco>
  <worldbody>
    <body name="footprint" pos=".3 0 0" quat=".924 0 0 .383">
      <freejoint/> <site name="imu" pos=".1 0 .5"/>
      <frame pos="0 0 .5"><geom type="box" size=".1 .1 .05" mass="5"/></frame>
      <geom type="capsule" fromto="0 0 .5 0 .1 .5" size=".02"/>
      <body name="leg" pos="0 .1 .5">
        <joint name="hip" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.48" size=".02"/>
      </body>
      <body name="other_leg" pos="0 -.1 .5">
        <joint name="other_hip" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.48" size=".02"/>
      </body>
    </body>
  </worldbody>
  <keyframe><key name="turned" qpos="0 0 0 .707107 0 .707107 0 .2"/></keyframe>
</mujoco>"""


def test_raised_base_leaves_the_robot_in_place():
    spec = mujoco.MjSpec.from_string(FOOTPRINT)
    before = spec.copy().compile()
    robot.raise_base(spec, 0.5)
    after = spec.compile()
    places = []
    for model in (before, after):
        data = mujoco.MjData(model)
        for qpos in (model.qpos0, model.key_qpos[0]):
            data.qpos[:] = qpos
            mujoco.mj_forward(model, data)
            places.append(np.concatenate([data.geom_xpos, data.site_xpos, data.xpos[2:], data.xipos[1:]]))
    np.testing.assert_allclose(places[:2], places[2:], atol=1e-6)
    np.testing.assert_allclose(after.qpos0[:3], [0.3, 0, 0.5], atol=1e-6)
    # The keyframe's base lies on its side, so its z axis is the world's x axis.
    np.testing.assert_allclose(after.key_qpos[0][:3], [0.5, 0, 0], atol=1e-6)


@pytest.mark.parametrize("inertia", ["", '<inertial pos="0 0 0" mass="5" diaginertia=".1 .1 .1"/>'])
def test_base_on_the_ground_is_raised_by_the_task(folder, capsys, inertia):
    task, config, _ = written(folder, FOOTPRINT.replace("<freejoint/>", f"<freejoint/>{inertia}"))
    assert "The base's origin is near the ground: the task raises it by 0.5 m." in capsys.readouterr().out
    model = task(config).get_robot().compile()
    np.testing.assert_allclose(model.key_qpos[0][2], 0.5, atol=0.05)


def test_base_is_raised_only_where_there_is_one():
    with pytest.raises(ksim.ConfigError, match="free joint"):
        robot.raise_base(mujoco.MjSpec.from_string(CART_POLE), 0.5)


def test_file_without_gravity_gets_gravity(folder, capsys):
    task, config, _ = written(folder, DOG.replace("<mujoco>", '<mujoco><option gravity="0 0 0"/>'))
    assert "The file has no gravity: the task adds it." in capsys.readouterr().out
    np.testing.assert_allclose(task(config).get_robot().compile().opt.gravity, [0, 0, -9.81])


def test_friction_that_takes_long_is_made_plain(folder, capsys):
    rich = '<mujoco><option cone="elliptic" impratio="100"/><default><geom condim="6"/></default>'
    task, config, _ = written(folder, DOG.replace("<mujoco>\n  <default>", f"{rich}<default>", 1))
    assert "elliptic friction cones" in capsys.readouterr().out
    model = task(config).get_robot().compile()
    assert model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    assert (model.geom_condim <= 3).all()
    assert not robot.use_plain_contacts(mujoco.MjSpec.from_string(DOG))


def dog_with_servos(kp, key=""):
    spec = mujoco.MjSpec.from_string(DOG.replace("</mujoco>", f"{key}</mujoco>"))
    robot.add_ground(spec)
    robot.touch_ground_only(spec)
    robot.use_implicitfast(spec)
    for joint in spec.joints[1:]:
        servo = spec.add_actuator(name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=kp, kv=kp / 20)
    return spec.compile()


@pytest.mark.parametrize(("kp", "stands"), [(200.0, True), (4.0, False)])
def test_pose_stands_only_where_it_settles_near_its_height(kp, stands):
    model = dog_with_servos(kp)
    legs = look_at(model).legs
    qpos = on_ground(model, "trunk", bent_pose(model, "trunk", legs, 0.76))
    ctrl = np.array([qpos[model.joint(i).qposadr[0]] for i in model.actuator_trnid[:, 0]])
    settled, upright_s, is_standing = settle(model, ctrl, qpos, "trunk", legs, is_helped=False)
    assert (is_standing, settled[2] > STAYS_UP * qpos[2]) == (stands, stands)
    assert upright_s > 2.9  # soft servos let it down upright, on its feet


def test_keyframe_of_a_robot_that_lies_is_not_the_pose_to_walk_in():
    lying = f'<keyframe><key name="lying" qpos="0 0 .1 1 0 0 0 {"0 1.5 -2.4 " * 4}"/></keyframe>'
    model = dog_with_servos(200.0, lying)
    hold = lambda qpos: (model, np.array([qpos[model.joint(i).qposadr[0]] for i in model.actuator_trnid[:, 0]]))
    found = look_at(model)
    stance = find_stance(model, "trunk", found.legs, found.joints, hold)
    assert stance.crouches == ("keyframe 'lying'",)
    assert stance.stands
    assert stance.source == BENT_LEGS


def test_solver_gets_iterations_where_the_integrator_is_changed():
    spec = mujoco.MjSpec.from_string(DOG)
    spec.option.iterations, spec.option.ls_iterations = 1, 5
    robot.use_implicitfast(spec)
    assert (spec.option.iterations, spec.option.ls_iterations) == (8, 10)


def test_program_is_driven_for_some_steps_before_it_is_written(folder, capsys):
    written(folder, DOG)
    new.main(["my_robot.xml", "--force"])
    assert "Whether it can learn" not in capsys.readouterr().out
    text = (folder / "my_robot.py").read_text()
    stiff = text
    for name, value in (("STIFFNESS", 1e9), ("DAMPING", 0.0), ("TORQUE", 1e9)):
        stiff, count = re.subn(rf"(?m)^{name} = .*$", f'{name} = {{"*": {value}}}', stiff)
        assert count == 1
    fault = new.drive_fault(stiff, "MyRobot", folder / "my_robot.py")
    assert fault is not None
    assert re.match(r"its physics blew up within 0\.\d+ s of an episode, in steps of 0\.005 s", fault)


@pytest.mark.parametrize(("file_dt", "dt"), [("0.0005", 0.0005), ("0.0003", 0.00025)])
def test_robot_that_blows_up_in_the_usual_physics_steps_gets_those_of_its_file(
    file_dt, dt, folder, capsys, monkeypatch
):
    blows_up = lambda text, *_: "it blew up" if "dt=0.005," in text else None
    monkeypatch.setattr(new, "drive_fault", blows_up)
    _, config, _ = written(folder, DOG.replace("<mujoco>", f'<mujoco><option timestep="{file_dt}"/>'))
    out = capsys.readouterr().out
    assert config.dt == dt
    assert f"Physics steps of {dt:g} s (the file's: {file_dt} s): in steps of 0.005 s its physics blew up." in out
    assert "Whether it can learn" not in out
