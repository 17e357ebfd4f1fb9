"""deploy/cpp turns readings into targets as examples/deploy.py does."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import mujoco
import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from examples import deploy
from ksim.mdp import commands, observations
from ksim.mdp.actions import ActionSmoothing, AroundMotion
from tests.support.exports import export_moving_policy
from tests.support.motion_tasks import ACTUATORS, FLOATER, FloaterConfig, FloaterTask

SOURCES = Path(deploy.__file__).parents[1] / "deploy/cpp"
WITH_SENSORS = FLOATER.replace("<body name=\"arm\"", "<site name=\"imu\"/><body name=\"arm\"").replace(
    "</mujoco>",
    "<sensor><gyro name=\"spin\" site=\"imu\"/> <gyro name=\"ksim_spin_part_1\" site=\"imu\"/></sensor></mujoco>",
)  # fmt: skip
NUM_STEPS = 15


class AllSeenTask(FloaterTask):
    """Observe by every class that examples/deploy.py knows, with three filters of actions and a command."""

    def get_robot(self):
        return mujoco.MjSpec.from_string(WITH_SENSORS)

    def get_action_filters(self, physics_model):
        around = AroundMotion(command="motion", actuators=self.get_actuators())
        first, last = (ActionSmoothing(time_constant_s=time_constant_s) for time_constant_s in (0.03, 0.02))
        return {"smoothed": first, "around": around, "again": last}

    def get_actuators(self):
        return dataclasses.replace(ACTUATORS, offset=0.1)

    def get_commands(self, physics_model):
        return super().get_commands(physics_model) | {"velocity": commands.VelocityCommand()}

    def get_observations(self, physics_model):
        return {
            "actor": [
                *super().get_observations(physics_model)["actor"],
                observations.ProjectedGravity(),
                observations.BaseAngularVelocity(),
                observations.BaseLinearVelocity(),
                observations.SensorReading(sensor="spin"),
                observations.ImuGyro(site="imu"),
                observations.ImuAccelerometer(site="imu"),
                observations.PhaseClock(period_s=0.5),
                observations.CommandValue(command="velocity"),
            ]
        }


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory):
    """A recurrent policy that moves."""
    out_dir = tmp_path_factory.mktemp("export")
    task = AllSeenTask(FloaterConfig(model="gru", memory_size=8))
    export_moving_policy(task, out_dir)
    return out_dir / "policy.onnx"


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    """The program replay, built."""
    build = tmp_path_factory.mktemp("build")
    if shutil.which("cmake") is None:
        pytest.skip("needs CMake")
    configured = subprocess.run(["cmake", "-S", SOURCES, "-B", build], capture_output=True, text=True, check=False)
    if configured.returncode:
        pytest.skip(f"needs a C++ compiler, ONNX Runtime and nlohmann-json: {configured.stderr[-500:]}")
    subprocess.run(["cmake", "--build", build], check=True)
    return build / "replay"


def imu(robot):
    return {
        "gyros": deploy.imu_reading(robot, "imu", mujoco.mjtSensor.mjSENS_GYRO),
        "accelerometers": deploy.imu_reading(robot, "imu", mujoco.mjtSensor.mjSENS_ACCELEROMETER),
    }


def readings(robot):
    """The readings of the simulated robot as JSON."""
    places, dofs = robot.joints(None)
    start, _ = robot.base()
    now = {
        "joint_position": robot.data.qpos[places],
        "joint_velocity": robot.data.qvel[dofs],
        "position": robot.data.qpos[start : start + 3],
        "orientation": robot.data.qpos[start + 3 : start + 7],
        "angular_velocity": deploy.base_angular_velocity(robot),
        "linear_velocity": deploy.base_linear_velocity(robot),
    }
    now = {name: x.tolist() for name, x in now.items()}
    now |= {name: {"imu": x.tolist()} for name, x in imu(robot).items()}
    return now | {"sensors": {name: robot.data.sensor(name).data.tolist() for name in ("spin", "ksim_spin_part_1")}}


def test_sensor_of_several_parts_reads_their_sum(policy_file, tmp_path):
    (tmp_path / "floater.xml").write_text(WITH_SENSORS)
    robot = deploy.Robot(tmp_path / "floater.xml", deploy.Policy(policy_file).metadata)
    robot.data.sensor("spin").data[:], robot.data.sensor("ksim_spin_part_1").data[:] = [1, 2, 3], [10, 0, 0]
    np.testing.assert_array_equal(deploy.sensor_reading(robot, "spin"), [11, 2, 3])
    np.testing.assert_array_equal(deploy.sensor_reading(robot, "ksim_spin_part_1"), [10, 0, 0])


def test_targets_are_around_the_motion_and_the_offset_after_the_filters_in_their_order(policy_file, tmp_path):
    (tmp_path / "floater.xml").write_text(WITH_SENSORS)
    robot = deploy.Robot(tmp_path / "floater.xml", deploy.Policy(policy_file).metadata)
    frame = robot.motions["motion"]["qpos"][int(robot.command["motion"][0]), 7]
    first, second = (1 - np.exp(-0.02 / time_constant_s) for time_constant_s in (0.03, 0.02))
    # The pose is 0, and an action of 1 moves the target by 0.5 rad.
    expected = 0.1 + second * (frame + 0.5 * first * 0.8)
    np.testing.assert_allclose(robot.controls(robot.filtered(np.array([0.8]))), [expected], rtol=1e-6)


@pytest.mark.long
def test_targets_over_an_episode_are_those_of_the_python_program(policy_file, replay, tmp_path):
    policy = deploy.Policy(policy_file)
    terms = policy.metadata["observations"]["actor"]["terms"]
    assert {term["class"] for term in terms} == set(deploy.OBSERVATIONS)
    (tmp_path / "floater.xml").write_text(WITH_SENSORS)
    robot = deploy.Robot(tmp_path / "floater.xml", policy.metadata)
    robot.command["velocity"] = np.array([0.5, -0.2, 0.3])
    robot.reset()
    lines, targets = [], []
    for step in range(NUM_STEPS):
        asked = {"commands": {"velocity": [0.5, -0.2, 0.3]}} if step == 0 else {}
        lines.append(json.dumps(readings(robot) | asked))
        robot.step(policy(deploy.observe(robot, policy.metadata)))
        targets.append(robot.data.ctrl.copy())
    done = subprocess.run([replay, policy_file], input="\n".join(lines), capture_output=True, text=True, check=True)
    found = np.array([json.loads(line) for line in done.stdout.splitlines()])
    assert np.ptp(targets) > 0.1
    np.testing.assert_allclose(found, targets, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"joint_position": [0.0, 0.0]}, "positions and velocities of 1 joints"),
        ({"gyros": {}}, "the gyro 'imu', which the policy observes"),
        ({"commands": {"height": [1.0]}}, "no command 'height'"),
        ({"commands": {"velocity": [1.0]}}, "'velocity' has 3 numbers, but 1 are given"),
    ],
)
def test_readings_that_cannot_be_used_are_an_error(policy_file, replay, step, words):
    one = {"joint_position": [0.0], "joint_velocity": [0.0], "sensors": {"spin": [0.0] * 3}}
    one |= {"gyros": {"imu": [0.0] * 3}, "accelerometers": {"imu": [0.0] * 3}} | step
    done = subprocess.run([replay, policy_file], input=json.dumps(one), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert words in done.stderr


def test_both_programs_know_the_same_observations():
    header = (SOURCES / "ksim_policy.hpp").read_text()
    assert set(re.findall(r'observations\["(\w+)"\] =', header)) == set(deploy.OBSERVATIONS)
