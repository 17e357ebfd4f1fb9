"""When a run saves, what is kept of that, and what stops it."""

import json
import os
import signal
import time

import pytest

import ksim
from ksim import ConfigError
from ksim.checkpoint.format import find_best, list_checkpoints
from ksim.evaluate.evaluator import Estimate
from ksim.host.signals import OUT_OF_TIME_EXIT_CODE
from ksim.train import loop
from tests.support.checkpoints import newest
from tests.support.tasks import point_mass_task


def test_newest_ones_and_the_best_are_kept(tmp_path, monkeypatch):
    returns = iter([1.0, 5.0, 2.0, 3.0, 4.0, 0.0])

    def evaluated(self, progress, learner):
        record = {"iteration": progress.iteration, "env_steps": 0, "return_gap": None}
        mean = next(returns)
        self._loggers.log_evaluation({**record, "figures": {"return": Estimate(mean, mean, mean).record()}})
        if mean > self._best_return:
            self._best_return = mean
            self._saver.best = progress.iteration

    monkeypatch.setattr("ksim.evaluate.reports.Reports._evaluate", evaluated)
    options = {"save_every_n_iterations": 1, "max_to_keep": 2, "eval_every_n_iterations": 1}
    point_mass_task(num_devices=1, max_iterations=6, run_dir=str(tmp_path / "run"), **options).run()
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["2", "5", "6"]
    assert find_best(tmp_path / "run").name == "2"
    assert ksim.load_policy(tmp_path / "run" / "checkpoints" / "best").iteration == 2


def test_checkpoints_come_after_so_many_seconds(tmp_path, monkeypatch):
    point_mass_task(
        num_devices=1, max_iterations=3, save_every_n_seconds=1e-6, run_dir=str(tmp_path / "run"), max_to_keep=9
    ).run()
    # One that is still being written puts the next one off; the last is always there.
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "3"
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) >= 2


def test_max_runtime_saves_and_exits_with_a_code_of_its_own_after_one_iteration_at_least(tmp_path, capsys):
    options = {"num_devices": 1, "run_dir": str(tmp_path / "run"), "max_runtime": "0:00:01"}
    for done in (1, 2):
        code = point_mass_task(**options, max_iterations=9, resume="auto").run().exit_code
        assert code == OUT_OF_TIME_EXIT_CODE == 75
        assert newest(tmp_path / "run").name == str(done)
    assert "max_runtime" in capsys.readouterr().out


def test_max_runtime_counts_from_the_start_of_the_launcher_that_restarted_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("KSIM_LAUNCHED_S", str(time.monotonic() - 1e6))
    options = {"num_devices": 1, "run_dir": str(tmp_path / "run"), "max_runtime": 5e5, "max_iterations": 9}
    assert point_mass_task(**options).run().exit_code == OUT_OF_TIME_EXIT_CODE
    assert newest(tmp_path / "run").name == "1"


@pytest.mark.long
def test_evaluation_that_max_runtime_leaves_no_time_for_is_made_up_for(tmp_path):
    options = {"num_devices": 1, "run_dir": str(tmp_path / "run"), "max_runtime": "0:00:01", "eval_at_end": True}
    evaluations = tmp_path / "run" / "evaluations.jsonl"
    assert point_mass_task(**options, max_iterations=1, resume="auto").run().exit_code == OUT_OF_TIME_EXIT_CODE
    assert not evaluations.exists()
    assert point_mass_task(**options, max_iterations=1, resume="auto").run().exit_code == 0
    assert [json.loads(line)["iteration"] for line in evaluations.read_text().splitlines()] == [1]


@pytest.mark.parametrize("value", ["soon", "1:2:3:4", "-5", "0", "nan"])
def test_max_runtime_that_is_no_time_is_refused(value):
    with pytest.raises(ConfigError, match="max_runtime"):
        point_mass_task(max_runtime=value)


def test_warning_of_slurm_stops_saves_and_says_its_number(tmp_path, monkeypatch):
    iterate = loop.iterate
    monkeypatch.setattr(loop, "iterate", lambda *args: (iterate(*args), os.kill(os.getpid(), signal.SIGUSR1)))
    task = point_mass_task(num_devices=1, max_iterations=None, run_dir=str(tmp_path / "run"))
    assert task.run().exit_code == 128 + signal.SIGUSR1
    assert newest(tmp_path / "run").name == "1"
