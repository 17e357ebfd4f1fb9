"""The algorithm of the page on algorithms goes through the whole host side: nothing there knows PPO."""

import numpy as np
import pytest

import ksim
from ksim import cli
from tests.end_to_end.pages import python_blocks
from tests.support.damaged_runs import read_lines
from tests.support.processes import exit_code
from tests.support.tasks import WITHOUT_REPORTS

(BLOCK,) = [block for block in python_blocks("own_algorithm.md") if "class Reinforce(" in block]
NAMES = {"__name__": "reinforce"}
exec(compile(BLOCK, "docs/own_algorithm.md", "exec"), NAMES)
ReinforceConfig, ReinforceTask = NAMES["ReinforceConfig"], NAMES["ReinforceTask"]


def reinforce(**options):
    small = {"num_envs": 16, "rollout_length": 8, "eval_num_envs": 2, "tensorboard": False}
    return ReinforceTask(ReinforceConfig(**(small | WITHOUT_REPORTS | options)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run on two devices with all reports but the video."""
    run_dir = tmp_path_factory.mktemp("reinforce") / "run"
    options = {"num_envs": 64, "rollout_length": 24, "max_iterations": 80, "num_devices": 2}
    assert reinforce(**options, eval_at_end=True, plots=True, run_dir=str(run_dir)).run().exit_code == 0
    return run_dir


@pytest.mark.long
def test_reinforce_learns_to_hold_the_point_mass(trained):
    rewards = [line["rollout/reward"] for line in read_lines(trained / "metrics.jsonl")]
    assert len(rewards) == 80
    # At most 0.1 per step; masses that drift away lose up to 0.8.
    assert np.mean(rewards[-10:]) > np.mean(rewards[5:15]) + 0.02


def test_run_has_evaluations_and_plots(trained):
    (evaluation,) = read_lines(trained / "evaluations.jsonl")
    assert evaluation["iteration"] == 80
    assert (trained / "plots" / "learning.png").is_file()


def test_line_of_an_iteration_shows_what_the_algorithm_adds(tmp_path, capsys):
    reinforce(num_devices=1, max_iterations=1, run_dir=str(tmp_path / "run")).run()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration")]
    (metrics,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert f"baseline off by {metrics['loss/value']:.4f}" in line


@pytest.mark.long
def test_checkpoint_is_evaluated_and_replayed(trained, capsys):
    for mode in (["run_mode=eval", "eval_num_envs=3"], ["run_mode=replay"]):
        options = [*mode, f"checkpoint={trained}", "video=false"]
        assert exit_code(cli.launch, ReinforceTask, ReinforceConfig(), options) == 0
    out = capsys.readouterr().out
    assert "3, one per environment" in out
    assert "updates skipped" in out


def test_policy_is_loaded_without_its_task_and_acts_as_with_it(trained):
    obs = np.array([0.5, -0.2], np.float32)
    action = ksim.load_policy(trained)(obs)
    assert action.shape == (1,)
    np.testing.assert_allclose(action, ksim.load_policy(trained, task=ReinforceTask)(obs), rtol=1e-5)
