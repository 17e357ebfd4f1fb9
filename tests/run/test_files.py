import pytest

from ksim.run.files import whole_file


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
