"""examples/deploy.py acts as ksim does, without it, as its page says, and refuses what cannot work."""

import dataclasses
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import jax
import mujoco
import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from examples import deploy
from examples.robots import HUMANOID
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask
from tests.support.exports import export_moving_policy
from tests.support.json_damages import misshapen
from tests.support.scale import scale
from tests.support.tasks import Undisturbed

SCRIPT = Path(deploy.__file__)
PAGE = (SCRIPT.parents[1] / "docs/deploying.md").read_text()
NUM_STEPS = 50
PLURAL = ("observations", "commands")
"""Entries of the metadata that have names given by the task."""
OPTIMIZED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""As a user's programs are, unlike those of most tests."""


class QuietWalking(Undisturbed, HumanoidWalkingTask):
    """The walking example without noise, pushes and other friction, which no robot shares with another."""

    def get_observations(self, physics_model):
        groups = super().get_observations(physics_model)
        quiet = lambda term: dataclasses.replace(term, noise=None)
        return {group: {name: quiet(term) for name, term in terms.items()} for group, terms in groups.items()}


def export(out_dir, **compiler_options):
    """The directory of an exported policy that sways the robot a little, and what ksim's environment makes of it."""
    task = QuietWalking(
        HumanoidWalkingConfig(model="gru", symmetry="off", memory_size=16, actor_sizes=[16], critic_sizes=[16])
    )
    task.environment = env = task.eval_environment
    model = export_moving_policy(task, out_dir)

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
    """The policy, and a robot in the state."""
    policy = deploy.Policy(out_dir / "policy.onnx")
    robot = deploy.Robot(HUMANOID, policy.metadata)
    robot.command["velocity"] = np.asarray(state.inner.commands["velocity"])
    robot.reset(np.asarray(state.inner.physics.qpos), np.asarray(state.inner.physics.qvel))
    return policy, robot


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("export"))


@pytest.fixture
def policy_file(exported):
    return str(exported[0] / "policy.onnx")


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


@pytest.mark.long
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


def test_it_runs_without_jax_and_without_ksim(policy_file, tmp_path):
    code = """
import runpy, sys
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("loaded:", {name.split(".")[0] for name in sys.modules} & {"jax", "jaxlib", "ksim", "equinox"})
"""
    command = [sys.executable, "-c", code, str(SCRIPT), policy_file]
    options = ["--command", "0.5", "0", "0.1", "--seconds", "0.4"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "loaded: set()" in done.stdout
    assert "Command: velocity [0.5, 0.0, 0.1]\nStood for 0.40 s.\nMoved " in done.stdout
    assert " m forward and " in done.stdout


def test_it_asks_for_the_middle_of_the_commands_ranges_if_not_told(policy_file, capsys):
    deploy.main([policy_file, "--seconds", "0.04"])
    assert "velocity [0.5, 0.0, 0.0]" in capsys.readouterr().out


def test_it_takes_the_directory_of_an_export(policy_file, capsys):
    deploy.main([str(Path(policy_file).parent), "--seconds", "0.04"])
    assert "Moved " in capsys.readouterr().out


def moved_by(exported, actions, **disturbances):
    """Final positions of the robot after these actions."""
    _, robot = start(exported[0], exported[1][0])
    for name, value in disturbances.items():
        setattr(robot, name, value)
    for action in actions:
        robot.step(action)
    return robot.data.qpos.copy()


def test_delayed_actions_move_the_robot_as_the_same_actions_given_later(exported):
    actions = exported[2][:10]
    still = np.zeros_like(actions[0])
    late = moved_by(exported, actions, delay_s=0.02)
    np.testing.assert_array_equal(late, moved_by(exported, [still, *actions[:-1]]))
    assert np.abs(late - moved_by(exported, actions)).max() > 1e-4
    assert np.abs(late - moved_by(exported, actions, delay_s=0.01)).max() > 1e-5
    np.testing.assert_array_equal(moved_by(exported, actions, drop=1.0), moved_by(exported, [still] * 10))


def test_disturbed_run_is_told_beside_the_undisturbed_one(policy_file, capsys):
    deploy.main([policy_file, "--seconds", "0.04", "--delay-ms", "20", "--drop", "0.05"])
    lines = capsys.readouterr().out.splitlines()
    told = [lines.index("Undisturbed:"), lines.index("With a delay of 20 ms and 5.0% of the actions lost:")]
    assert [lines[i + 1] for i in told] == ["Stood for 0.04 s."] * 2
    assert [bool(re.fullmatch(r"Velocity error: 0\.\d{3} m/s\.", lines[i + 3])) for i in told] == [True, True]


def test_velocity_error_is_that_of_the_way_along_the_heading(exported, monkeypatch):
    policy, robot = start(exported[0], exported[1][0])
    monkeypatch.setattr(robot, "step", lambda _: None)
    monkeypatch.setattr(robot, "reset", lambda: None)
    # Turned by 90 degrees to the left, it moves along the world's y axis at 0.8 m/s: forward.
    place, dof = robot.base()
    robot.data.qpos[place + 3 : place + 7] = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]
    robot.data.qvel[dof : dof + 3] = [0, 0.8, 0.1]
    robot.command["velocity"] = np.array([0.5, 0.4, 0.0])
    _, error = deploy.run(policy, robot, seconds=0.1)
    assert error == pytest.approx(0.5)


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


def file(name, content):
    Path(name).write_bytes(content)
    return name


def metadata_of(policy_file):
    return json.loads(Path(policy_file).with_name("policy.json").read_text())


def with_properties(policy_file, properties):
    """A copy of an ONNX file with other metadata, as texts."""
    model = onnx.load(policy_file)
    onnx.helper.set_model_props(model, properties)
    onnx.save(model, "policy.onnx")
    return "policy.onnx"


def with_metadata(policy_file, place, value):
    """A copy of an ONNX file with another value at one place of its metadata."""
    holder = metadata = metadata_of(policy_file)
    *parents, last = place
    for key in parents:
        holder = holder[key]
    holder[last] = value
    return with_properties(policy_file, {name: json.dumps(entry) for name, entry in metadata.items()})


XML = HUMANOID.read_text()
SHELL = '<asset><mesh name="shell" file="nowhere.stl"/></asset></mujoco>'
BROKEN = r"^robot\.xml cannot be loaded: .*Mend it, or give another with --robot\."
NO_POLICY = r"policy\.onnx cannot be run: it is no policy exported by ksim, or it is"
OTHER_ROBOT = str(HUMANOID.with_name("quadruped.xml"))
REFUSED = {
    "endless": (lambda policy: [policy, "--seconds", "inf"], "--seconds must be above 0 and below 1e6"),
    "nan": (lambda policy: [policy, "--command", "nan", "0", "0"], "the numbers of --command must be finite"),
    "short": (lambda policy: [policy, "--command", "1"], "command 'velocity' has 3 numbers, but --command has 1"),
    "no command": (lambda policy: [with_metadata(policy, ["commands"], {}), "--command", "1"],
        "the policy takes no command"),
    "no robot": (lambda policy: [policy, "--robot", "nowhere.xml"],
        "no robot file nowhere.xml; give the MJCF file of the training with --robot"),
    "other robot": (lambda policy: [policy, "--robot", OTHER_ROBOT], "must be those of the policy, in the same order"),
    "no XML": (lambda policy: [policy, "--robot", file("robot.xml", XML[:200].encode())], BROKEN),
    "a missing mesh": (lambda policy: [policy, "--robot", file("robot.xml", XML.replace("</mujoco>", SHELL).encode())],
        BROKEN),
    "no file": (lambda _: ["nowhere.onnx"], "there is no file nowhere.onnx; write it with run_mode=export"),
    "empty": (lambda _: [file("policy.onnx", b"")], NO_POLICY),
    "no onnx": (lambda _: [file("policy.onnx", b"no onnx")], NO_POLICY),
    "zeros": (lambda _: [file("policy.onnx", bytes(1000))], NO_POLICY),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_said(policy_file, make, message, capsys):
    arguments = make(policy_file)
    with pytest.raises(SystemExit) as stopped:
        deploy.main(arguments)
    assert re.search(message, f"{stopped.value} {capsys.readouterr().err}")


def test_an_observation_that_it_does_not_know_is_named_with_what_to_write(exported):
    policy, robot = start(exported[0], exported[1][0])
    term = policy.metadata["observations"]["actor"]["terms"][1]
    term |= {"class": "FootForce", "args": {"sensors": ["left"]}}
    words = r"'gyro' is a FootForce.*'sensors': \['left'\].*its 3 numbers.*OWN_OBSERVATIONS"
    with pytest.raises(SystemExit, match=words):
        deploy.observe(robot, policy.metadata)


def test_an_error_of_a_users_own_observation_shows(policy_file, monkeypatch):
    path = with_metadata(policy_file, ["observations", "actor", "terms", 1, "class"], "FootForce")
    monkeypatch.setitem(deploy.OWN_OBSERVATIONS, "FootForce", lambda robot, **_: robot.data.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        deploy.main([path, "--seconds", "0.04"])


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
def test_metadata_that_would_be_wrong_in_silence_or_without_end_are_one_error(policy_file, place, value, rule):
    path = with_metadata(policy_file, place, value)
    with pytest.raises(SystemExit, match=re.escape(rule)) as stopped:
        deploy.main([path, "--seconds", "0.1"])
    assert str(stopped.value).startswith(f"{path} cannot be run: it is no policy exported by ksim, or it is damaged (")
    assert str(stopped.value).endswith("Export it again with run_mode=export.")


def test_damaged_metadata_run_or_are_one_error(policy_file, capfd):
    whole = json.dumps(metadata_of(policy_file))
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
        path = with_properties(policy_file, properties)
        message = ""
        try:
            deploy.main([path, "--seconds", "0.04"])
        except SystemExit as stopped:
            message = f"{stopped}{capfd.readouterr().err}"
        assert not message or path in message or "--robot" in message, seed
