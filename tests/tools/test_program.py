"""Programs that are written for small models: what they do, and that they train."""

import dataclasses
import re
from pathlib import Path

import mujoco
import numpy as np
import pytest

from examples.robots import HUMANOID, QUADRUPED
from ksim.tools import new
from tests.support.model_files import ARM, CART_POLE, DOG, FOOTPRINT, HOPPER, written
from tests.support.tasks import WITHOUT_REPORTS, train_iterations

SMALL = {"num_envs": 8, "num_devices": 1, "rollout_length": 4, "tensorboard": False} | WITHOUT_REPORTS


def task_of(names):
    return names["MyRobot"](dataclasses.replace(names["CONFIG"], **SMALL))


def model_of(names):
    return task_of(names).environment.engine.model.mj_model


@pytest.mark.parametrize(("path", "legs"), [(HUMANOID, ["left", "right"]), (QUADRUPED, ["FL", "FR", "RL", "RR"])])
def test_robots_of_the_examples_are_understood(path, legs):
    plan = new.make_plan(path)
    assert [leg.name for leg in plan.findings.legs] == legs
    assert (plan.findings.drive, plan.findings.imu) == ("motors", "imu")
    assert plan.pose_source.startswith("keyframe")
    assert "stood for 3 s" in plan.stands
    assert not plan.robot.torque


def with_option(option):
    """The dog with other options of MuJoCo."""
    return DOG.replace("<mujoco>", f"<mujoco><option {option}/>", 1)


def in_world(text):
    return text.partition("<worldbody>")[2].partition("</worldbody>")[0]


SECOND_ARM = re.sub('name="', 'name="other_', in_world(ARM)).replace('pos="0 0 .3"', 'pos="0 1 .3"')
INERTIA = '<inertial pos="0 0 0" mass="5" diaginertia=".1 .1 .1"/>'
RAISED = "The base's origin is near the ground: the task raises it by 0.5 m."
RICH_CONTACTS = with_option('cone="elliptic" impratio="100"').replace(
    "<default>", '<default><geom condim="6"/></default><default>', 1
)


def is_raised(config, model):
    return abs(model.key_qpos[0][2] - 0.5) < 0.05


def has_plain_contacts(config, model):
    return model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL and (model.geom_condim <= 3).all()


# The model file, a line of what is printed, and what holds for the program's config and its robot.
FILES = {
    "lopsided": (DOG.replace('pos="0.18 -0.1 0"', 'pos="0.18 -0.2 0"'),
        "so it learns without symmetry: joint 'FL_roll' has no mirror image",
        lambda config, _: config.symmetry == "off"),
    "second arm": (ARM.replace("</worldbody>", f"{SECOND_ARM}</worldbody>"),
        r"Could not tell: .*What the joints that lead to 'other_lower' are for", lambda *_: True),
    "base on the ground": (FOOTPRINT, RAISED, is_raised),
    "base with inertia": (FOOTPRINT.replace("<freejoint/>", f"<freejoint/>{INERTIA}"), RAISED, is_raised),
    "no gravity": (with_option('gravity="0 0 0"'), "The file has no gravity: the task adds it.",
        lambda _, model: np.allclose(model.opt.gravity, [0, 0, -9.81])),
    "friction that takes long": (RICH_CONTACTS, "elliptic friction cones", has_plain_contacts),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "holds"), FILES.values(), ids=FILES)
def test_program_says_what_it_makes_of_a_file_and_does_it(capsys, text, line, holds):
    names = written(text)
    assert re.search(line, " ".join(capsys.readouterr().out.split()))
    assert holds(names["CONFIG"], names["MyRobot"](names["CONFIG"]).get_robot().compile())


@pytest.mark.long
def test_motors_on_bodies_apart_from_the_robot_are_left_out_and_named(capsys):
    joints = [f"{leg}_{joint}" for leg in ("FL", "FR", "RL", "RR") for joint in ("roll", "pitch", "knee")]
    motors = "".join(f'<motor joint="{joint}" ctrlrange="-20 20"/>' for joint in joints)
    spare = """<body name="spare" pos="0 0 20"><joint name="spare"/><geom type="sphere" size=".1"/></body>"""
    text = DOG.replace("</worldbody>", f'{spare}</worldbody><actuator>{motors}<motor joint="spare"/></actuator>')
    model = task_of(written(text)).get_robot().compile()
    assert "motors, and left out: 'spare'." in capsys.readouterr().out
    assert [model.joint(j).name for j in model.actuator_trnid[:, 0]] == joints
    assert 'left_out=("spare",)' in Path("my_robot.py").read_text()
    found = new.make_plan(Path("my_robot.xml")).findings
    assert (found.drive, found.driven) == ("motors", tuple(joints))


@pytest.mark.long
def test_bends_of_two_legs_lift_each_foot_straight_up_with_its_sole_level():
    names = written(HUMANOID.read_text())
    model, robot = model_of(names), names["MyRobot"].robot
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    for bends, foot in zip(robot.bends, robot.feet, strict=True):
        mujoco.mj_kinematics(model, data)
        before_3, turn_33 = data.site(foot.name).xpos.copy(), data.site(foot.name).xmat.copy()
        for joint, bend in bends.items():
            data.joint(joint).qpos += bend
        mujoco.mj_kinematics(model, data)
        lift_3 = data.site(foot.name).xpos - before_3
        np.testing.assert_allclose(lift_3, [0, 0, 1.6 * robot.swing_m], atol=0.2 * robot.swing_m)
        np.testing.assert_allclose(data.site(foot.name).xmat, turn_33, atol=0.08)


@pytest.mark.long
def test_program_for_a_robot_with_a_mirror_image_learns_from_it(capsys):
    names = written(DOG, mirror_fault=new.mirror_fault)
    assert "Its left is like its right" in capsys.readouterr().out
    assert names["CONFIG"].symmetry == "augment"
    assert ("FL_knee", "FR_knee", 1) in task_of(names).mirror.pairs


def test_program_promises_no_mirror_image_that_its_task_does_not_find(capsys):
    names = written(DOG, mirror_fault=lambda *_: "Component 0 of observation 'critic/contact' has none")
    assert names["CONFIG"].symmetry == "off"
    output = " ".join(capsys.readouterr().out.split())
    assert "so it learns without symmetry: Component 0 of observation 'critic/contact' has none." in output
    assert "Its left is like its right" not in output


@pytest.mark.long
def test_program_for_two_legs_trains():
    names = written(HUMANOID.read_text())
    _, history = train_iterations(task_of(names), 1)
    assert np.isfinite(history[-1]["reward/swing_pose"])


def test_gains_in_the_program_are_those_of_the_compiled_servos_and_the_robots_file_stays():
    names = written(DOG)
    assert Path("my_robot.xml").read_text() == DOG
    model, robot = model_of(names), names["MyRobot"].robot
    for i in range(model.nu):
        pattern = "*_" + model.actuator(i).name.split("_")[1]
        np.testing.assert_allclose(model.actuator_gainprm[i, 0], robot.stiffness[pattern])
        np.testing.assert_allclose(-model.actuator_biasprm[i, 2], robot.damping[pattern])
        np.testing.assert_allclose(model.actuator_forcerange[i], np.array([-1, 1]) * robot.torque[pattern])


@pytest.mark.long
def test_load_rule_is_the_weight_times_the_reach():
    Path("dog.xml").write_text(DOG)
    plan = new.make_plan(Path("dog.xml"))
    # 8.6 kg * 9.81 m/s^2; the corner of a foot's box is 0.22 m below the knee, plus its half diagonal sideways.
    np.testing.assert_allclose(plan.robot.stiffness["*_knee"], 8.6 * 9.81 * 0.22, rtol=0.06)


@pytest.mark.long
def test_arm_without_actuators_gets_a_task_to_reach_and_trains(capsys):
    names = written(ARM)
    assert "that lead to" not in capsys.readouterr().out
    body, pos = names["MyRobot"].robot.tip
    assert body == "lower"
    np.testing.assert_allclose(pos, [0.27, 0, 0], atol=1e-3)
    _, history = train_iterations(task_of(names), 1)
    assert history[-1]["error/target/position_m"] > 0


@pytest.mark.long
def test_cart_with_a_pole_gets_a_task_to_balance_and_trains():
    names = written(CART_POLE)
    assert names["MyRobot"].robot.tip_heights[1] == pytest.approx(0.52)
    _, history = train_iterations(task_of(names), 1)
    assert history[-1]["reward/upright"] > 0


@pytest.mark.long
def test_robot_in_a_plane_gets_a_task_to_run_and_trains(capsys):
    names = written(HOPPER)
    assert "no free joint: it moves in a plane" in capsys.readouterr().out
    numbers = names["MyRobot"].robot
    assert (numbers.plane, numbers.height, numbers.forward) == (("x", "z", "y"), 1.0, 1.3)
    task = task_of(names)
    mdp, model = task.environment.mdp, task.environment.engine.model
    assert mdp.observations["actor"]["joint_position"].joints == ("z", "y", "hip", "knee")
    assert task.limbs(model) == ("hip", "knee")
    _, history = train_iterations(task, 1)
    assert 0.1 < history[-1]["error/speed/speed_m_s"] < 4
    assert 0 < history[-1]["reward/track"] < 2
    assert -0.8 <= history[-1]["reward/approach"] < 0


@pytest.mark.parametrize("text", [DOG, ARM, CART_POLE, HOPPER], ids=["legs", "arm", "balance", "plane"])
def test_whole_program_has_the_terms_of_the_library_task_and_imports_no_task(text):
    short, whole = (written(text, "--force", *options) for options in ((), ("--whole",)))
    assert "ksim.tasks" not in Path("my_robot.py").read_text()
    assert whole["MyRobot"].robot == short["MyRobot"].robot
    assert {x.__module__ for x in whole["MyRobot"].mro()[:2]} == {"<run_path>"}
    terms = [task_of(names).environment.mdp for names in (short, whole)]
    for kind in ("rewards", "terminations", "observations", "commands"):
        first, second = ([*getattr(mdp, kind)] for mdp in terms)
        assert first == second, kind
