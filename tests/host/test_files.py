import contextlib
import errno
import os

import pytest

from ksim.host.files import whole_file, write_through


def test_file_appears_under_its_name_once_it_is_whole(tmp_path):
    path = tmp_path / "new" / "plot.png"
    with whole_file(path) as temporary:
        temporary.write_text("half")
        assert (temporary.parent, temporary.suffix, path.exists()) == (path.parent, ".png", False)
    assert [file.name for file in path.parent.iterdir()] == ["plot.png"]
    assert path.read_text() == "half"


def test_file_that_was_there_stays_when_writing_the_next_fails(tmp_path):
    path = tmp_path / "plot.png"
    path.write_text("old")

    def fail():
        with whole_file(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == ["plot.png"]
    assert path.read_text() == "old"


def test_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, path.exists())))
    path = tmp_path / "config.yaml"
    with whole_file(path) as temporary:
        temporary.write_text("seed: 0")
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


@pytest.mark.parametrize(("number", "is_refused"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_file_system_that_syncs_no_directories_is_put_up_with_and_a_broken_one_is_not(
    number, is_refused, tmp_path, monkeypatch
):
    def fsync(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "file").touch()
    for path, fails in ((tmp_path, is_refused), (tmp_path / "file", True)):
        with pytest.raises(OSError, match=os.strerror(number)) if fails else contextlib.nullcontext():
            write_through(path)
