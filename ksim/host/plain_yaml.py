"""YAML whose numbers are decimal.

YAML 1.1 takes 0100 for 64, 1:30 for 90, 1_000 for 1000 and on for true. Here such words are texts, which an option that
is a number refuses.
"""

import re
from typing import Any

import yaml

WHOLE = r"[-+]?(?:0|[1-9][0-9]*)"
"""A whole number as text: decimal, and without zeros in front, which some would read as octal."""
FRACTION = rf"(?:{WHOLE}(?:\.[0-9]*)?|[-+]?\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
"""A number as text, with or without fraction and exponent."""


class _Loader(yaml.SafeLoader):
    """Null, true, false, decimal numbers, and texts."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - of the class, as PyYAML has it


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), "tTfF")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"({WHOLE})\Z"), "-+0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"({FRACTION})\Z"), "-+.0123456789")


def read_yaml(text: str | bytes) -> Any:
    """What a text of YAML stands for.

    Raises:
        ValueError: It is no YAML, has tags that are none of plain values, or is nested too deeply.
    """
    try:
        return yaml.load(text, _Loader)
    # PyYAML lets through what Python's conversions raise.
    except Exception as error:
        raise ValueError(f"It is not valid YAML: {type(error).__name__}.") from error


def read_value(text: str) -> Any:
    """The value of an argument whose type is not known: null, true, false, a number, a list or mapping in YAML.

    A text in quotes is what is in them; any other text is itself, with all its spaces and signs.
    """
    try:
        first = None if has_lost_text(text) else list(yaml.scan(text))[1]
        value = read_yaml(text)
    except (yaml.YAMLError, ValueError):
        return text
    is_quoted = isinstance(first, yaml.ScalarToken) and first.style in ("'", '"')
    is_text = first is None or isinstance(value, str) or not text.strip()
    return text if is_text and not is_quoted else value


def has_lost_text(text: str) -> bool:
    """Whether YAML would leave out or change a part of a text: a comment, or line breaks.

    Raises:
        yaml.YAMLError: It is no YAML.
    """
    at = 0
    for token in yaml.scan(text):
        if text[at : token.start_mark.index].strip():
            return True
        at = max(at, token.end_mark.index)
    return bool(text[at:].strip()) or "\n" in text.strip()
