"""Warnings that point at the line of the user's program that caused them."""

import collections
import contextlib
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import equinox
import jax
import jaxtyping

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
def given_to(listen: Callable[[str, str, int], None]) -> Iterator[None]:
    """Passes all warnings of the block to `listen`, after those since the last such block.

    Python shows a warning with the same text and line only once per process, but every run's log should have it.

    Args:
        listen: Called with the message, the file and the line.
    """
    for given in take_given():
        listen(*given)
    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)
