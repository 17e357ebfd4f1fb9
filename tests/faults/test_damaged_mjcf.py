"""Damaged robots: an error that names the file, or a task whose physics is finite or contained."""

from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim import ConfigError, cli
from ksim.mdp import rewards, terminations
from ksim.physics import ModelActuators
from ksim.physics.mjcf import MAX_COPIES
from ksim.physics.names import is_physical
from tests.support.damages import damage
from tests.support.processes import exit_code
from tests.support.robots import BIPED
from tests.support.scale import scale
from tests.support.tasks import BipedConfig, BipedTask, Undisturbed

pytestmark = pytest.mark.filterwarnings("ignore:(Inertia matrix|Nan, Inf)")

ROBOT = BIPED.replace(
    "</mujoco>", '<keyframe><key name="home" qpos="0 0 .5 1 0 0 0 0 0" ctrl="0 0"/></keyframe>\n</mujoco>'
)


class DamagedTask(Undisturbed, BipedTask):
    """Few terms, so that most of the time goes into what is damaged."""

    robot: object = "robot.xml"

    def get_robot(self):
        return self.robot

    def get_actuators(self):
        return ModelActuators()

    def get_rewards(self, physics_model):
        return [rewards.Alive()]

    def get_commands(self, physics_model):
        return {}

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=0.2)]


def task_of(robot):
    task = DamagedTask(BipedConfig(num_devices=1, num_envs=4, engine="mujoco", actor_sizes=[4], critic_sizes=[4]))
    task.robot = robot
    return task


def refusal(robot):
    """The error message for a robot, on one line; None if it is accepted."""
    return refusal_of(task_of(robot))


def refusal_of(task):
    message = None
    try:
        task.check()
    except ConfigError as error:
        message = str(error)
    assert message is None or len(message.splitlines()) == 1
    return message


def with_more(element):
    """The robot's file with one more element at its end."""
    Path("robot.xml").write_text(ROBOT.replace("</mujoco>", f"{element}\n</mujoco>"))
    return refusal("robot.xml")


def assert_steps_are_finite_or_contained(task):
    """An env whose physics is not finite must end its episode there, and all that is learned from must be finite."""
    env = task.environment
    keys = jax.random.split(jax.random.key(0), 2)
    state = jax.jit(jax.vmap(env.first_episode))(keys)
    step = jax.jit(jax.vmap(env.step))
    for _ in range(3):
        state = step(state, jnp.ones((2, env.action_size)))
        is_physical_e = np.asarray(jax.vmap(is_physical)(state.inner.physics))
        assert np.all(is_physical_e | np.asarray(state.terminated))
        assert np.isfinite(state.reward).all()


def test_robot_that_is_not_damaged_works():
    Path("robot.xml").write_text(ROBOT)
    assert refusal("robot.xml") is None
    assert_steps_are_finite_or_contained(task_of("robot.xml"))


@pytest.mark.long
def test_damaged_file_is_refused_by_its_name_or_works():
    messages = []
    for seed in range(scale(100, 500)):
        Path("robot.xml").write_text(damage(ROBOT, seed))
        task = task_of("robot.xml")
        message = refusal_of(task)
        if message is None and seed % 25 == 0:
            assert_steps_are_finite_or_contained(task)
        # What is not wrong with the file itself names the task, or the actuator.
        assert message is None or any(word in message for word in ("robot.xml", "DamagedTask", "Actuator")), seed
        messages.append(message)
    assert 0 < messages.count(None) < 0.75 * len(messages)
    assert [path.name for path in Path().iterdir()] == ["robot.xml"]


def test_damaged_spec_is_refused_or_works():
    tried = 0
    for seed in range(1000, 1000 + scale(40, 200)):
        try:
            spec = mujoco.MjSpec.from_string(damage(ROBOT, seed))
        except ValueError:  # in the user's own code
            continue
        tried += 1
        message = refusal(spec)
        assert message is None or "odel" in message or "Actuator" in message or "actuators" in message, (seed, message)
    assert tried > 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_text(""), "MuJoCo cannot read the robot file"),
        (lambda path: path.write_bytes(bytes(range(256)) * 40), "MuJoCo cannot read the robot file"),
        (lambda path: path.write_text(ROBOT[: len(ROBOT) // 2]), "MuJoCo cannot read the robot file"),
        (lambda path: path.write_text("<urdf/>"), "MuJoCo cannot read the robot file"),
        (lambda path: path.symlink_to(path), "does not exist"),
    ],
)
def test_file_that_is_none_is_named(make, words):
    make(Path("robot.xml"))
    message = refusal("robot.xml")
    assert "robot.xml" in message
    assert words in message


@pytest.mark.parametrize("robot", [None, 5, b"robot.xml", {}, ["robot.xml"]])
def test_robot_that_is_neither_file_nor_spec_is_refused(robot):
    assert "get_robot must return the path of an MJCF file, or an MjSpec, not" in refusal(robot)


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ('<asset><mesh name="m" file="none.obj"/></asset>', "none.obj"),
        ('<include file="none.xml"/>', "none.xml"),
        ('<include file="robot.xml"/>', "already included"),
        ('<include file="../../../../../../etc/passwd"/>', "line 34"),
        ('<include file="."/>', "line 34"),
        ('<asset><model name="m" file="none.xml"/></asset>', "none.xml"),
        ('<sensor><gyro site="nowhere"/></sensor>', "nowhere"),
        ('<actuator><motor joint="nothing"/></actuator>', "nothing"),
        ('<keyframe><key qpos="1 2 3 4 5 6 7 8 9 10"/></keyframe>', "invalid qpos size, expected 9, got 10"),
        ('<worldbody><body><joint/><geom size=".1" mass="0"/></body></worldbody>', "mass and inertia"),
        ('<worldbody><body><joint/><geom size=".1" mass="-1"/></body></worldbody>', "mass"),
        ('<option gravity="nan 0 0"/>', "option gravity"),
        ('<worldbody><body name="b" pos="inf 0 0"><geom size=".1"/></body></worldbody>',
         "not finite in 32 bits: body_pos of body 'b'"),
        ('<equality><connect body1="trunk" anchor="nan 0 0"/></equality>', "not finite in 32 bits: eq_data"),
        ('<option><flag sleep="enable"/></option>', "Native MuJoCo cannot simulate the model: sleep"),
        ('<size memory="900T"/>', "Could not allocate memory"),
        ('<plugin plugin="none.none"/>', "robot.xml"),
        # What crashes or hangs MuJoCo is found before it reads the file.
        ('<asset><model name="m" file="robot.xml"/></asset>', "is part of itself"),
        ('<asset><hfield name="h" nrow="2147483647" ncol="2147483647" size="1 1 1 1"/></asset>', 'nrow="2147483647"'),
        ('<asset><hfield name="h" nrow="1e5" ncol="1e5" size="1 1 1 1"/></asset>', "line 34: hfield"),
        ('<worldbody><replicate count="1000000000"><geom size=".1"/></replicate></worldbody>',
         f"more than {MAX_COPIES}"),
        ('<worldbody><replicate count="200"><replicate count="200"/></replicate></worldbody>',
         'replicate count="200" makes more'),
        ('<worldbody><flexcomp name="f" type="grid" count="1000 1000 1000"/></worldbody>', "flexcomp"),
        ('<size nkey="1000000000"/>', "nkey"),
        ('<size nuser_body="1000000000"/>', "nuser_body"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(element, words):
    message = with_more(element)
    assert words in message
    assert "robot.xml" in message or "Native MuJoCo" in words


def test_file_that_is_attached_twice_and_comments_are_no_recursion():
    Path("part.xml").write_text('<mujoco><worldbody><geom size=".1"/></worldbody></mujoco>')
    comment = '<!-- <replicate count="1000000000"> -->'
    twice = '<asset><model name="a" file="part.xml"/><model name="b" file="part.xml"/></asset>'
    assert with_more(comment + twice) is None


def test_files_that_attach_each_other_are_refused():
    Path("part.xml").write_text('<mujoco><asset><model name="r" file="robot.xml"/></asset></mujoco>')
    assert "is part of itself" in with_more('<asset><model name="p" file="part.xml"/></asset>')


def test_robot_without_actuators_is_refused():
    Path("robot.xml").write_text(ROBOT.replace(ROBOT[ROBOT.index("<actuator>") : ROBOT.index("</actuator>") + 11], ""))
    assert "actuators" in refusal("robot.xml") or "keyframe" in refusal("robot.xml")
    spec = mujoco.MjSpec.from_string(BIPED)
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    assert "The robot of DamagedTask has no actuators" in refusal(spec)


def test_robot_without_free_joint_or_floor_works():
    Path("robot.xml").write_text(BIPED.replace('<freejoint name="root"/>', "").replace('type="plane"', 'type="box"'))
    assert refusal("robot.xml") is None
    assert_steps_are_finite_or_contained(task_of("robot.xml"))


def test_model_without_memory_for_its_contacts_is_contained():
    assert with_more('<size memory="1K"/>') is None
    assert_steps_are_finite_or_contained(task_of("robot.xml"))


def test_command_line_refuses_a_damaged_robot_with_one_line_and_leaves_nothing(tmp_path, capsys):
    Path("robot.xml").write_text(ROBOT.replace('range="-60 60"', 'range="nan 60"'))
    assert exit_code(cli.launch, DamagedTask, BipedConfig(num_envs=4, num_devices=1), []) == 2
    (error,) = capsys.readouterr().err.splitlines()
    words = "The model of the robot file robot.xml has a number that is not finite in 32 bits: jnt_range of joint"
    assert error.startswith(f"Error: {words}")
    assert [path.name for path in tmp_path.iterdir()] == ["robot.xml"]
