"""Output of the processes, to files or prefixed line by line. The last lines are kept for failure reports."""

import contextlib
import os
import re
import selectors
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ksim.errors import ConfigError

NUM_LAST_LINES = 20
# Bytes of an unfinished line that are buffered, and bytes at the end of a file that are searched for its last lines.
_MAX_LINE = _MAX_TAIL = 64 * 1024
_MAX_SHOWN = 500  # characters
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def say(text: str) -> None:
    """Writes a line of the launcher to stderr."""
    _write("stderr", f"ksim.launch: {text.rstrip()}\n".encode())


def prefix_of(process_id: int) -> str:
    """The start of each line of a process."""
    return f"[{process_id}] "


class AbstractOutput(ABC):
    """The destination of the output of one process; without a `path` it is no file."""

    path: Path | None = None

    @abstractmethod
    def targets(self) -> tuple[IO[bytes] | int, int]:
        """The stdout and stderr for `subprocess.Popen`."""

    @abstractmethod
    def started(self, process: subprocess.Popen[bytes]) -> None:
        """Called with the process that was started with these `targets`."""

    @abstractmethod
    def last_lines(self) -> list[str]:
        """The last lines, at most `NUM_LAST_LINES`, safe to print on a terminal."""


class FileOutput(AbstractOutput):
    """Output appended to a file by the process itself; the file and its directory are created.

    Raises:
        ConfigError: The file cannot be written.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise ConfigError(
                f"--log-dir ({path.parent}) must be a directory that can be written: {error}. Choose another."
            ) from error
        self._start = self._file.seek(0, os.SEEK_END)

    def targets(self) -> tuple[IO[bytes] | int, int]:
        return self._file, subprocess.STDOUT

    def started(self, process: subprocess.Popen[bytes]) -> None:
        self._file.close()

    def last_lines(self) -> list[str]:
        assert self.path is not None
        try:
            with self.path.open("rb") as file:
                file.seek(max(self._start, file.seek(0, os.SEEK_END) - _MAX_TAIL))
                return printable(file.read().split(b"\n"))
        except OSError as error:
            return [f"({error})"]


class PrefixedOutput(AbstractOutput):
    """Output to the launcher's stdout and stderr, in whole lines with the prefix `[<id>] `."""

    def __init__(self, process_id: int, pump: "Pump"):
        self._prefix = prefix_of(process_id).encode()
        self._pump = pump
        self._lines: deque[bytes] = deque(maxlen=NUM_LAST_LINES)

    def targets(self) -> tuple[IO[bytes] | int, int]:
        return subprocess.PIPE, subprocess.PIPE

    def started(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            self._pump.add(pipe, _Lines(self._prefix, name, self._lines))

    def last_lines(self) -> list[str]:
        return printable(list(self._lines))


class _Lines:
    """Splits the bytes of one pipe into lines, and writes them."""

    def __init__(self, prefix: bytes, target: str, last: deque[bytes]):
        self._prefix, self._target, self._last = prefix, target, last
        self._partial = b""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; empty at the end of the pipe."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_LINE or (self._partial and not data):
            lines.append(self._partial)
            self._partial = b""
        shown = [_after_return(line) for line in lines]
        self._last.extend(shown)
        if shown:
            _write(self._target, b"".join(self._prefix + line + b"\n" for line in shown))


class Pump:
    """A thread that copies the output of all processes."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def add(self, pipe: IO[bytes], lines: _Lines) -> None:
        """Adds a pipe to copy. Call it before `start`."""
        self._selector.register(pipe, selectors.EVENT_READ, lines)

    def start(self) -> None:
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Copies the rest of the pipes. A process that escaped its group may hold them open, hence the timeout."""
        self._thread.join(timeout_s)
        self._stop = True
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # blocked: the reader of the launcher's output has stalled
            return
        for key in list(self._selector.get_map().values()):
            self._end(key)
        self._selector.close()

    def _end(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        key.data.feed(b"")
        key.fileobj.close()  # type: ignore[union-attr]

    def _run(self) -> None:
        while self._selector.get_map() and not self._stop:
            for key, _ in self._selector.select(timeout=0.1):
                data = os.read(key.fd, _MAX_LINE)
                if data:
                    key.data.feed(data)
                else:
                    self._end(key)


def _write(target: str, data: bytes) -> None:
    """Writes to the launcher's stdout or stderr; ignored if its reader is gone."""
    with contextlib.suppress(OSError, ValueError):
        stream = getattr(sys, target)
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()


def _after_return(line: bytes) -> bytes:
    """The text after the last carriage return, as a terminal shows a redrawn progress bar."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def printable(lines: Sequence[bytes]) -> list[str]:
    """The last non-empty lines, truncated, with unprintable characters replaced."""
    texts = []
    for line in lines:
        text = _ESCAPE_SEQUENCE.sub("", _after_return(line).decode(errors="replace")).rstrip()
        text = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
        if text:
            texts.append(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ...")
    return texts[-NUM_LAST_LINES:]
