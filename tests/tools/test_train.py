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
    monkeypatch.setattr("sys.path", sys.path.copy())
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["run_mode=view", "checkpoint=my_run"]),
        (["viewer=browser"], ["run_mode=view", "checkpoint=my_run", "viewer=browser"]),
        (["run_mode=eval"], ["checkpoint=my_run", "run_mode=eval"]),
        (["checkpoint=my_run/checkpoints/3"], ["run_mode=view", "checkpoint=my_run/checkpoints/3"]),
    ],
)
def test_directory_of_a_run_views_its_newest_policy_by_its_own_program(options, expected, started, run_dir):
    (run_dir / "command.txt").write_text("python -m json.tool\n")
    assert train.main(["my_run", *options]) == 0
    assert started == [("json.tool", expected)]


@pytest.fixture
def run_dir(tmp_path):
    """A run without a command, in the working directory."""
    (tmp_path / "my_run").mkdir()
    (tmp_path / "my_run" / "config.yaml").touch()
    return tmp_path / "my_run"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (None, "my_run/command.txt must name the program of the run, as 'python -m MODULE' or 'python FILE.py'"),
        ("rm -r x", "must name the program of the run, as 'python -m MODULE' or 'python FILE.py', but holds 'rm -r x'"),
        ("python -m json.tool x", "must name the program of the run"),
        ("python 'x", "must name the program of the run"),
        ("python my_run/mine.py", "must name the program of the run"),  # it came with the run, maybe from others
        ("python -m no_such.module", "The program of the run my_run, no_such.module, is not here."),
        ("python mine.py", "The program of the run my_run, mine.py, is not here. Go to the folder in which"),
    ],
)
def test_run_whose_program_cannot_be_started_exits_with_2(command, message, started, run_dir, capsys):
    if command is not None:
        (run_dir / "command.txt").write_text(command)
    (run_dir / "mine.py").touch()
    assert train.main(["my_run"]) == 2
    assert message in capsys.readouterr().err
    assert started == []


def test_example_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", sys.argv)
    options = ["num_devices=2", "max_iterations=1", "eval_at_end=false", "plots=false"]
    assert exit_code(train.main, ["point_mass", *options]) == 0
    assert "iteration 1/1" in capsys.readouterr().out
    run_dir = tmp_path / "runs/point_mass_task/run_000"
    assert (run_dir / "metrics.jsonl").is_file()
    assert (run_dir / "command.txt").read_text() == "python -m ksim.examples.point_mass\n"
