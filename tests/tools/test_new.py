"""`python -m ksim.tools.new`: its command line, its errors and the trial of a program."""

import dataclasses
import re
import runpy
import zipfile
from pathlib import Path

import mujoco
import numpy as np
import pytest

from examples import deploy
from ksim.errors import ConfigError
from ksim.host.machine import python_word
from ksim.robot import choices
from ksim.robot.pose import find_stance
from ksim.tools import new
from ksim.tools.new import mirror_fault
from tests.support import urdf
from tests.support.model_files import ARM, CART_POLE, DOG, LEG, written
from tests.support.processes import ROOT
from tests.support.robots import BIPED

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


@pytest.mark.long
def test_three_commands_of_the_page_on_robots_lead_from_a_dog_to_its_policy_which_is_deployed(capsys, monkeypatch):
    monkeypatch.setattr(new, "mirror_fault", lambda *_: None)
    text = (ROOT / "docs/own_robot.md").read_text()
    write, train, view = text.split("<!-- runs: tests/tools/test_new.py -->\n```sh\n")[1].split("```")[0].splitlines()
    Path("my_robot.xml").write_text(DOG)
    assert new.main(write.split()[3:]) == 0
    output = capsys.readouterr().out
    commands = [command.replace("python", python_word(), 1) for command in (train, view)]
    assert output.endswith("".join(f"  {command}\n" for command in commands))
    assert "No actuators." in output
    assert "no floor and no light and no sky" in output
    small = ["num_envs=8", "num_devices=1", "rollout_length=4", "max_iterations=2"]
    small += ["eval_at_end=false", "video=false", "plots=false"]
    monkeypatch.setattr("sys.argv", [*train.split()[1:], *small])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path("my_robot.py", run_name="__main__")
    assert stopped.value.code == 0
    run_dir = Path(view.partition("checkpoint=")[2])
    assert (run_dir / "checkpoints" / "2").exists()
    monkeypatch.setattr("sys.argv", ["my_robot.py", "run_mode=export", f"checkpoint={run_dir}"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path("my_robot.py", run_name="__main__")
    assert stopped.value.code == 0
    deploy.main([str(run_dir / "export" / "policy.onnx"), "--seconds", "0.2"])
    assert "Stood for 0.20 s." in capsys.readouterr().out


def test_urdf_in_a_zip_file_gets_a_free_base_motors_and_a_program_that_starts(capsys):
    with zipfile.ZipFile("four-legs.zip", "w") as archive:
        archive.writestr("dog/urdf/dog.urdf", urdf.DOG.replace('effort="8"', 'effort="1000"', 1))
    assert new.main(["four-legs.zip"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("Unpacked four-legs.zip. The robot's file: four-legs/dog/urdf/dog.urdf\n")
    assert "In the file 'trunk' is fixed to the world: the task gives it a free joint." in output
    assert "as strong as the limits of effort in the file, but for FL_roll guessed, half the robot's weight" in output
    program = runpy.run_path("four_legs.py")
    robot = program["FourLegs"].robot
    assert robot.freed == "trunk"
    assert robot.torque["*_knee"] == 8.0
    assert max(robot.torque.values()) < 20
    # The servos carry the weight: it stands where it starts.
    assert robot.standing_height == pytest.approx(robot.height, abs=0.01)
    assert program["FourLegs"](program["CONFIG"]).get_robot().compile().nu == 12


def test_servos_have_the_natural_frequency_and_damping_ratio_that_are_asked_for(capsys):
    Path("arm.xml").write_text(ARM)
    assert new.main(["arm.xml", "--frequency-hz", "3", "--damping-ratio", "0.7"]) == 0
    robot = runpy.run_path("arm.py")["Arm"].robot
    model = mujoco.MjModel.from_xml_string(ARM)
    data, inertia_vv = mujoco.MjData(model), np.zeros((3, 3))
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, inertia_vv)
    kp, inertia = robot.stiffness["elbow"], inertia_vv[2, 2]
    assert np.sqrt(kp / inertia) / (2 * np.pi) == pytest.approx(3, rel=0.02)
    assert robot.damping["elbow"] / (2 * np.sqrt(kp * inertia)) == pytest.approx(0.7, rel=0.02)
    assert new.main(["arm.xml", "--force", "--frequency-hz", "0"]) == 2
    assert "--frequency-hz (0.0) must be positive" in capsys.readouterr().out


def test_robot_on_wheels_is_refused():
    wheel = '<body name="{0}" pos="0 0 -.2"><joint name="{0}" limited="false"/><geom type="sphere" size=".03"/></body>'
    foot = '<geom type="sphere" size=".02" pos="0 0 -.2" mass=".05"/>'
    text = DOG
    for name in ("w0", "w1", "w2", "w3"):
        text = text.replace(foot, wheel.format(name), 1)
    Path("rover.xml").write_text(text)
    with pytest.raises(ConfigError, match=r"rolls on wheels: w0, w1, w2, w3 turn without end"):
        new.make_plan(Path("rover.xml"))


def test_fault_of_a_mirror_is_what_the_task_of_a_program_finds():
    Path("robot.xml").write_text(BIPED)
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
    find = lambda more: mirror_fault(text.format(more=more), "Walker", Path("program.py").absolute())
    assert find('"right_hip"') is None
    assert find("") == (
        "Component 0 of observation 'actor/joint_position' has no mirror image: nothing in that observation has its "
        "value or the negative of it when the robot is mirrored"
    )


def under_gravity(gravity):
    """The dog, with gravity in m/s^2."""
    return DOG.replace("<mujoco>", f'<mujoco><option gravity="{gravity}"/>')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BALL, "no hinge or slide joint"),
        (HOVERING, "no part that moves relative to it reaches below it|no legs"),
        (ONE_LEG, "only 'tail_shin' reaches near the ground, and one leg does not walk"),
        (IN_A_PLANE, "slide 'x', which nothing drives, it moves in a plane"),
        ("<mujoco", "cannot read the robot file"),
        (under_gravity("0 0 -1e300"), r"not finite in 32 bits: option gravity"),
        (under_gravity("0 0 -1e30"), r"Gravity \(1e\+30 m/s\^2\) must be between 0\.1 and 100 m/s\^2"),
        (under_gravity("0 0 -1e-30"), r"Gravity \(1e-30 m/s\^2\) must be between 0\.1 and 100 m/s\^2"),
    ],
)
def test_model_without_sense_is_an_error_that_says_what_is_missing(capsys, text, message):
    Path("my_robot.xml").write_text(text)
    assert new.main(["my_robot.xml"]) == 2
    error = capsys.readouterr().out
    assert error.startswith("Error: ")
    assert re.search(message, error)
    assert not Path("my_robot.py").exists()


def test_robot_that_settles_below_the_ground_is_an_error_with_its_height(capsys, monkeypatch):
    # As one whose feet and floor cannot touch each other.
    settle = lambda *args: dataclasses.replace(find_stance(*args), settled_height=-0.174, stands=True)
    monkeypatch.setattr(choices, "find_stance", settle)
    Path("my_robot.xml").write_text(DOG)
    assert new.main(["my_robot.xml"]) == 2
    assert re.search(r"base is -0\.174 m above the ground in .* Check that the feet can touch", capsys.readouterr().out)
    assert not Path("my_robot.py").exists()


def test_missing_file_is_an_error(capsys):
    assert new.main(["nothing.xml"]) == 2
    assert "does not exist" in capsys.readouterr().out


def test_program_that_is_there_is_kept_without_force(capsys):
    Path("my_robot.xml").write_text(CART_POLE)
    Path("my_robot.py").write_text("mine")
    assert new.main(["my_robot.xml"]) == 2
    assert "--force" in capsys.readouterr().out
    assert Path("my_robot.py").read_text() == "mine"
    assert new.main(["my_robot.xml", "--force"]) == 0
    assert "class MyRobot" in Path("my_robot.py").read_text()


@pytest.mark.parametrize("output", ["my-robot.py", "class.py", "robot.txt", "jax.py", "_.py"])
def test_output_that_python_cannot_import_is_an_error(capsys, output):
    Path("my_robot.xml").write_text(CART_POLE)
    assert new.main(["my_robot.xml", "--output", output]) == 2
    assert f"--output ({output})" in capsys.readouterr().out


NAMES = {
    "my_robot": "my_robot", "Spot-v2": "spot_v2", "3dof": "robot_3dof", "jax": "jax_robot", "class": "class_robot",
}  # fmt: skip


@pytest.mark.parametrize(("stem", "name"), NAMES.items())
def test_name_of_the_program_is_one_that_python_can_import(stem, name):
    assert new.module_name(stem) == name


@pytest.mark.long
def test_program_is_driven_for_some_steps_before_it_is_written(capsys):
    written(DOG)
    assert "Whether it can learn" not in capsys.readouterr().out
    stiff = Path("my_robot.py").read_text()
    for name, value in (("stiffness", 1e9), ("damping", 0.0), ("torque", 1e9)):
        stiff, count = re.subn(rf"\b{name}={{[^}}]*}}", f'{name}={{"*": {value}}}', stiff)
        assert count == 1
    fault = new.drive_fault(stiff, "MyRobot", Path("my_robot.py"))
    assert fault is not None
    assert re.match(r"its physics blew up within 0\.\d+ s of an episode, in steps of 0\.005 s", fault)


@pytest.mark.long
@pytest.mark.parametrize(("text", "file_dt", "dt"), [(DOG, "0.0005", 0.0005), (ARM, "0.0003", 0.00025)])
def test_robot_that_blows_up_in_the_usual_physics_steps_gets_those_of_its_file(text, file_dt, dt, capsys, monkeypatch):
    blows_up = lambda text, *_: "it blew up" if "dt=" not in text else None
    monkeypatch.setattr(new, "drive_fault", blows_up)
    names = written(text.replace("<mujoco>", f'<mujoco><option timestep="{file_dt}"/>'))
    out = capsys.readouterr().out
    assert names["CONFIG"].dt == dt
    assert f"Physics steps of {dt:g} s (the file's: {file_dt} s): in steps of 0.005 s its physics blew up." in out
    assert "Whether it can learn" not in out


def test_robot_that_blows_up_in_the_steps_of_its_file_too_gets_smaller_ones(monkeypatch):
    monkeypatch.setattr(new, "drive_fault", lambda text, *_: None if "dt=0.0005" in text else "it blew up")
    assert written(ARM.replace("<mujoco>", '<mujoco><option timestep="0.002"/>'))["CONFIG"].dt == 0.0005
