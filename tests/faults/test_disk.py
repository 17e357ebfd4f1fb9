"""Runs whose disk is full, whose directory goes away, or which may no longer write there."""

import os
import re
import shutil
import subprocess
import time

import pytest

from examples.point_mass import PointMassTask
from ksim import cli
from ksim.checkpoint import saver
from ksim.checkpoint.format import list_checkpoints, read_checkpoint
from ksim.checkpoint.run_dir import read_command
from ksim.errors import ConfigError, RunError
from ksim.train import loop
from tests.support.damaged_runs import read_lines
from tests.support.processes import exit_code
from tests.support.tasks import point_mass_task

OPTIONS = {"num_devices": 1, "save_every_n_iterations": 1, "max_to_keep": 2, "max_iterations": 9}


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], check=False, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    if shutil.which("mount") is None or not mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", path):
        pytest.skip("only root can mount a file system")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def after_iteration(monkeypatch):
    """Lets something happen once after an iteration, before it is written down."""
    happens = {}
    iterate = loop.iterate

    def iterate_and_happen(run, step):
        iterate(run, step)
        if run.progress.iteration in happens:
            if run.saver is not None:
                run.saver.wait()
            happens.pop(run.progress.iteration)()

    monkeypatch.setattr(loop, "iterate", iterate_and_happen)
    return happens


def fill(disk, *, but=0):
    """Leaves so many bytes free."""
    with (disk / "filler").open("wb", buffering=0) as file:
        if but:
            file.write(bytes(shutil.disk_usage(disk).free - but))
            return
        for size in (4096, 1):
            while True:
                try:
                    file.write(bytes(size))
                except OSError:
                    break


def assert_sound(run_dir, *iterations):
    """Every checkpoint can be read, nothing unfinished is left, and every line is whole."""
    checkpoints = list_checkpoints(run_dir / "checkpoints")
    assert [read_checkpoint(path).iteration for path in checkpoints] == list(iterations)
    assert len(list((run_dir / "checkpoints").iterdir())) == len(checkpoints)
    return [line["iteration"] for line in read_lines(run_dir / "metrics.jsonl")]


def test_disk_that_is_full_for_a_while_costs_nothing_but_checkpoints(small_disk, after_iteration, capsys):
    after_iteration[3] = lambda: fill(small_disk)
    after_iteration[6] = (small_disk / "filler").unlink
    task = point_mass_task(**OPTIONS, run_dir=str(small_disk / "run"), tensorboard=True)
    assert task.run().exit_code == 0
    assert assert_sound(small_disk / "run", 8, 9) == list(range(1, 10))
    out = capsys.readouterr().out
    assert out.count("Warning: checkpoint failed, the run continues") == 1
    assert "failed: checkpoint" in out


def test_disk_that_stays_full_ends_the_run_with_an_error_that_names_the_newest_checkpoint(small_disk, after_iteration):
    after_iteration[4] = lambda: fill(small_disk)
    task = point_mass_task(**OPTIONS, run_dir=str(small_disk / "run"))
    with pytest.raises(RunError, match=r"of iteration 9, could not be saved.*The newest one is .*checkpoints/3"):
        task.run()
    # A line may find the room that a checkpoint did not.
    written = assert_sound(small_disk / "run", 2, 3)
    assert written[:3] == [1, 2, 3]
    assert written == list(range(1, len(written) + 1))
    (small_disk / "filler").unlink()
    assert point_mass_task(**OPTIONS, run_dir=str(small_disk / "run"), resume="auto").run().exit_code == 0
    assert assert_sound(small_disk / "run", 8, 9) == list(range(1, 10))


def test_disk_that_is_full_in_the_middle_of_a_checkpoint_prints_one_error_and_logs_the_rest(
    small_disk, tmp_path, monkeypatch, capfd
):
    write = saver.Saver._write

    def fill_and_write(self, iteration, *state):
        if iteration == 3:  # there is room for two checkpoints and a few files of the third
            fill(small_disk, but=2 * 4096)
        write(self, iteration, *state)

    monkeypatch.setattr(saver.Saver, "_write", fill_and_write)
    monkeypatch.setenv("KSIM_LOG_DIR", str(tmp_path))
    config = point_mass_task(**OPTIONS | {"max_iterations": 3}, run_dir=str(small_disk / "run")).config
    assert exit_code(cli.launch, PointMassTask, config, []) == 1
    output = "".join(capfd.readouterr())
    assert "Traceback" not in output
    assert "os error" not in output
    (error,) = re.findall(r"^Error: .*", output, re.MULTILINE)
    assert re.search(r"of iteration 3, could not be saved: \[Errno 28\] No space left on device: '\S+/3'\. ", error)
    log = (tmp_path / "process_0.log").read_text()
    assert "No space left on device (os error 28)" in log  # as safetensors says it
    assert "Traceback" in log


def test_removed_directory_is_made_again_and_only_what_was_in_it_is_lost(tmp_path, after_iteration, capsys):
    after_iteration[5] = lambda: shutil.rmtree(tmp_path / "run")
    task = point_mass_task(**OPTIONS, run_dir=str(tmp_path / "run"), tensorboard=True)
    task.command = "python -m examples.point_mass"
    assert task.run().exit_code == 0
    assert assert_sound(tmp_path / "run", 8, 9) == [6, 7, 8, 9]
    assert (tmp_path / "run" / "config.yaml").exists()
    assert read_command(tmp_path / "run") == ["-m", "examples.point_mass"]
    assert "was removed. It was created again" in capsys.readouterr().out
    assert "Saved" in (tmp_path / "run" / "process_0.log").read_text()


@pytest.fixture
def take_permission_away(tmp_path):
    """Lets this process lose the right to write under the directory of the test."""
    is_root = os.geteuid() == 0
    run_dirs = lambda: [path for path in (tmp_path / "run").rglob("*") if path.is_dir()] + [tmp_path / "run"]

    def take():
        if is_root:
            os.seteuid(65534)
        else:
            for path in run_dirs():
                path.chmod(0o500)

    yield take
    if is_root:
        os.seteuid(0)
    else:
        for path in run_dirs():
            path.chmod(0o700)


def test_directory_that_may_no_longer_be_written_is_as_it_was(tmp_path, after_iteration, take_permission_away):
    after_iteration[4] = take_permission_away
    with pytest.raises(RunError, match=r"of iteration 9, could not be saved: .*Permission denied"):
        point_mass_task(**OPTIONS, run_dir=str(tmp_path / "run"), tensorboard=True).run()
    if os.geteuid() == 65534:
        os.seteuid(0)
    assert assert_sound(tmp_path / "run", 2, 3)[:3] == [1, 2, 3]


def test_directory_that_cannot_be_written_from_the_start_is_refused(small_disk):
    mount("-o", "remount,ro", small_disk)
    with pytest.raises(ConfigError, match=r"run_dir \(.*\) cannot be created: .* must be writable"):
        point_mass_task(**OPTIONS, run_dir=str(small_disk / "run")).run()


@pytest.mark.long
def test_clock_that_is_set_back_changes_nothing(tmp_path, after_iteration, monkeypatch):
    day_s, now = 86_400, time.time
    after_iteration[3] = lambda: monkeypatch.setattr(time, "time", lambda: now() - day_s)
    options = OPTIONS | {"save_every_n_seconds": 1e-6, "eval_every_n_seconds": 1e-6, "max_runtime": 3600}
    options["normalize_values"] = False
    task = point_mass_task(**options, run_dir=str(tmp_path / "run"), tensorboard=True)
    assert task.run().exit_code == 0
    assert assert_sound(tmp_path / "run", 7, 8, 9) == list(range(1, 10))  # the 7th is the best
    assert [line["iteration"] for line in read_lines(tmp_path / "run" / "evaluations.jsonl")] == list(range(1, 10))
    assert all(line["time/iteration_s"] > 0 for line in read_lines(tmp_path / "run" / "metrics.jsonl"))
