"""Films and plots of a run, from end to end."""

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest

from ksim.evaluate import reports, video
from ksim.evaluate.evaluator import Recording
from ksim.physics import compile_model
from tests.support.checkpoints import save_run
from tests.support.model_files import CART_POLE, DOG
from tests.support.tasks import BipedConfig, BipedTask, point_mass_task


@pytest.mark.long
@pytest.mark.skipif(video.find_gl() is None, reason="no EGL or OSMesa")
def test_run_of_a_robot_ends_with_an_evaluation_plots_and_a_film(capsys):
    run_dir = Path("run")  # short enough for the summary not to fold it
    config = BipedConfig(
        num_devices=1, max_iterations=2, run_dir=str(run_dir), eval_at_end=True, video=True, plots=True
    )
    assert BipedTask(config).run().exit_code == 0
    out = capsys.readouterr().out
    for name in ("learning", "velocity", "gait", "rewards"):
        assert (run_dir / "plots" / f"{name}.png").is_file()
        assert f"plots/{name}.png" in out
    for suffix in ("mp4", "gif"):
        assert (run_dir / "videos" / f"iteration_2.{suffix}").is_file()
        assert f"iteration_2.{suffix}" in out
    assert "Warning" not in out
    assert "failed" not in out


@pytest.mark.long
def test_without_gl_there_is_one_warning_and_no_film(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reports, "find_gl", lambda: None)
    config = BipedConfig(
        num_devices=1,
        max_iterations=3,
        run_dir=str(tmp_path / "run"),
        eval_at_end=True,
        video=True,
        eval_every_n_iterations=1,
        video_every_n_evaluations=1,
    )
    assert BipedTask(config).run().exit_code == 0
    assert capsys.readouterr().out.count("no video") == 1
    assert not (tmp_path / "run" / "videos").exists()
    assert (tmp_path / "run" / "process_0.log").read_text().count("WARNING ksim.") == 1


@pytest.mark.long
def test_environment_of_another_kind_has_plots_and_says_in_the_log_why_no_film(tmp_path, capsys):
    run_dir = tmp_path / "run"
    options = {"eval_at_end": True, "video": True, "plots": True, "eval_num_envs": 2}
    point_mass_task(num_devices=1, max_iterations=1, run_dir=str(run_dir), **options).run()
    assert (run_dir / "plots" / "rewards.png").is_file()
    assert (run_dir / "plots" / "learning.png").is_file()
    assert not (run_dir / "videos").exists()
    assert "No video" in (run_dir / "process_0.log").read_text()
    assert "Warning" not in capsys.readouterr().out


@pytest.mark.long
def test_failing_plots_and_films_end_nothing(tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(reports, "film", fail)
    monkeypatch.setattr(reports, "find_gl", lambda: "egl")
    monkeypatch.setattr("ksim.evaluate.plots.plot_episode", fail)
    monkeypatch.setattr("ksim.evaluate.plots.plot_learning", fail)
    options = {"eval_at_end": True, "video": True, "plots": True}
    config = BipedConfig(num_devices=1, max_iterations=1, run_dir=str(tmp_path / "run"), **options)
    assert BipedTask(config).run().exit_code == 0
    out = capsys.readouterr().out
    # One warning of each kind (plots, film, report), however often it failed.
    assert out.count("disk full") == 3
    assert len((tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()) == 1


@pytest.mark.long
def test_run_mode_eval_of_a_robot_films_and_draws_beside_its_figures(tmp_path):
    run_dir = tmp_path / "run"
    save_run(BipedTask(BipedConfig(num_devices=1)), run_dir)
    config = BipedConfig(run_mode="eval", checkpoint=str(run_dir), plots=True, eval_output=str(tmp_path / "out"))
    assert BipedTask(config).run().exit_code == 0
    assert (tmp_path / "out" / "plots" / "gait.png").is_file()
    figures = json.loads((tmp_path / "out" / "evaluation.json").read_text())["figures"]
    assert {"return", "length", "survival", "error/velocity/lin_vel_m_s"} <= set(figures)


def recording(text, height):
    """A recording in which the base of a robot is so high, in m."""
    model = compile_model(mujoco.MjSpec.from_string(text), dt=0.005, ctrl_dt=0.02)
    has_base = model.names.has_base
    return Recording(np.zeros(4), {}, model=model, base_position=np.full((4 if has_base else 0, 3), height))


def test_height_of_the_base_is_told_beside_that_with_stretched_legs():
    # Its legs of 0.43 m hang from the middle of its trunk.
    words = reports.height_words(recording(DOG, 0.215))
    assert words is not None
    metres, _, share = words.partition(" m, ")
    assert metres == "0.21"
    assert 45 <= int(share.partition("%")[0]) <= 55
    assert reports.height_words(recording(CART_POLE, 0.0)) is None
