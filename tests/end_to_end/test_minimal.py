"""The example that a newcomer copies."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.processes import ROOT, run
from tests.support.scale import only_in_full

EXAMPLE = ROOT / "examples" / "minimal.py"


@pytest.mark.long
@only_in_full("as the program of README.md, which CI runs")
def test_copy_outside_the_project_trains_and_evaluates(tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "my_task.py")
    small = ("num_envs=8", "max_iterations=2", "run_dir=run", "eval_num_envs=2")
    done = run("my_task.py", *small, "video=false", cwd=tmp_path)
    assert "iteration 2/2" in done.stdout
    assert done.stderr == ""
    metrics = json.loads(Path(tmp_path, "run", "metrics.jsonl").read_text().splitlines()[-1])
    assert "reward/progress" in metrics
    done = run("my_task.py", "run_mode=eval", "checkpoint=run", "eval_num_envs=2", "video=false", cwd=tmp_path)
    assert "survived" in done.stdout
    assert done.stderr == ""
    done = run("my_task.py", "--help", cwd=tmp_path)
    assert done.stdout.startswith("Usage: python my_task.py [KEY=VALUE ...]")


def test_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 80
