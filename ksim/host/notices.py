"""Warnings that point at the line of the user's program that led to them."""

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
"""Packages that call ksim's functions for a user."""
_INTERNAL = (
    str(Path(__file__).parents[1]) + os.sep,
    *(str(Path(inspect.getfile(package)).parent) + os.sep for package in _BETWEEN),
    *(inspect.getfile(module) for module in (contextlib, functools)),
    "<@beartype",  # what it generates
)
_MOST_KEPT = 100
_given: collections.deque[tuple[str, str, int]] = collections.deque(maxlen=_MOST_KEPT)
_listeners: list[Callable[[str, str, int], None]] = []


def warn_user(message: str) -> None:
    """Warns at the innermost line outside ksim; where there is none, as in ksim's own tools, at the outermost."""
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
    """The warnings given since the last call, outside `given_to`: each with its file and line."""
    taken = list(_given)
    _given.clear()
    return taken


@contextlib.contextmanager
def given_to(listen: Callable[[str, str, int], None]) -> Iterator[None]:
    """Hands all warnings of the block to a log, and before them those given since the last such block.

    Python shows one of the same words and line only once in a process, but the log of a later run has it as well.

    Args:
        listen: Takes the message, the file and the line.
    """
    for given in take_given():
        listen(*given)
    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)
