"""The loggers of a task: what they are given, and what becomes of a run in which one fails."""

import json
import math
import operator
import re
import sys

import pytest

import ksim
from examples.point_mass import PointMassTask
from ksim.errors import ConfigError
from ksim.log.logger import error_labels, quantity_and_unit
from tests.support.tasks import point_mass_task

METRICS = {"rollout/reward": 0.5, "episode/return": math.nan}
RECORD = {
    "iteration": 2,
    "env_steps": 64,
    "figures": {"return": {"mean": 1.0, "low": 0.5, "high": None}},
    "return_gap": None,
}


class Kept(ksim.AbstractLogger):
    """Notes every call; one method may fail."""

    def __init__(self, *failing):
        self.failing, self.calls = failing, []

    def note(self, method, *given):
        self.calls.append((method, *given))
        if method in self.failing:
            raise OSError("no such host")

    def open(self, run):
        self.run = run
        self.note("open")

    def log(self, metrics, iteration, env_steps):
        self.metrics = metrics
        self.note("log", iteration, env_steps)

    def log_evaluation(self, record):
        self.note("log_evaluation", record["iteration"])

    def log_files(self, files, iteration, env_steps):
        assert all(path.is_file() for path in files.values())
        self.note("log_files", *files, iteration, env_steps)

    def log_samples(self, samples, iteration, env_steps):
        self.samples = samples
        self.note("log_samples", *samples, iteration, env_steps)

    def log_checkpoint(self, path, iteration):
        assert (path / "document.json").is_file()
        self.note("log_checkpoint", path.name, iteration)

    def dashboards(self):
        if "dashboards" in self.failing:
            raise OSError("no such host")
        return {"Kept": "kept --open"}

    def close(self):
        self.note("close")


def task_with(make_loggers, tmp_path, **options):
    class Logged(PointMassTask):
        def get_loggers(self):
            return make_loggers(super())

    small = {"num_devices": 1, "max_iterations": 2, "run_dir": str(tmp_path / "run")} | options
    return Logged(point_mass_task(**small).config)


def test_loggers_are_given_the_run_and_what_is_written_of_each_iteration_and_evaluation(tmp_path):
    kept = Kept()
    task = task_with(lambda task: [*task.get_loggers(), kept], tmp_path, eval_every_n_iterations=2, eval_num_envs=2)
    assert task.run().exit_code == 0
    iterations = [("log", 1, 128), ("log", 2, 256)]
    assert kept.calls == [("open",), *iterations, ("log_evaluation", 2), ("log_checkpoint", "2", 2), ("close",)]
    assert (kept.run.run_dir, kept.run.task_name, kept.run.max_iterations) == (tmp_path / "run", "logged", 2)
    assert kept.run.config["num_envs"] == 16
    assert not kept.run.is_resumed
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line == {name: x if math.isfinite(x) else None for name, x in kept.metrics.items()}
    with pytest.raises(TypeError):
        operator.setitem(kept.metrics, "rollout/reward", 0.0)


@pytest.mark.long
def test_loggers_are_given_files_actions_and_checkpoints_and_may_fail_at_each(tmp_path, capsys):
    hooks = ("log_files", "log_samples", "log_checkpoint")
    failing, kept = Kept(*hooks, "dashboards"), Kept()
    shown = {"plots": True, "eval_at_end": True, "eval_num_envs": 2, "video_every_n_evaluations": 1}
    often = {"max_iterations": 4, "eval_every_n_iterations": 2, "save_every_n_iterations": 2}
    assert task_with(lambda _: [failing, kept], tmp_path, **shown, **often).run().exit_code == 0
    assert failing.calls == kept.calls
    assert [call for call in kept.calls if call[0] in hooks[:2]] == [
        ("log_samples", "action/0", 2, 256), ("log_files", "rewards.png", 2, 256), ("log_samples", "action/0", 4, 512),
        ("log_files", "rewards.png", 4, 512), ("log_files", "learning.png", 4, 512),
    ]  # fmt: skip
    assert {x.shape for x in kept.samples.values()} == {(50,)}  # control steps of an episode
    # Each is logged once it is written, and before the run ends.
    assert [call for call in kept.calls if call[0] == "log_checkpoint"] == [
        ("log_checkpoint", "2", 2),
        ("log_checkpoint", "4", 4),
    ]
    out = capsys.readouterr().out
    for hook in (*hooks, "dashboards"):
        assert out.count(f"Warning: Kept.{hook} failed, the run continues: no such host") == 1
    # At the start, and in the summary.
    assert "Kept: kept --open" in out.splitlines()
    assert re.search(r"│ Kept +│ kept --open +│", out)


@pytest.mark.long
def test_logger_of_a_resumed_run_is_told_where_it_goes_on(tmp_path):
    kept = []
    for until in (1, 2):
        kept.append(Kept())
        task_with(lambda _: kept[-1:], tmp_path, max_iterations=until, resume="auto").run()
    assert [(x.run.is_resumed, x.run.iteration, x.run.env_steps) for x in kept] == [(False, 0, 0), (True, 1, 128)]


def test_logger_that_fails_is_reported_once_and_counted_and_the_others_go_on(tmp_path, capsys):
    failing, other = Kept("log"), Kept()
    assert task_with(lambda task: [failing, *task.get_loggers(), other], tmp_path).run().exit_code == 0
    assert other.calls == [("open",), ("log", 1, 128), ("log", 2, 256), ("log_checkpoint", "2", 2), ("close",)]
    assert failing.calls == other.calls
    out = capsys.readouterr().out
    assert out.count("Warning: Kept.log failed, the run continues: no such host") == 1
    assert "iteration 2/2" in out
    assert "failed: Kept.log" in out
    assert "2 times" in out


def test_logger_that_cannot_be_opened_is_left_out(tmp_path, capsys):
    failing = Kept("open")
    assert task_with(lambda task: [failing], tmp_path).run().exit_code == 0
    assert failing.calls == [("open",), ("close",)]
    assert "Warning: Kept.open failed, the run continues: no such host" in capsys.readouterr().out


def test_run_without_loggers_prints_no_line_and_still_writes_its_metrics(tmp_path, capsys):
    result = task_with(lambda _: [], tmp_path).run()
    assert result.exit_code == 0
    assert "env steps/s" not in capsys.readouterr().out
    assert list(result.metrics["iteration"]) == [1, 2]


def test_what_is_no_logger_is_an_error_that_names_the_hook(tmp_path, monkeypatch):
    task = task_with(lambda _: [print], tmp_path)
    monkeypatch.setattr(task, "initial_state", lambda: pytest.fail("too late"))
    with pytest.raises(ConfigError, match=r"Logged\.get_loggers must return a list of ksim\.AbstractLogger, not"):
        task.run()


PACKAGES = [(ksim.WandbLogger, "wandb"), (ksim.MlflowLogger, "mlflow")]


@pytest.mark.parametrize(("logger", "package"), PACKAGES)
def test_choice_of_checkpoints_or_package_that_there_is_not_is_an_error(logger, package, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        words = rf"needs {package}, which is not installed.*install 'ksim-rl\[{package}\]'"
        with pytest.raises(ConfigError, match=words):
            logger()
    pytest.importorskip(package)
    with pytest.raises(ConfigError, match=r"checkpoints \('best'\) must be one of last, all, none"):
        logger(checkpoints="best")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("error/velocity/lin_vel_m_s", ("velocity", "m/s")),
        ("error/velocity/yaw_rate_rad_s", ("yaw rate", "rad/s")),
        ("error/arm/joint_position_rad", ("joint position", "rad")),
        ("error/hand/position_m", ("position", "m")),
        ("error/mine/share", ("share", "")),
    ],
)
def test_quantities_and_units_of_errors(name, words):
    assert quantity_and_unit(name) == words


def test_errors_of_two_commands_are_told_apart():
    words = error_labels(["error/left/position_m", "error/right/position_m", "error/velocity/lin_vel_m_s"])
    assert list(words.values()) == ["position error (left), m", "position error (right), m", "velocity error, m/s"]
