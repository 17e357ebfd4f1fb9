"""Lines, warnings and tables on standard output."""

import collections
import contextlib
import functools
import inspect
import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import equinox
import jax
import jaxtyping
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

try:
    import termios
except ImportError:  # on Windows
    termios = None

logger = logging.getLogger(__name__)

CELL_WIDTH = 100
"""Width of a notebook cell's output, in characters."""
_SHOW_CURSOR = b"\x1b[?25h"
_echo: list[Any] = []
"""The terminal's settings before `without_echo_of_keys`, inside of it."""


class _Output(Console):
    """Standard output that survives a full disk or a closed pipe."""

    _is_told = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().print(*args, **kwargs)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                logger.warning("Standard output cannot be written: %s", error)

    def on_broken_pipe(self) -> None:
        """Silences the output. Rich would end the process."""
        self.quiet = True


def standard_output(is_notebook: bool | None = None) -> Console:
    """Standard output, with lines wrapped in a notebook's cell (detected if None) and unwrapped in a file or a pipe.

    Tables in a file or a pipe are as wide as KSIM_COLUMNS says, which the launcher sets.
    """
    # Rich would wrap lines at 80 columns.
    width = None if sys.stdout is not None and sys.stdout.isatty() else int(os.environ.get("KSIM_COLUMNS", "120"))
    output = _Output(highlight=False, soft_wrap=True, width=width, force_jupyter=is_notebook)
    if output.is_jupyter:
        # Notebook cells do not wrap lines; the part beyond the edge is hidden.
        output.soft_wrap, output.width = False, CELL_WIDTH
    return output


console = standard_output()


def print_line(text: str) -> None:
    """Prints a line verbatim: brackets in it are no markup. A terminal breaks it between words, not within them."""
    if console.is_terminal and not console.is_jupyter:
        text = "\n".join(_wrapped(line, console.width) for line in text.split("\n"))
    console.print(text, markup=False)


def _wrapped(line: str, width: int) -> str:
    """A line that is too long, broken between words and indented from its second row on; commands stay whole."""
    if len(line) <= width or line.startswith(" "):
        return line
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def print_warning(text: str) -> None:
    """Prints a warning, and logs it."""
    logger.warning(text)
    print_line(f"Warning: {text}")


class Activity:
    """The current activity, shown while it lasts: in the live view by `show`, as a transient status, or as a line."""

    show: ClassVar[Callable[[str], None] | None] = None
    notice: ClassVar[str] = ""
    """A line that the live view shows until it closes, such as that the run is about to stop."""
    _status: ClassVar[Status | None] = None

    @classmethod
    @contextlib.contextmanager
    def doing(cls, what: str) -> Iterator[None]:
        """Shows an activity, such as `Evaluating`, during the block. Do not nest."""
        with contextlib.ExitStack() as stack:
            if cls.show is not None:
                cls.show(f"{what} ...")
            elif console.is_terminal:
                cls._status = stack.enter_context(console.status(f"{what} ..."))
            else:
                print_line(f"{what} ...")
            try:
                yield
            finally:
                cls._status = None
                if cls.show is not None:
                    cls.show("")

    @classmethod
    def tell(cls, text: str) -> None:
        """Shows the progress of the activity, if it can be updated in place."""
        if cls.show is not None:
            cls.show(text)
        elif cls._status is not None:
            cls._status.update(text)


def print_figures(title: str, figures: dict[str, str]) -> None:
    """Prints names and values as a table of two columns."""
    console.print(figures_table(title, figures))


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table with column heads."""
    table = Table(title=escape(title), title_justify="left")
    for head in heads:
        table.add_column(escape(head), overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def figures_table(title: str, figures: Mapping[str, str]) -> Table:
    """Names and values as a table of two columns."""
    table = Table(title=escape(title), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in figures.items():
        table.add_row(escape(name), escape(value))
    return table


def format_seconds(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


_BETWEEN = (equinox, jax, jaxtyping)
"""Packages whose frames may lie between the user's code and ksim's."""
_INTERNAL = (
    str(Path(__file__).parents[1]) + os.sep,
    *(str(Path(inspect.getfile(package)).parent) + os.sep for package in _BETWEEN),
    *(inspect.getfile(module) for module in (contextlib, functools)),
    "<@beartype",  # code that beartype generates
)
_MOST_KEPT = 100
_given: collections.deque[tuple[str, str, int]] = collections.deque(maxlen=_MOST_KEPT)
_listeners: list[Callable[[str, str, int], None]] = []


def warn_user(message: str) -> None:
    """Warns at the innermost line outside ksim; at the outermost line if all are ksim's, as in its own tools."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INTERNAL):
        frame = frame.f_back
    filename, line = frame.f_code.co_filename, frame.f_lineno
    if _listeners:
        _listeners[-1](message, filename, line)
    else:
        _given.append((message, filename, line))
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "__main__")
    warnings.warn_explicit(message, UserWarning, filename, line, module, registry)


def take_given() -> list[tuple[str, str, int]]:
    """Message, file and line of each warning since the last call that no `given_to` block received."""
    taken = list(_given)
    _given.clear()
    return taken


@contextlib.contextmanager
def without_echo_of_keys() -> Iterator[None]:
    """Keeps a terminal from writing `^C` in the block, which would move what is redrawn in place."""
    if termios is None or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    flags = [*before]
    flags[3] &= ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSANOW, flags)
    _echo[:] = before
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
        _echo.clear()


def release_terminal() -> None:
    """Shows the cursor again and ends `without_echo_of_keys`: the process may end without closing its live view."""
    if Activity.show is None or not console.is_terminal:
        return
    with contextlib.suppress(OSError):
        os.write(1, _SHOW_CURSOR)
    if _echo and termios is not None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, _echo)


@contextlib.contextmanager
def given_to(listen: Callable[[str, str, int], None]) -> Iterator[None]:
    """Passes all warnings of the block to `listen(message, file, line)`, after those since the last such block.

    Python shows a warning with the same text and line only once per process, but every run's log should have it.
    """
    for given in take_given():
        listen(*given)
    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)


class Failures:
    """Failures in optional parts of a run. Each kind is reported once, and all are counted."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def tolerate(self, kind: str) -> Iterator[None]:
        """Counts failures of the block, and logs the first of a kind as a warning. Signals and exits propagate."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - logged and counted
            self.add(kind, error)

    def add(self, kind: str, error: Exception) -> None:
        """Counts a failure that was caught elsewhere, and logs it if it is the first of its kind."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            logger.warning("A failed %s does not end the run.", kind, exc_info=error)
            print_line(f"Warning: {kind} failed, the run continues: {error or type(error).__name__}")
