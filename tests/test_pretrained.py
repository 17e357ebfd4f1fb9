"""The policies that come with the examples."""

import importlib.util
import json

import numpy as np
import pytest

import ksim
from examples import quadruped, robots, unitree_g1, unitree_go2, walking, walking_teacher
from examples.pretrained import PRETRAINED
from tests.support.scale import scale

TASKS = {
    task.pretrained.name: task
    for task in (
        walking.HumanoidWalkingTask, walking_teacher.HumanoidTeacherTask, quadruped.QuadrupedTask,
        unitree_g1.UnitreeG1Task, unitree_go2.UnitreeGo2Task,
    )
}  # fmt: skip
POLICIES = pytest.mark.parametrize("name", TASKS)


@POLICIES
def test_pretrained_policy_is_small_and_does_not_tell_where_it_was_trained(name):
    files = [path for path in (PRETRAINED / name).rglob("*") if path.is_file()]
    assert 1e4 < sum(path.stat().st_size for path in files) < 2e6
    metadata = json.loads((PRETRAINED / name / "policy.json").read_text())
    assert metadata["task"].startswith("examples.")
    for path in files:
        assert b"/home" not in path.read_bytes()
        assert str(PRETRAINED.parents[1]).encode() not in path.read_bytes()


@POLICIES
def test_pretrained_policy_acts_without_its_task(name):
    policy = ksim.load_policy(PRETRAINED / name)
    action = policy(np.zeros(policy.obs_sizes["actor"], np.float32))
    assert action.shape == (policy.action_size,)
    assert np.isfinite(action).all()


def test_robot_of_a_package_that_is_missing_is_an_error():
    with pytest.raises(ksim.ConfigError, match=r"package no-robots, which is not installed.*\[robots\]"):
        robots.in_package("no_robots", "robot.xml")


@pytest.mark.long
@pytest.mark.parametrize("name", scale(("unitree_go2",), TASKS))
def test_pretrained_robot_walks_on_command(name, tmp_path, monkeypatch):
    if name.startswith("unitree_") and importlib.util.find_spec("robosuite_models") is None:
        pytest.skip("robosuite-models is not installed")
    monkeypatch.chdir(tmp_path)
    argv = ["run_mode=eval", "checkpoint=pretrained", "eval_num_envs=16", "video=false", "plots=false"]
    with pytest.raises(SystemExit) as ended:
        TASKS[name].launch(argv=argv)
    assert ended.value.code == 0
    (written,) = tmp_path.rglob("evaluation.json")
    figures = json.loads(written.read_text())["figures"]
    assert figures["survival"]["mean"] == 1.0
    assert figures["error/velocity/lin_vel_m_s"]["mean"] < 0.25
