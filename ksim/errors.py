"""The two errors of ksim, and helpers for their messages."""

from collections.abc import Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")

_NEARLY = 0.9
"""Similarity, from 0 to 1 by difflib, of names that differ by a letter."""


class ConfigError(ValueError):
    """Invalid input. The message names the value, the rule and the fix. The command line exits with 2."""


class RunError(RuntimeError):
    """A run failed. The message says why. The command line exits with 1."""


def quoted(value: Any, most: int = 80) -> str:
    """A value for a message: its repr on one line, cut if it is long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python does not print integers with thousands of digits
        return f"a {type(value).__name__} of very many digits"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def as_number(text: str) -> int | None:
    """The integer of a text of ASCII digits only, as in the name of a directory; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def is_misspelt(name: str, known: str) -> bool:
    """Whether a name is nearly the known one, but not it."""
    import difflib  # noqa: PLC0415 - seldom needed

    return name != known and bool(difflib.get_close_matches(name, [known], cutoff=_NEARLY))


def near_misses(name: str, known: Any) -> str:
    """A sentence that lists the known names closest to `name`, or all of them if none is close."""
    import difflib  # noqa: PLC0415 - only on the way to an error

    known = [str(item) for item in known if item]  # an element of a model may have an empty name
    # Where a name is nearly the same or cut short, others would only distract.
    close = [item for item in known if len(name) > 2 and item.startswith(name)][:4]
    close = close or difflib.get_close_matches(name, known, n=4, cutoff=_NEARLY)
    close = close or difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(repr(item) for item in close)}?"
    return f"Known names: {', '.join(sorted(known)) or 'none'}."


def get_named(known: Mapping[str, _T], name: str, what: str) -> _T:
    """The entry of a name; raises ConfigError with similar names if there is none. `what` is the kind of entry."""
    if name not in known:
        raise ConfigError(f"There is no {what} {name!r}. {near_misses(name, known)}")
    return known[name]
