"""Names of this machine's programs in messages."""

import shlex
import sys
from pathlib import Path

import pytest

from ksim.host.machine import python_word


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A virtual environment in a folder whose name has a space."""
    programs = tmp_path / "my folder" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python3"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    return programs


def test_python_of_the_shell_is_named_by_its_word_and_another_by_its_path(environment, monkeypatch):
    monkeypatch.setenv("PATH", str(environment))
    assert python_word() == "python"
    monkeypatch.setenv("PATH", "")
    assert python_word() == "'my folder/.venv/bin/python3'"
    monkeypatch.chdir(environment.parents[1])
    assert python_word() == ".venv/bin/python3"
    (environment.parents[2] / "elsewhere").mkdir()
    monkeypatch.chdir(environment.parents[2] / "elsewhere")
    assert [Path(word) for word in shlex.split(python_word())] == [environment / "python3"]
    Path.cwd().rmdir()
    assert [Path(word) for word in shlex.split(python_word())] == [environment / "python3"]
