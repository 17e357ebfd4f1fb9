import contextlib
import os
from pathlib import Path

import pytest

from ksim import ConfigError
from ksim.checkpoint import run_dir
from ksim.checkpoint.run_dir import shared_run_dir
from ksim.log import run_log as log
from ksim.log.run_log import run_log


@pytest.fixture
def as_second_process(monkeypatch):
    """Process 1 of 2, told of a run directory by process 0."""

    def told(path):
        monkeypatch.setattr(run_dir, "num_processes", lambda: 2)
        monkeypatch.setattr(log, "process_index", lambda: 1)
        monkeypatch.setattr(run_dir, "is_main_process", lambda: False)
        monkeypatch.setattr(run_dir, "fail_together", contextlib.nullcontext)
        monkeypatch.setattr(run_dir, "gather_texts", lambda _: [str(path), "."])

    return told


def test_other_processes_take_the_directory_that_process_0_made_and_make_none(as_second_process, tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    as_second_process(made)
    assert shared_run_dir(None, None, "task") == made
    assert list(tmp_path.iterdir()) == [made]
    with run_log("info") as opened:
        assert opened.open(made) == made / "process_1.log"


def test_directory_that_is_seen_late_as_by_nfs_is_looked_for_again_after_its_parents_were_listed(
    as_second_process, tmp_path, monkeypatch
):
    made = tmp_path / "runs" / "made"
    made.mkdir(parents=True)
    as_second_process(made)
    hidden, is_dir, listdir = {tmp_path / "runs", made}, Path.is_dir, os.listdir
    monkeypatch.setattr(Path, "is_dir", lambda path: path not in hidden and is_dir(path))

    def list_and_show(path):
        hidden.difference_update(listed := [path / name for name in listdir(path) if path not in hidden])
        return listed

    monkeypatch.setattr(run_dir, "_APPEARING_S", 60.0)
    monkeypatch.setattr(os, "listdir", list_and_show)
    assert shared_run_dir(None, None, "task") == made


def test_directory_that_a_process_does_not_see_is_an_error_unless_it_can_log_elsewhere(
    as_second_process, tmp_path, monkeypatch
):
    as_second_process(tmp_path / "elsewhere")
    monkeypatch.setattr(run_dir, "_APPEARING_S", 0.0)
    monkeypatch.setenv("KSIM_LOG_DIR", "")
    with pytest.raises(ConfigError, match=r"made by process 0, is not visible on .*KSIM_LOG_DIR"):
        shared_run_dir(None, None, "task")
    monkeypatch.setenv("KSIM_LOG_DIR", str(tmp_path / "logs"))
    with run_log("info") as opened:
        assert opened.open(shared_run_dir(None, None, "task")) == tmp_path / "logs" / "process_1.log"
    assert not (tmp_path / "elsewhere").exists()


def test_log_that_cannot_be_written_is_an_error_that_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KSIM_LOG_DIR", str(tmp_path / "file"))
    with run_log("info") as opened, pytest.raises(ConfigError, match=r"process_0\.log\) cannot be written: .*Set KSIM"):
        opened.open(tmp_path)
