import dataclasses
import json

import numpy as np

from ksim.evaluate import plots
from ksim.evaluate.curves import read_curves, thinned
from ksim.evaluate.evaluator import Recording
from ksim.tools import plot
from tests.support.contexts import biped

T = 60


def make_recording(**fields):
    time = np.arange(T) * 0.02
    whole = {
        "reward": 0.02 * np.ones(T),
        "metrics": {"reward/alive": np.ones(T), "reward/termination_penalty": -100.0 * (np.arange(T) == T - 1)},
        "model": biped(),
        "qpos": np.zeros((T, 9)),
        "base_position": np.zeros((T, 3)),
        "heading": np.zeros(T),
        "velocity": np.stack([np.sin(time), np.cos(time), time], axis=1),
        "commanded_velocity": np.ones((T, 3)),
        "touch": {"left_touch": 10.0 * (np.sin(20 * time) > 0), "right_touch": 10.0 * (np.sin(20 * time) <= 0)},
    }
    return Recording(**(whole | fields))


def write_run(path, num_iterations=3):
    path.mkdir(parents=True)
    rows = [
        {"iteration": i, "env_steps": 100 * i, "episode/return": None if i == 1 else float(i), "policy/kl": 0.01}
        for i in range(1, num_iterations + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 4, "env')
    estimate = {"mean": 2.0, "low": 1.5, "high": 2.5}
    alone = {"mean": 9.0, "low": None, "high": None}
    evaluation = {"iteration": 2, "env_steps": 200, "figures": {"return": estimate, "length": alone}}
    (path / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    return path


def drawn_something(path):
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("L")).std() > 5


def test_curves_of_a_run_have_gaps_where_a_line_has_null_and_skip_a_torn_line(tmp_path):
    curves = read_curves(write_run(tmp_path / "run"))
    np.testing.assert_array_equal(curves.env_steps, [100, 200, 300])
    np.testing.assert_array_equal(curves.metrics["episode/return"], [np.nan, 2, 3])
    steps, (estimate,) = curves.evaluated("return")
    assert (list(steps), estimate.mean, estimate.low) == ([200], 2.0, 1.5)


def test_thinned_values_are_means_of_stretches_without_what_is_missing():
    nan = np.nan
    np.testing.assert_array_equal(thinned(np.array([1, 3, nan, 5, nan, nan]), 3), [2, 5, nan])


def test_whole_numbers_beyond_64_bits_are_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0, "env_steps": 8, "huge": 100000000000000000000000}\n')
    assert read_curves(tmp_path).record()["metrics"]["huge"] == [1e23]


def test_learning_is_drawn_with_and_without_evaluations(tmp_path):
    plots.plot_learning([read_curves(write_run(tmp_path / "run"))], tmp_path / "plots" / "learning.png")
    assert drawn_something(tmp_path / "plots" / "learning.png")


def test_curve_is_drawn_through_iterations_in_which_no_episode_ended(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    rows = [
        {"iteration": i, "env_steps": i, "episode/return": float(i) if i % 3 == 0 else None, "episode/length": None}
        for i in range(1, 10)
    ]
    rows[4]["episode/length"] = 50.0
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, _: (figures.append(figure), figure.canvas.draw()))
    plots.plot_learning([read_curves(tmp_path / "run")], tmp_path / "learning.png")
    returns, lengths = (axes.lines[0] for axes in figures[0].axes[:2])
    np.testing.assert_array_equal(returns.get_xydata(), [[3, 3], [6, 6], [9, 9]])
    assert returns.get_marker() == ""
    # One value alone is no line.
    np.testing.assert_array_equal(lengths.get_xydata(), [[5, 50]])
    assert lengths.get_marker() == "."


def test_panels_of_learning_are_errors_survival_return_and_speed_first(tmp_path):
    run = read_curves(write_run(tmp_path / "run"))
    steps, survival = run.env_steps, {"survival": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    metrics = run.metrics | {"error/velocity/lin_vel_m_s": steps, "loss/extra": steps}
    evaluations = [{**run.evaluations[0], "figures": run.evaluations[0]["figures"] | survival}]
    whole = dataclasses.replace(run, metrics=metrics, evaluations=evaluations)
    titles = [panel.title for panel in plots.learning_panels([run, whole], {"an extra loss": "loss/extra"})]
    assert titles == [
        *("velocity error, m/s", "share of episodes survived", "return", "length of episodes, control steps"),
        *("environment steps per second", "KL divergence of an update", "an extra loss"),
    ]
    assert "share of episodes survived" not in [panel.title for panel in plots.learning_panels([run])]
    images = plots.plot_learning([whole], tmp_path / "learning.png")
    assert list(images) == titles[:-1]
    for panel in plots.learning_panels([whole]):
        (tmp_path / "panel.png").write_bytes(images[panel.title])
        assert drawn_something(tmp_path / "panel.png") or panel.metric not in metrics
    assert plots.plot_learning([whole], tmp_path / "learning.svg") == {}


def test_episode_of_a_robot_is_drawn_in_all_plots(tmp_path):
    paths = plots.plot_episode(make_recording(), tmp_path)
    assert [path.name for path in paths] == ["velocity.png", "gait.png", "rewards.png"]
    assert all(drawn_something(path) for path in paths)


def test_episode_of_another_environment_has_a_plot_of_its_reward_alone(tmp_path):
    recording = Recording(reward=np.arange(5.0), metrics={"distance": np.zeros(5)})
    assert [path.name for path in plots.plot_episode(recording, tmp_path)] == ["rewards.png"]


def test_episode_of_one_step_can_be_drawn(tmp_path):
    one = make_recording()
    cut = {
        name: getattr(one, name)[:1]
        for name in ("reward", "qpos", "base_position", "heading", "velocity", "commanded_velocity")
    }
    touch = {name: x[:1] for name, x in one.touch.items()}
    metrics = {name: x[:1] for name, x in one.metrics.items()}
    assert len(plots.plot_episode(make_recording(**cut, touch=touch, metrics=metrics), tmp_path)) == 3


def test_stretches_are_the_runs_of_true_values():
    assert plots.stretches(np.array([True, True, False, False, True])) == [(0, 2), (4, 5)]
    assert plots.stretches(np.zeros(3, bool)) == []


def test_tool_draws_several_runs_and_writes_small_curves(tmp_path, capsys):
    runs = [write_run(tmp_path / seed / "run", num_iterations=500) for seed in ("0", "1")]
    out = tmp_path / "curves.png"
    assert plot.main([*map(str, runs), "--out", str(out)]) == 0
    assert drawn_something(out)
    curves = json.loads((tmp_path / "curves.json").read_text())
    # Runs whose directories have one name are told apart by more of their paths.
    assert list(curves) == ["0/run", "1/run"]
    assert len(curves["0/run"]["metrics"]["episode/return"]) == 100
    assert "iteration" in curves["0/run"]["evaluations"][0]


def test_tool_says_what_is_wrong_with_its_input(tmp_path, capsys):
    assert plot.main([str(tmp_path), "--out", "x.png"]) == 2
    assert "no metrics" in capsys.readouterr().out
    assert plot.main([str(write_run(tmp_path / "run")), "--out", "x.doc"]) == 2
    assert "must end in .png" in capsys.readouterr().out
