"""Runs whose workers are killed, and which the launcher restarts from their newest checkpoint."""

import os
import re
import signal

import pytest

from examples.point_mass import PointMassConfig, PointMassTask
from ksim.log import jsonl
from ksim.task.overrides import parse_overrides
from tests.end_to_end.stand_in import with_last_values
from tests.end_to_end.test_processes import SMALL, processes_of, read_metrics
from tests.support.processes import finish, read_until, start
from tests.support.scale import only_in_full

SAVED = ("run_dir=run", "save_every_n_iterations=10")


def launch(cwd, *arguments):
    return start("-m", "ksim.launch", "--grace-s", "5", *arguments, cwd=cwd)


def finish_mortal_job(cwd, num_processes, restarts, deaths, *options):
    """The output of a run whose workers are killed, `iteration:process` for each."""
    launcher = ("--nproc-per-node", str(num_processes), *restarts)
    code, output = finish(
        launch(cwd, *launcher, "-m", "tests.support.faulty_job", deaths, *with_last_values([*SMALL, *SAVED, *options])),
        timeout=600,
    )
    assert code == 0, output
    return output


def restarts_in(output):
    """Processes of each restart, and the iteration from which it went on."""
    found = re.findall(r"Restart \d of \d in (\d) process\w*, from the checkpoint of iteration (\d+)", output)
    return [(int(num), int(iteration)) for num, iteration in found]


@pytest.mark.long
def test_run_with_two_killed_workers_learns_what_one_without_does(tmp_path):
    # 2 processes, then the one that is left, then one again.
    options = ("num_envs=24", "num_batches=2", "max_iterations=40")
    restarts = ("--max-restarts", "2", "--min-nproc", "1")
    output = finish_mortal_job(tmp_path, 2, restarts, "15:1,27:0", *options)
    # Each cost no more than the interval between checkpoints.
    assert restarts_in(output) == [(1, 10), (1, 20)]
    assert {path.name for path in tmp_path.iterdir()} == {"run", "died_after_15", "died_after_27"}
    alone = with_last_values([*SMALL, *SAVED, *options, "run_dir=alone", "num_devices=1"])
    assert PointMassTask(parse_overrides(PointMassConfig(), alone)).run().exit_code == 0
    restarted, alone = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "alone")
    assert [line["iteration"] for line in restarted] == list(range(1, 41))
    for line, expected in zip(restarted, alone, strict=True):
        for name in ("rollout/reward", "episode/count", "loss/total", "env_steps"):
            assert line[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


@pytest.mark.long
@only_in_full("a second job that is killed and restarted")
def test_run_whose_directory_nobody_gave_goes_on_in_it_until_it_is_stopped(tmp_path):
    run_dir = tmp_path / "runs" / "point_mass_task" / "run_000"
    endless = (*SMALL, "save_every_n_iterations=10", "max_iterations=null")
    job = launch(tmp_path, "--nproc-per-node", "2", "--max-restarts", "2", "-m", "examples.point_mass", *endless)
    before = 0
    for victim in (1, 0):
        # Within the process that was started last, and beyond what is certainly saved.
        read_until(job, f"iteration {before + 35} ")
        os.kill(processes_of(job)[victim], signal.SIGKILL)
        output = read_until(job, "Restart")
        (origin,) = re.findall(r"in 2 processes, from the checkpoint of iteration (\d+) in", output)
        lines = len(jsonl.read_metrics(run_dir))  # the last was perhaps cut when its process was killed
        # The newest may not have been written to its end.
        assert lines - 20 < int(origin) <= lines
        before = int(origin)
    read_until(job, f"iteration {before + 5} ")
    job.send_signal(signal.SIGTERM)
    code, output = finish(job, timeout=600)
    assert code == 128 + signal.SIGTERM, output
    assert [line["iteration"] for line in read_metrics(run_dir)] == list(range(1, len(read_metrics(run_dir)) + 1))
    assert len(read_metrics(run_dir)) >= before + 5


@pytest.mark.long
@only_in_full("a job of three processes, restarted twice")
def test_number_of_processes_that_does_not_divide_the_environments_is_passed_over(tmp_path):
    options = ("num_envs=9", "num_batches=3", "max_iterations=20")
    output = finish_mortal_job(tmp_path, 3, ("--max-restarts", "1", "--min-nproc", "1"), "15:2", *options)
    assert "Number of environments (9) must be divisible by number of devices (2)" in output
    assert "The program refused to go on in 2 processes; the next attempt is with 1." in output
    assert [line["iteration"] for line in read_metrics(tmp_path / "run")] == list(range(1, 21))
    assert "from the checkpoint of iteration 10 in" in output
