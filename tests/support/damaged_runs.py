"""Trainings in processes of their own that are killed and resumed, and how their results are compared."""

import json

import pytest

from ksim import cli
from tests.support.faulty_train import QUIET, SMALL, TASKS
from tests.support.processes import exit_code, finish, start, start_job

TIMES = ("time/", "env_steps_per_s")


def train(moment, *arguments, cwd, task="point_mass", num_devices=1, num_processes=1):
    """Exit code and output of a training: of one process, or the first that failed of several."""
    arguments = ("-m", "tests.support.faulty_train", task, moment, *arguments)
    if num_processes == 1:
        return finish(start(*arguments, cwd=cwd, num_devices=num_devices))
    job = start_job(*arguments, num_processes=num_processes, cwd=cwd, num_devices=num_devices)
    ends = [finish(process) for process in job]
    return next((end for end in ends if end[0]), ends[0])


def train_here(*arguments):
    """Trains the point mass as `train` does, in this process and on one device."""
    task, config = TASKS["point_mass"]
    assert exit_code(cli.launch, task, config(), [*SMALL, *QUIET, "num_devices=1", *arguments]) == 0


def read_lines(path):
    """The records of a file of JSON lines, every one of which must be whole."""
    text = path.read_text() if path.exists() else ""
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def without_times(record):
    """The metrics of a line of metrics.jsonl that depend neither on the clock nor on the number of devices."""
    return {name: value for name, value in record.items() if not name.startswith(TIMES) and "/device_" not in name}


def assert_same_metrics(run_dir, reference_dir, tolerance):
    """Every iteration is there once, with the metrics that it has in an uninterrupted run."""
    lines, reference = read_lines(run_dir / "metrics.jsonl"), read_lines(reference_dir / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [line["iteration"] for line in reference]
    for line, expected in zip(map(without_times, lines), map(without_times, reference), strict=True):
        assert line.keys() == expected.keys()
        for name, value in line.items():
            wanted = expected[name]
            assert (value is None) == (wanted is None), (line["iteration"], name, value, wanted)
            if value is not None:
                assert value == pytest.approx(wanted, rel=tolerance, abs=tolerance), (line["iteration"], name)
