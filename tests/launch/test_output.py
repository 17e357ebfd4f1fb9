import io
import os
from collections import deque

import pytest

from ksim.errors import ConfigError
from ksim.launch.output import NUM_LAST_LINES, FileOutput, _Lines, printable


@pytest.fixture
def lines():
    return _Lines(b"[0] ", "stdout", deque(maxlen=NUM_LAST_LINES))


def test_line_that_comes_in_pieces_is_written_whole(lines, capfdbinary):
    for piece in (b"on", b"e\ntw", b"o\n\nrest", b""):
        lines.feed(piece)
    assert capfdbinary.readouterr().out == b"[0] one\n[0] two\n[0] \n[0] rest\n"


def test_progress_bar_becomes_one_line_in_its_last_state(lines, capfdbinary):
    lines.feed(b"10 %\r50 %\r")
    lines.feed(b"100 %\r\nnext\r\n")
    assert capfdbinary.readouterr().out == b"[0] 100 %\n[0] next\n"


def test_endless_line_is_written_in_pieces_and_loses_nothing(lines, capfdbinary):
    for _ in range(300):
        lines.feed(b"x" * 1000)
    lines.feed(b"")
    out = capfdbinary.readouterr().out
    assert out.count(b"x") == 300_000
    assert max(map(len, out.split(b"\n"))) < 70_000


def test_bytes_that_are_no_text_are_passed_through_and_shown_harmlessly(lines, capfdbinary):
    junk = bytes(byte for byte in range(256) if byte not in b"\r\n")
    lines.feed(junk + b"\n")
    assert capfdbinary.readouterr().out == b"[0] " + junk + b"\n"
    (shown,) = printable([junk])
    assert "\x1b" not in shown
    assert "\x00" not in shown
    assert "abc" in shown


def test_shown_lines_are_the_last_that_say_anything_without_colours_and_cut():
    assert printable([b"\x1b[31mred\x1b[0m", b"", b"  "]) == ["red"]
    assert printable([b"%d" % i for i in range(50)]) == [str(i) for i in range(30, 50)]
    assert len(printable([b"x" * 10_000])[0]) < 600


def test_file_is_gone_on_with_and_its_last_lines_are_of_this_process_alone(tmp_path):
    path = tmp_path / "logs" / "process_0.out"
    path.parent.mkdir()
    path.write_text("earlier\n")
    output = FileOutput(path)
    file, _ = output.targets()
    assert isinstance(file, io.IOBase)
    os.write(file.fileno(), b"now\n")
    assert path.read_text() == "earlier\nnow\n"
    assert output.last_lines() == ["now"]
    file.close()


def test_file_that_cannot_be_written_is_an_error_that_names_the_directory(tmp_path):
    (tmp_path / "process_0.out").mkdir()
    with pytest.raises(ConfigError, match=r"--log-dir \(.*Choose another"):
        FileOutput(tmp_path / "process_0.out")
