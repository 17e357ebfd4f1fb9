"""examples/deploy.py drives a robot as ksim does, without it."""

import dataclasses
import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import equinox as eqx
import jax
import mujoco
import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from examples import deploy
from examples.robots import HUMANOID
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask
from ksim import robot
from ksim.mdp import observations, terminations
from ksim.mdp.actions import AbstractActionFilter, ActionSmoothing
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.physics import AbstractActuators, DcMotorActuators, ModelActuators
from ksim.physics.terrain import RoughTile, Terrain
from ksim.policy.export.exporter import described_policy
from ksim.policy.load import policy_context
from ksim.rollout.mdp_environment import MdpEnvironment
from tests.support.exports import exported_files
from tests.support.json_damages import misshapen
from tests.support.robots import ACTUATORS, BIPED
from tests.support.scale import scale
from tests.support.tasks import MESSAGE, BipedConfig, BipedTask, Undisturbed

pytestmark = pytest.mark.filterwarnings(MESSAGE)

SCRIPT = Path(deploy.__file__)
PAGE = (SCRIPT.parents[1] / "docs/deploying.md").read_text()
NUM_STEPS = 50
PLURAL = ("observations", "commands")
"""Entries of the metadata that have names given by the task."""


class QuietWalking(Undisturbed, HumanoidWalkingTask):
    """The walking example without noise, pushes and other friction, which no robot shares with another."""

    def get_observations(self, physics_model):
        groups = super().get_observations(physics_model)
        quiet = lambda term: dataclasses.replace(term, noise=None)
        return {group: {name: quiet(term) for name, term in terms.items()} for group, terms in groups.items()}


OPTIMIZED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""As a user's programs are, unlike those of most tests."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("export"))


def export(out_dir, **compiler_options):
    """The directory of an exported policy that sways the robot a little, and what ksim's environment makes of it."""
    task = QuietWalking(HumanoidWalkingConfig(model="gru", memory_size=16, actor_sizes=[16], critic_sizes=[16]))
    task.environment = env = task.eval_environment
    network = task.initial_learner()[1]
    # From random numbers, or all actions would be near 0.
    keys = iter(jax.random.split(jax.random.key(3), 100))
    network = jax.tree.map(
        lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape) if eqx.is_array(x) else x, network
    )
    model = NormalizedActorCritic(network, ObservationNormalizer.init(task.obs_sizes))
    for name, content in exported_files(task, model, out_dir / "checkpoints/7", out_dir).items():
        (out_dir / name).write_bytes(content)

    def act(state, carry):
        output, carry = model(state.obs, carry)
        action = output.distribution.mode()
        return env.step(state, action), carry, action

    act = jax.jit(act, compiler_options=compiler_options)
    state, carry = jax.jit(env.reset)(jax.random.key(5)), model.initial_carry()
    states, actions = [state], []
    for _ in range(NUM_STEPS):
        state, carry, action = act(state, carry)
        states.append(state)
        actions.append(np.asarray(action))
    assert 0.1 < np.std(actions) < 1
    return out_dir, states, actions


def start(out_dir, state):
    policy = deploy.Policy(out_dir / "policy.onnx")
    robot = deploy.Robot(HUMANOID, policy.metadata)
    robot.command["velocity"] = np.asarray(state.inner.commands["velocity"])
    robot.reset(np.asarray(state.inner.physics.qpos), np.asarray(state.inner.physics.qvel))
    return policy, robot


def differences(out_dir, states, actions, *, read_sensors_anew=False):
    """The largest difference of each action from the expected action, and the final positions."""
    policy, robot = start(out_dir, states[0])
    found = []
    for expected in actions:
        action = policy(deploy.observe(robot, policy.metadata))
        found.append(np.abs(action - expected).max())
        robot.step(action)
        if read_sensors_anew:
            mujoco.mj_forward(robot.model, robot.data)
    return np.array(found), robot.data.qpos


@pytest.mark.long  # rounding of programs that are not optimized parts the two simulations sooner
def test_its_actions_are_those_of_ksims_own_environment_from_the_same_state(tmp_path):
    # Between control steps ksim keeps the state in float32, which rounds a velocity of 10 rad/s by 5e-7 rad/s; with
    # every step the two simulations part a little more.
    exported = export(tmp_path, **OPTIMIZED)
    found, qpos = differences(*exported)
    assert (found[:5] < 5e-6).all()
    assert (found < 1e-4).all()
    np.testing.assert_allclose(qpos, exported[1][-1].inner.physics.qpos, atol=1e-4)


class Driven(Undisturbed, BipedTask):
    """A biped in which nothing is left to chance but the state it starts from."""

    xml: str = BIPED
    actuators: AbstractActuators = ACTUATORS
    filters: Mapping[str, AbstractActionFilter] = MappingProxyType({})

    def get_robot(self):
        return mujoco.MjSpec.from_string(self.xml)

    def get_actuators(self):
        return self.actuators

    def get_action_filters(self, physics_model):
        return self.filters

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=10.0)]


class DcMotors(Driven):
    """Motors that have no torque left at 3 rad/s."""

    actuators = DcMotorActuators(kp=40.0, kd=0.1, no_load_speed=3.0, action_scale=0.5)


class Filtered(Driven):
    """Actuators whose MJCF has a filter and a gear, which the training's servos have not, and an inertia."""

    filtered = '<general dyntype="filter" dynprm=".1" actrange="-9 9" forcerange="-20 20"'
    xml = BIPED.replace("<motor", f'{filtered} gear="2" armature=".05"')


class Smoothed(Driven):
    """Two filters, one after the other."""

    filters = MappingProxyType({"first": ActionSmoothing(time_constant_s=0.1), "then": ActionSmoothing()})


class SlowServos(Driven):
    """Servos that follow their targets with a delay, and a keyframe in which they have arrived."""

    key = '<keyframe><key time="2" qpos="0 0 .5 1 0 0 0 .3 -.3" act=".3 -.3"/></keyframe></mujoco>'
    xml = re.sub("<motor(.*)ctrlrange=.*/>", r'<position\1kp="40" timeconst=".1"/>', BIPED).replace("</mujoco>", key)
    actuators = ModelActuators()


class ReplacedServos(SlowServos):
    """The same, with the training's servos in their place, which have no activations."""

    xml = SlowServos.xml.replace("timeconst=", 'inheritrange="1" forcerange="-20 20" timeconst=').replace(
        ' act="', ' ctrl=".3 -.3" act="'
    )
    actuators = ACTUATORS


class Controllers(Driven):
    """Actuators that take two controls each: a position and a velocity."""

    xml = re.sub("<motor(.*)ctrlrange=.*/>", r'<pid\1kp="40" kv="1" velrange="-2 2"/>', BIPED)
    actuators = ModelActuators()


class Rebuilt(Driven):
    """A robot of which training changes almost everything: its file has its origin on the ground and lacks the rest."""

    xml = """
    <mujoco>
      <option cone="elliptic" impratio="10" gravity="0 0 0" solver="CG" iterations="100"/>
      <worldbody>
        <body name="trunk">
          <freejoint/>
          <geom type="box" pos="0 0 .5" size=".1 .15 .1" mass="5" condim="6"/>
          <geom name="logo" size=".02" pos="0 0 .6" contype="0" conaffinity="0"/>
          <body pos="0 .1 .4">
            <joint axis="0 1 0" range="-60 60"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
            <geom type="sphere" pos="0 0 -.35" size=".05" mass=".2"/>
          </body>
          <body name="right" pos="0 -.1 .4">
            <joint name="right_hip" axis="0 1 0" range="-60 60"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
            <geom type="sphere" pos="0 0 -.35" size=".05" mass=".2"/>
          </body>
        </body>
      </worldbody>
    </mujoco>"""

    def get_robot(self):
        Path("rebuilt.xml").write_text(self.xml)
        spec = robot.load("rebuilt.xml")
        robot.add_gravity(spec)
        robot.raise_base(spec, 0.5)
        robot.add_ground(spec, height=0.02)
        robot.add_motors(spec, {"right_hip": 20.0, "joint_*": 20.0})
        robot.touch_ground_only(spec)
        robot.use_implicitfast(spec)
        robot.use_plain_contacts(spec)
        robot.add_feet(spec, [robot.Foot("foot", "right", pos=(0, 0, -0.35), size=(0.06, 0.06, 0.06))])
        robot.add_imu(spec, "trunk")
        robot.set_pose(spec, {"right_hip": 0.3}, 0.5)
        spec.option.iterations, spec.option.solver = 6, mujoco.mjtSolver.mjSOL_NEWTON
        spec.delete(spec.geom("logo"))
        spec.body("right").add_geom(name="toe", size=[0.04, 0, 0], pos=[0.05, 0, -0.35], contype=0, mass=0.1)
        return spec

    def get_observations(self, physics_model):
        return [observations.ImuGyro(site="imu"), observations.JointPosition(), observations.ImuAccelerometer("imu")]


class OnRough(Driven):
    """A biped on a terrain, which no file holds."""

    def get_terrain(self):
        return Terrain(tiles=(RoughTile(),), num_levels=1, tile_m=2.0, border_m=1.0)


class TwiceTheCurve(DcMotorActuators):
    """Motors whose curve is the user's own."""

    def motor_curve(self, model):
        curve = super().motor_curve(model)
        return lambda velocity, force_range: curve(2 * velocity, force_range)


class OwnCurve(Driven):
    """A biped with such motors."""

    actuators = TwiceTheCurve()


def described(task):
    """The metadata of a task's policy, as in its files."""
    model = NormalizedActorCritic(task.initial_learner()[1], ObservationNormalizer.init(task.obs_sizes))
    _, metadata = described_policy(policy_context(task), model, Path("checkpoints/7"), Path())
    return json.loads(json.dumps(metadata))


@pytest.fixture(scope="module", params=[DcMotors, Filtered, Smoothed], ids=lambda cls: cls.__name__)
def driven(request, tmp_path_factory):
    return recorded(request.param, tmp_path_factory.mktemp("robot"))


def recorded(task_class, directory):
    """A robot file, the metadata, and positions of ksim's environment under large actions, by time."""
    task = task_class(BipedConfig(num_devices=1))
    task.environment = env = task.eval_environment
    path = directory / "robot.xml"
    path.write_text(task.xml)
    action_ta = np.random.default_rng(0).normal(size=(20, env.action_size)).astype(np.float32)
    state, step = jax.jit(env.reset)(jax.random.key(0)), jax.jit(env.step)
    states = [state]
    for action in action_ta:
        states.append(step(states[-1], action))
    return path, described(task), action_ta, [state.inner.physics for state in states]


def farthest(path, metadata, action_ta, physics_t):
    """The largest deviation of a robot from ksim's under the same actions."""
    robot = deploy.Robot(path, metadata)
    force_range = robot.model.actuator_forcerange.copy()
    for _ in range(3):
        robot.step(np.ones(len(action_ta[0])))
    robot.reset(np.asarray(physics_t[0].qpos), np.asarray(physics_t[0].qvel))
    np.testing.assert_array_equal(robot.model.actuator_forcerange, force_range)  # of motors at rest
    found = []
    for action, physics in zip(action_ta, physics_t[1:], strict=True):
        robot.step(action)
        found.append(np.abs(robot.data.qpos - physics.qpos).max())
    return max(found)


def test_a_robot_is_driven_as_in_the_training(driven):
    assert farthest(*driven) < 1e-4


@pytest.mark.parametrize("task_class", [ReplacedServos, Controllers])
def test_a_robot_whose_file_has_activations_or_several_controls_is_driven_as_in_the_training(task_class, tmp_path):
    assert farthest(*recorded(task_class, tmp_path)) < 1e-4


def test_a_robot_is_driven_otherwise_without_what_the_metadata_say_of_it(driven):
    path, metadata, *recorded = driven
    model = metadata["model"]
    gear = {"actuator_gear": 2 * np.array(model["fields"]["actuator_gear"])} if "general" in path.read_text() else {}
    without = {
        "actuators": metadata["actuators"] | {"motor_curve": None},
        "model": model | {"fields": model["fields"] | gear},
        "action_filters": {},
    }
    assert farthest(path, metadata | without, *recorded) > 1e-2


LOOKS = ("bvh_", "cam_", "key_", "light_", "mat_", "name", "sensor_", "skin_", "tex_", "text_")
"""Fields of a model that do not change how it moves: looks, names, keyframes, and boxes for a faster search."""


def parts_that_differ(first, second):
    """The fields and options in which two models are not the same numbers."""
    other = {"geom_group", "geom_matid", "geom_rgba", "geom_user", "body_sameframe", "geom_sameframe", "site_sameframe"}
    other |= {"site_group", "site_matid", "site_rgba", "paths", "_sizes"}
    fields = [name for name in dir(first) if isinstance(getattr(first, name, None), np.ndarray)]
    fields = [name for name in fields if not name.startswith(LOOKS) and name not in other]
    found = [name for name in fields if not np.array_equal(getattr(first, name), getattr(second, name))]
    options = [name for name in dir(first.opt) if not name.startswith("_") and name != "disableflags"]
    return found + [name for name in options if not np.array_equal(getattr(first.opt, name), getattr(second.opt, name))]


def trained(task):
    """The model that a task's evaluations run in."""
    env = task.eval_environment
    assert isinstance(env, MdpEnvironment)
    return env.engine.model.mj_model


def test_an_episode_of_a_robot_that_training_changed_is_that_of_the_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = Rebuilt(BipedConfig(num_devices=1))
    task.environment = env = task.eval_environment
    metadata = described(task)
    (tmp_path / "robot.xml").write_text(task.xml)
    mine, num_contacts = deploy.Robot(tmp_path / "robot.xml", metadata), 0
    assert parts_that_differ(trained(task), mine.model) == []
    state, step = jax.jit(env.reset)(jax.random.key(0)), jax.jit(env.step)
    mine.reset(*(np.asarray(x) for x in (state.inner.physics.qpos, state.inner.physics.qvel)))
    for action in np.random.default_rng(0).normal(size=(25, env.action_size)).astype(np.float32):
        np.testing.assert_allclose(deploy.observe(mine, metadata)["obs"], state.obs["actor"], rtol=1e-4, atol=1e-3)
        mine.step(action)
        state = step(state, action)
        np.testing.assert_allclose(mine.data.qpos, state.inner.physics.qpos, atol=1e-4)
        num_contacts += mine.data.ncon
    assert num_contacts > 0  # on the floor that its file lacks


def test_a_robot_of_the_original_file_is_not_that_of_the_training(tmp_path, monkeypatch):
    # Otherwise the test above would not notice.
    monkeypatch.chdir(tmp_path)
    task = Rebuilt(BipedConfig(num_devices=1))
    task.get_robot()
    alone = mujoco.MjModel.from_xml_string(task.xml)
    differ = parts_that_differ(trained(task), alone)
    assert {"geom_contype", "geom_condim", "body_ipos", "integrator", "cone", "gravity", "iterations"} <= set(differ)


def test_a_file_that_cannot_become_the_model_of_the_training_is_refused_with_what_differs(driven, tmp_path):
    path, metadata, *_ = driven
    text = path.read_text().replace("<sensor>", '<contact><exclude body1="trunk" body2="left_leg"/></contact><sensor>')
    (tmp_path / "other.xml").write_text(text)
    with pytest.raises(SystemExit, match=r"cannot be made into the model of the training: exclude_signature would be"):
        deploy.Robot(tmp_path / "other.xml", metadata)


def test_a_policy_of_a_terrain_deploys_on_its_files_floor(tmp_path):
    task = OnRough(BipedConfig(num_devices=1))
    task.environment = task.eval_environment
    (tmp_path / "robot.xml").write_text(BIPED)
    metadata = described(task)
    assert metadata["model"]["on_terrain"]
    assert deploy.Robot(tmp_path / "robot.xml", metadata).model.geom("floor").type == mujoco.mjtGeom.mjGEOM_PLANE


@pytest.mark.parametrize(("height", "has_fallen"), [(0.5, False), (0.3, False), (0.2, True), (-19.4, True)])
def test_a_robot_that_sinks_by_half_its_height_has_fallen(driven, height, has_fallen):
    # Its centre of mass is 5 * 0.5 + 2 * 1 * 0.25 + 2 * 0.2 * 0.05 = 3.02 kg m above the ground, or 0.41 m.
    robot = deploy.Robot(*driven[:2])
    assert not robot.has_fallen
    robot.data.qpos[2] = height
    assert robot.has_fallen == has_fallen


def test_a_robot_starts_with_the_activations_of_its_keyframe(tmp_path):
    task = SlowServos(BipedConfig(num_devices=1))
    task.environment = task.eval_environment
    path = tmp_path / "robot.xml"
    path.write_text(task.xml)
    robot = deploy.Robot(path, described(task))
    for _ in range(2):
        np.testing.assert_array_equal(robot.data.act, [0.3, -0.3])
        assert robot.time_s == 0
        robot.step(np.ones(2))
        robot.reset()


def test_actuators_with_a_curve_of_their_own_are_refused(driven):
    task = OwnCurve(BipedConfig(num_devices=1))
    task.environment = task.eval_environment
    metadata = described(task)
    assert "TwiceTheCurve.motor_curve" in metadata["actuators"]["motor_curve"]["class"]
    with pytest.raises(SystemExit, match=r"test_deploy\.TwiceTheCurve are custom: implement them in Robot"):
        deploy.Robot(driven[0], metadata)


def test_sensors_read_what_they_did_before_the_last_physics_step_as_in_training(exported):
    # Otherwise the test above would not notice; the gyro's reading is 5 ms older than the rest.
    found, _ = differences(*exported, read_sensors_anew=True)
    assert found[0] < 5e-6
    assert found[1:].max() > 1e-3


def test_every_observation_of_the_walking_example_is_computed_as_ksim_does(exported):
    out_dir, states, actions = exported
    policy, robot = start(out_dir, states[0])
    for state, action in zip(states[:10], actions[:10], strict=True):
        obs = deploy.observe(robot, policy.metadata)["obs"]
        for term in policy.metadata["observations"]["actor"]["terms"]:
            place = slice(term["start"], term["start"] + term["size"])
            np.testing.assert_allclose(obs[place], state.obs["actor"][place], atol=1e-4, err_msg=term["name"])
        robot.step(action)


def test_it_runs_without_jax_and_without_ksim(exported, tmp_path):
    code = """
import runpy, sys
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("loaded:", {name.split(".")[0] for name in sys.modules} & {"jax", "jaxlib", "ksim", "equinox"})
"""
    command = [sys.executable, "-c", code, str(SCRIPT), str(exported[0] / "policy.onnx")]
    options = ["--command", "0.5", "0", "0.1", "--seconds", "0.4"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "loaded: set()" in done.stdout
    assert "Command: velocity [0.5, 0.0, 0.1]\nStood for 0.40 s.\nMoved " in done.stdout
    assert " m forward and " in done.stdout


def test_it_asks_for_the_middle_of_the_commands_ranges_if_not_told(exported, capsys):
    deploy.main([str(exported[0] / "policy.onnx"), "--seconds", "0.04"])
    assert "velocity [0.5, 0.0, 0.0]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "inf"], "--seconds must be above 0 and below 1e6"),
        (["--command", "nan", "0", "0"], "the numbers of --command must be finite"),
        (["--command", "1"], "command 'velocity' has 3 numbers, but --command has 1"),
        (["--robot", "nowhere.xml"], "no robot file nowhere.xml; give the MJCF file of the training with --robot"),
        (["--robot", str(HUMANOID.with_name("quadruped.xml"))], "must be those of the policy, in the same order"),
    ],
)
def test_what_cannot_work_is_said(exported, arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        deploy.main([str(exported[0] / "policy.onnx"), *arguments])
    assert message in f"{stopped.value} {capsys.readouterr().err}"


def test_a_command_is_refused_by_a_policy_that_takes_none(exported, monkeypatch, capsys):
    policy = deploy.Policy(exported[0] / "policy.onnx")
    policy.metadata["commands"] = {}
    monkeypatch.setattr(deploy, "Policy", lambda path: policy)
    with pytest.raises(SystemExit):
        deploy.main([str(exported[0] / "policy.onnx"), "--command", "1"])
    assert "the policy takes no command" in capsys.readouterr().err


def test_a_missing_file_is_said(capsys):
    with pytest.raises(SystemExit):
        deploy.main(["nowhere.onnx"])
    assert "there is no file nowhere.onnx; write it with run_mode=export" in capsys.readouterr().err


def test_an_observation_that_it_does_not_know_is_named_with_what_to_write(exported):
    policy, robot = start(exported[0], exported[1][0])
    term = policy.metadata["observations"]["actor"]["terms"][1]
    term |= {"class": "FootForce", "args": {"sensors": ["left"]}}
    with pytest.raises(
        SystemExit, match=r"'gyro' is a FootForce.*'sensors': \['left'\].*its 3 numbers.*OWN_OBSERVATIONS"
    ):
        deploy.observe(robot, policy.metadata)


def test_an_error_of_a_users_own_observation_shows(exported, tmp_path, monkeypatch):
    place = ("observations", "actor", "terms", 1, "class")
    metadata = changed(json.loads((exported[0] / "policy.json").read_text()), place, "FootForce")
    properties = {name: json.dumps(entry) for name, entry in metadata.items()}
    path = with_properties(exported[0] / "policy.onnx", tmp_path / "policy.onnx", properties)
    monkeypatch.setitem(deploy.OWN_OBSERVATIONS, "FootForce", lambda robot, **_: robot.data.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        deploy.main([str(path), "--seconds", "0.04"])


BROKEN = {
    "no XML": lambda xml: xml[:200],
    "a missing mesh": lambda xml: xml.replace(
        "</mujoco>", '<asset><mesh name="shell" file="nowhere.stl"/></asset></mujoco>'
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_robot_file_that_mujoco_refuses_is_named_and_not_the_policy(kind, exported, tmp_path):
    path = tmp_path / "robot.xml"
    path.write_text(BROKEN[kind](HUMANOID.read_text()))
    with pytest.raises(SystemExit, match=rf"^{path} cannot be loaded: .*Mend it, or give another with --robot\."):
        deploy.main([str(exported[0] / "policy.onnx"), "--robot", str(path)])


def test_python_of_the_page_runs_in_the_directory_of_an_export(exported, monkeypatch):
    monkeypatch.chdir(exported[0])
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    actions = []
    for block in blocks:
        exec(block, names)
        actions.append(np.asarray(names["action"]))
    assert len(actions) == 2
    np.testing.assert_allclose(*actions, atol=1e-5)
    assert set(names["memory"]) == {"memory_0"}


def test_table_of_the_page_has_all_entries_of_the_metadata(exported):
    metadata = json.loads((exported[0] / "policy.json").read_text())
    table = PAGE.split("## Metadata")[1].split("\n\n")[1]
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:]]
    assert {name for entry, _ in rows for name in re.findall(r"`(\w+)`", entry)} == set(metadata)
    texts = {name: text for entry, text in rows for name in re.findall(r"`(\w+)`", entry)}
    for name, entry in metadata.items():
        parts = entry[0] if name == "memory" else next(iter(entry.values())) if name in PLURAL else entry
        for part in parts if isinstance(parts, dict) else ():
            assert f"`{part}`" in texts[name], f"{name}: {part}"


def test_commands_of_the_pages_have_options_that_exist(exported, capsys):
    running = (SCRIPT.parents[1] / "docs/running.md").read_text()
    commands = re.findall(r"^python examples/deploy\.py \S+ (.*)$", PAGE + running, flags=re.MULTILINE)
    assert len(commands) == 2
    for options in commands:
        deploy.main([str(exported[0] / "policy.onnx"), *options.split()])
        assert "Stood for" in capsys.readouterr().out


def with_properties(path, out, properties):
    """A copy of an ONNX file with other metadata, as texts."""
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, properties)
    onnx.save(model, out)
    return out


def changed(value, path, new):
    """A copy of metadata with another value at one place."""
    value = json.loads(json.dumps(value))
    *parents, last = path
    holder = value
    for key in parents:
        holder = holder[key]
    holder[last] = new
    return value


SIZED = ("observations", "actor")


@pytest.mark.parametrize(
    ("place", "value", "rule"),
    [
        (("format",), 1, "format (1) must be 2"),
        (("physics_dt_s",), 1e-300, "must be 1 to 1000 steps of physics_dt_s"),
        (("physics_dt_s",), -0.005, "must be 1 to 1000 steps of physics_dt_s"),
        (("control_dt_s",), 1e300, "must be 1 to 1000 steps of physics_dt_s"),
        ((*SIZED, "size"), 2**40, "the size of obs (1099511627776) must be"),
        ((*SIZED, "terms", 1, "start"), -6, "the terms of obs must fill it, one after another"),
        (("memory", 0, "dtype"), "S1000", "the dtype of memory ('S1000') must be a number's"),
        (("memory", 0, "start"), [0.0], "memory must be as the file's inputs"),
        (("commands", "velocity", "size"), 2**33, "the size of command 'velocity' must be 1 to 100000"),
        (("robot", "file"), "../../../../etc/passwd", "must be a name without directories"),
        (("robot", "default_qpos"), [0.5], "qpos must have the shape"),
        (("model", "fields", "jnt_qposadr"), [0, 7, 8], "jnt_qposadr must be a field of real numbers or flags"),
        (("model", "fields", "actuator_gear"), 1.0, "actuator_gear must have the shape"),
        (("model", "fields", "qpos0", 0), None, "qpos0 must have numbers that are finite"),
        (("model", "option", "iterations"), 2**30, "iterations (1073741824) must be 0 to 10000"),
        (("model", "option", "integrator"), 99, "Invalid int value for mjtIntegrator: 99"),
        (("model", "structure", "geom_condim", 0), 1000, "condim"),
        (("action_to_ctrl", "offset"), [], "could not be broadcast"),
        (("model",), None, "TypeError"),
    ],
)
def test_metadata_that_would_be_wrong_in_silence_or_without_end_are_one_error(exported, tmp_path, place, value, rule):
    metadata = changed(json.loads((exported[0] / "policy.json").read_text()), place, value)
    properties = {name: json.dumps(entry) for name, entry in metadata.items()}
    path = with_properties(exported[0] / "policy.onnx", tmp_path / "policy.onnx", properties)
    with pytest.raises(SystemExit, match=re.escape(rule)) as stopped:
        deploy.main([str(path), "--seconds", "0.1"])
    assert str(stopped.value).startswith(f"{path} cannot be run: it is no policy exported by ksim, or it is damaged (")
    assert str(stopped.value).endswith("Export it again with run_mode=export.")


def test_damaged_metadata_run_or_are_one_error(exported, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)  # MuJoCo's warnings
    whole = (exported[0] / "policy.json").read_text()
    for seed in range(scale(25, 400)):
        rng = random.Random(seed)
        if seed % 3:
            text = misshapen(whole, seed)
            try:
                properties = {str(name): json.dumps(entry) for name, entry in json.loads(text).items()}
            except (ValueError, RecursionError, AttributeError):
                properties = {"format": text[:1000]}
        else:
            properties = {name: json.dumps(entry) for name, entry in json.loads(whole).items()}
            name = rng.choice(sorted(properties))
            properties[name] = misshapen(properties[name], seed)
        path = with_properties(exported[0] / "policy.onnx", tmp_path / "policy.onnx", properties)
        message = ""
        try:
            deploy.main([str(path), "--seconds", "0.04"])
        except SystemExit as stopped:
            message = f"{stopped}{capfd.readouterr().err}"
        assert not message or str(path) in message or "--robot" in message, seed


@pytest.mark.parametrize("content", [b"", b"no onnx", bytes(1000)])
def test_a_file_that_is_no_policy_is_one_error(content, tmp_path):
    path = tmp_path / "policy.onnx"
    path.write_bytes(content)
    with pytest.raises(SystemExit, match=r"policy\.onnx cannot be run: it is no policy exported by ksim, or it is"):
        deploy.main([str(path)])
