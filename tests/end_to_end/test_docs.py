"""The code in the docs does what the docs say."""

import re
from pathlib import Path

import numpy as np
import pytest

from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask
from tests.tasks import WITHOUT_REPORTS

ROOT = Path(__file__).parents[2]


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run_block(page, containing):
    (block,) = [b for b in python_blocks(page) if containing in b]
    names = {"__name__": "docs"}
    exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
@pytest.mark.parametrize(("task", "options"), [("OneDevice", {}), ("AllDevices", {"num_devices": 2})])
def test_environment_of_the_extending_page_is_trained_by_both_tasks(task, options, tmp_path, capsys):
    import ksim

    names = run_block("docs/extending.md", "class PointMass")
    config = ksim.DistributedPPOConfig if options else ksim.PPOConfig
    run_dir = tmp_path / "run"
    options = options | WITHOUT_REPORTS
    assert names[task](config(num_envs=64, max_iterations=4, run_dir=str(run_dir), **options)).run() == 0
    assert "iteration 4/4" in capsys.readouterr().out


def test_reward_of_the_extending_page_joins_the_humanoids(tmp_path):
    reward = run_block("docs/extending.md", "class ElbowsIn")["ElbowsIn"]

    class Task(HumanoidWalkingTask[HumanoidWalkingConfig]):
        def get_rewards(self, physics_model):
            return [*super().get_rewards(physics_model), reward()]

    task = Task(HumanoidWalkingConfig(num_envs=4))
    metrics = task.initial_state().envs.env_state.metrics
    assert (np.asarray(metrics["reward/elbows_in"]) < 0).all()


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_task_of_the_readme_trains_a_robot_with_nothing_but_defaults(tmp_path, monkeypatch):
    import ksim
    from tests.robots import BIPED

    (tmp_path / "my_robot.xml").write_text(BIPED)
    task = run_block("README.md", "class MyRobot")["MyRobot"]
    options = {"num_envs": 8, "num_devices": 2, "max_iterations": 1, "run_dir": str(tmp_path / "run")}
    assert task(ksim.DistributedPPOConfig(**options, **WITHOUT_REPORTS)).run() == 0


def test_links_of_the_pages_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "DISTRIBUTED_TRAINING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)|src=\"([^\"]+)\"", page.read_text()):
            path = page.parent / (target[0] or target[1])
            assert path.exists(), f"{page.name} links to {path}"


def test_settings_that_the_pages_name_are_options():
    options = set(HumanoidWalkingConfig.__dataclass_fields__)
    import examples.walking_distributed as distributed

    options |= set(distributed.HumanoidWalkingDistributedConfig.__dataclass_fields__)
    for page in ("README.md", "DISTRIBUTED_TRAINING.md"):
        text = re.sub(r"XLA_FLAGS=\S+", "", (ROOT / page).read_text())
        for name in re.findall(r"\b([a-z_]+)=(?:\d+|eval|local|accumulate)\b", text):
            assert name in options | {"scale", "max_tilt", "seconds"}, name
