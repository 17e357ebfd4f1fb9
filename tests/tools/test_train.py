"""`ksim-train` finds tasks by their names and by their files."""

import sys

import pytest

from ksim.tools import train
from tests.support.processes import ROOT, exit_code


@pytest.fixture
def started(monkeypatch):
    """The modules that were run: their names and arguments."""
    started = []
    monkeypatch.setattr(train.runpy, "run_module", lambda name, **_: started.append((name, sys.argv[1:])))
    monkeypatch.setattr("sys.argv", sys.argv)
    return started


def test_help_lists_every_example_that_trains(capsys):
    assert train.main(["--help"]) == 0
    out = capsys.readouterr().out
    tasks = {path.stem for path in (ROOT / "examples").glob("*.py") if ".launch(" in path.read_text()}
    assert set(train.example_tasks()) == tasks
    for name, summary in train.example_tasks().items():
        assert f"  {name} " in out
        assert summary.endswith(".")
        assert summary in out


@pytest.mark.parametrize(
    ("argv", "module", "options"),
    [
        ([], "walking_distributed", []),
        (["num_envs=16", "seed=1"], "walking_distributed", ["num_envs=16", "seed=1"]),
        (["--help", "num_envs"], "walking_distributed", ["--help", "num_envs"]),
        (["quadruped", "num_envs=16"], "quadruped", ["num_envs=16"]),
        (["walking", "--help"], "walking", ["--help"]),
    ],
)
def test_first_argument_is_the_task_unless_it_is_an_option(argv, module, options, started):
    assert train.main(argv) == 0
    assert started == [(f"ksim.examples.{module}", options)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("walkin", "There is no example 'walkin'. Did you mean 'walking'"),
        ("deploy", "There is no example 'deploy'. Known names: minimal, point_mass, "),
        ("examples/walking", "There is no example 'examples/walking'. "),
        ("my_robot.py", "There is no file 'my_robot.py'."),
    ],
)
def test_unknown_task_exits_with_2_and_names_the_near_ones(name, message, started, capsys):
    assert train.main([name, "num_envs=16"]) == 2
    assert f"Error: {message}" in capsys.readouterr().err
    assert started == []


def test_file_sees_its_options_and_the_modules_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", sys.argv)
    monkeypatch.setattr("sys.path", sys.path.copy())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/gait_of_mine.py").write_text("PERIOD_S = 0.5")
    (tmp_path / "elsewhere/mine.py").write_text("import sys, gait_of_mine\nprint(__name__, sys.argv)")
    assert train.main(["elsewhere/mine.py", "num_envs=16"]) == 0
    assert capsys.readouterr().out == "__main__ ['elsewhere/mine.py', 'num_envs=16']\n"


def test_example_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", sys.argv)
    options = ["num_devices=2", "max_iterations=1", "eval_at_end=false", "plots=false"]
    assert exit_code(train.main, ["point_mass", *options]) == 0
    assert "iteration 1/1" in capsys.readouterr().out
    assert (tmp_path / "runs/point_mass_task/run_000/metrics.jsonl").is_file()
