"""Runs in directories of any name, none of which may lose a checkpoint."""

import os
import shlex

import numpy as np
import pytest
from safetensors.numpy import save_file

from examples.point_mass import PointMassConfig, PointMassTask
from ksim import ConfigError, cli
from ksim.checkpoint import format as checkpoint_format, run_dir as run_directory
from ksim.checkpoint.format import read_checkpoint, write_checkpoint
from ksim.checkpoint.run_dir import check_run_dir, locked, make_run_dir
from ksim.host.machine import python_word
from tests.support.checkpoints import DOCUMENT, save_run
from tests.support.processes import exit_code
from tests.support.tasks import WITHOUT_REPORTS, point_mass_task

NAMES = [
    *("plain", "back\\slash", "\\", "[x]", "[", "gs:", "s3:", "file:", "C:", "a.zarr|zarr:", "x.__lock", "run #2"),
    *("#x", "%d", "%2F", "a?b", "*", "~", " a ", "it's", '"a"', "$HOME", "{x}", "a;b", "-x", "日本", "\udcff", "a\nb"),
]


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_is_written_and_read_in_a_directory_of_any_name(name, tmp_path):
    path = tmp_path / name / "checkpoints" / "1"
    path.parent.mkdir(parents=True)
    write_checkpoint(path, {"learner.x": np.arange(5.0), "learner.none": np.zeros(0)}, DOCUMENT)
    np.testing.assert_array_equal(read_checkpoint(path).arrays["learner.x"], [0.0, 1.0, 2.0, 3.0, 4.0])
    assert os.listdir(tmp_path) == [name]
    assert os.listdir(path.parent) == ["1"]


@pytest.mark.parametrize("name", ["back\\slash", "[x]"])
def test_checkpoint_that_went_elsewhere_is_an_error_before_it_has_its_name(name, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_format, "save_file", lambda *_: None)
    path = tmp_path / name / "checkpoints" / "1"
    path.parent.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"arrays\.safetensors"):
        write_checkpoint(path, {"learner.x": np.arange(5.0)}, DOCUMENT)
    assert not path.exists()


def test_error_of_the_system_names_the_checkpoint(tmp_path, monkeypatch):
    def removed_while_written(arrays, file):
        file.parent.rmdir()
        save_file(arrays, file)

    monkeypatch.setattr(checkpoint_format, "save_file", removed_while_written)
    with pytest.raises(FileNotFoundError) as failed:
        write_checkpoint(tmp_path / "1", {"learner.x": np.arange(5.0)}, DOCUMENT)
    assert failed.value.filename == str(tmp_path / "1")


def test_directory_for_temporary_files_is_not_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    (tmp_path / "[x]").mkdir()
    write_checkpoint(tmp_path / "[x]" / "1", {"learner.x": np.arange(5.0)}, DOCUMENT)
    assert read_checkpoint(tmp_path / "[x]" / "1").iteration == 1


@pytest.mark.long
def test_run_in_a_directory_of_a_strange_name_does_as_the_commands_that_it_prints_say(tmp_path, capsys):
    small = point_mass_task(num_devices=1, max_iterations=1).config

    def launched(*argv):
        assert exit_code(cli.launch, PointMassTask, small, list(argv)) == 0
        return capsys.readouterr().out

    name = "it's #1: [x] back\\slash %d gs:"
    said = launched(f"run_dir={name}")
    assert os.listdir(tmp_path) == [name]
    assert f"Run directory: {name}\n" in said
    commands = [shlex.split(line) for line in said.split("\nNext:\n")[1].splitlines()]
    (program,) = {tuple(command[:3]) for command in commands}
    assert program == (*shlex.split(python_word()), "-m", "examples.point_mass")
    evaluates, _, exports, resumes = (command[3:] for command in commands)
    assert "run_mode=export" in exports
    assert f"Evaluation of {tmp_path}/{name}/checkpoints/1" in launched(*evaluates, "video=false")
    launched(*resumes, "max_iterations=2")
    assert sorted(os.listdir(tmp_path / name / "checkpoints")) == ["1", "2"]
    assert os.listdir(tmp_path) == [name]


def test_current_directory_whose_name_is_not_utf8_is_refused(tmp_path, monkeypatch):
    (tmp_path / "\udcff").mkdir()
    monkeypatch.chdir(tmp_path / "\udcff")
    for run_dir in (None, "run"):
        with pytest.raises(ConfigError, match=r"run_dir \('.*udcff/runs?'\) must have a path in UTF-8"):
            point_mass_task(num_devices=1, run_dir=run_dir, **WITHOUT_REPORTS).run()


def test_process_that_finds_a_run_says_what_its_environment_lacks_to_join_a_job(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").touch()
    monkeypatch.setenv("WORLD_SIZE", "2")
    lacks = "WORLD_SIZE=2 describe a job of several processes, but RANK and MASTER_ADDR must be set as well to join it"
    with pytest.raises(ConfigError, match=rf"already holds a run\. .*{lacks}"):
        check_run_dir(str(tmp_path))
    with locked(tmp_path), pytest.raises(ConfigError, match=rf"is in use: .*{lacks}"), locked(tmp_path):
        pass


def test_loser_of_two_starts_is_not_told_what_it_did(tmp_path, monkeypatch):
    task = point_mass_task(num_devices=1, run_dir="run", resume="auto", max_iterations=1)
    made = run_directory.make_run_dir

    def made_by_another_first(*arguments):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").touch()
        return made(*arguments)

    monkeypatch.setattr(run_directory, "make_run_dir", made_by_another_first)
    with pytest.raises(ConfigError, match="holds a run by now: another process was faster") as refused:
        task.run()
    assert "resume=auto" not in str(refused.value)
    with pytest.raises(ConfigError, match="holds a run by now"):
        make_run_dir(str(tmp_path / "run"), "task")


def test_policy_of_another_task_is_refused_before_anything_compiles(tmp_path, monkeypatch):
    class OtherTask(PointMassTask):
        pass

    save_run(point_mass_task(num_devices=1), tmp_path / "run")
    monkeypatch.setattr("ksim.train.run.RunState", lambda *_: pytest.fail("too late"))
    monkeypatch.setattr(OtherTask, "check", lambda _: pytest.fail("too late"))
    for option in ("resume", "load_weights"):
        config = PointMassConfig(num_devices=1, num_envs=16, actor_sizes=[9], **{option: "run"})
        with pytest.raises(ConfigError, match="is of the task 'point_mass_task', and this is 'other_task'"):
            OtherTask(config).run()


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "process_0.log"])
def test_run_directory_with_a_fifo_is_refused_before_anything_waits_at_it(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=rf"{name} is neither a file nor a directory"), locked(tmp_path):
        pass
