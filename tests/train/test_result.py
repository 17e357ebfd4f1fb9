"""The result of `task.run()`."""

import base64
import os

import numpy as np
import pytest

import ksim
from examples.point_mass import PointMassTask
from ksim.errors import ConfigError
from tests.end_to_end.pages import python_blocks
from tests.support.tasks import point_mass_task


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Of a run of eight iterations, resumed after six, with two evaluations."""
    run_dir = tmp_path_factory.mktemp("result") / "run"
    options = {"num_devices": 1, "run_dir": str(run_dir), "eval_every_n_iterations": 4, "eval_num_envs": 2}
    point_mass_task(**options, max_iterations=6).run()
    return point_mass_task(**options, max_iterations=8, resume="auto").run()


def test_metrics_are_columns_with_a_row_for_each_iteration_and_nan_where_there_is_no_value(result):
    assert result.exit_code == 0
    np.testing.assert_array_equal(result.metrics["iteration"], np.arange(1, 9))
    np.testing.assert_array_equal(result.metrics["env_steps"], 128 * np.arange(1, 9))
    assert {len(column) for column in result.metrics.values()} == {8}
    # Episodes of 50 steps are cut in the seventh rollout of 8 steps.
    assert np.isnan(result.metrics["episode/return"][0])
    assert np.isfinite(result.metrics["episode/return"][6])


def test_evaluations_and_the_policy_are_those_that_the_directory_holds(result):
    assert [record["iteration"] for record in result.evaluations] == [4, 8]
    obs = np.ones(result.policy.obs_sizes["actor"], np.float32)
    np.testing.assert_array_equal(result.policy(obs), ksim.load_policy(result.run_dir)(obs))
    assert result.policy.iteration == 8


def test_evaluation_of_a_checkpoint_has_its_own_figures_and_policy_and_no_metrics(result):
    task = point_mass_task(run_mode="eval", checkpoint=str(result.run_dir / "checkpoints" / "8"), eval_num_envs=3)
    evaluated = task.run()
    assert (evaluated.exit_code, evaluated.run_dir) == (0, result.run_dir)
    assert [record["num_episodes"] for record in evaluated.evaluations] == [3]
    assert evaluated.metrics == {}
    assert evaluated.policy.iteration == 8


def test_policy_of_a_run_without_a_checkpoint_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="checkpoint"):
        _ = ksim.RunResult(exit_code=0, run_dir=tmp_path).policy


def test_plots_and_videos_of_a_run_are_shown_in_a_notebook(tmp_path):
    from PIL import Image

    (tmp_path / "plots").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "plots" / "learning.png")
    (tmp_path / "videos").mkdir()
    for second, name in enumerate(("iteration_9", "iteration_10")):
        path = tmp_path / "videos" / f"{name}.mp4"
        path.write_bytes(name.encode())
        os.utime(path, (second, second))
    run = ksim.RunResult(exit_code=0, run_dir=tmp_path)
    assert run.plot().path == tmp_path / "plots" / "learning.png"
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    assert run.video().path.name == "iteration_10.mp4"
    assert base64.b64encode(b"iteration_10").decode() in run.video()._repr_html_()
    assert run.plot()._repr_html_() is None
    assert run.video()._repr_png_() is None
    with pytest.raises(ConfigError, match=r"no plot 'gait' in .*plots there: learning.*plots=true"):
        run.plot("gait")


def test_video_that_was_not_made_is_an_error_that_says_how(tmp_path):
    run = ksim.RunResult(exit_code=0, run_dir=tmp_path / "run", output_dir=tmp_path / "evaluation")
    with pytest.raises(ConfigError, match=r"evaluation.videos.*video=true"):
        run.video()


def test_python_of_the_page_about_a_run_does_what_it_says(result):
    (block,) = [block for block in python_blocks("running.md") if "result = task.run()" in block]

    class Done:
        def run(self):
            return result

    names = {"task": Done(), "observation": np.zeros(result.policy.obs_sizes["actor"], np.float32)}
    exec(compile(block, "docs/running.md", "exec"), names)
    assert names["returns"].shape == (8,)
    assert names["best"] == max(record["figures"]["return"]["mean"] for record in result.evaluations)
    assert names["action"].shape == (PointMassTask(point_mass_task().config).environment.action_size,)
