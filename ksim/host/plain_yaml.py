"""YAML with decimal numbers only.

YAML 1.1 reads 0100 as 64, 1:30 as 90, 1_000 as 1000 and on as true. Here they are strings, which numeric options
reject.
"""

import re
from typing import Any

import yaml

WHOLE = r"[-+]?(?:0|[1-9][0-9]*)"
"""Pattern of a decimal integer without leading zeros, which some would read as octal."""
FRACTION = rf"(?:{WHOLE}(?:\.[0-9]*)?|[-+]?\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
"""Pattern of a decimal number, with or without fraction and exponent."""


class _Loader(yaml.SafeLoader):
    """A YAML loader for null, true, false, decimal numbers and strings."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - a class attribute, as in PyYAML


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), "tTfF")
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"({WHOLE})\Z"), "-+0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"({FRACTION})\Z"), "-+.0123456789")


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes strings which `_Loader` or YAML 1.1 would read as other values."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"({FRACTION})\Z"), list("-+.0123456789"))


def write_yaml(value: Any) -> str:
    """The YAML text of plain values, a line for each entry of a mapping, in their order."""
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def read_yaml(text: str | bytes) -> Any:
    """The value of a YAML text.

    Raises:
        ValueError: It is no valid YAML, has tags of other types than plain values, or is nested too deeply.
    """
    try:
        return yaml.load(text, _Loader)
    # PyYAML does not wrap the errors of Python's conversions.
    except Exception as error:
        raise ValueError(f"It is not valid YAML: {type(error).__name__}.") from error


def read_value(text: str) -> Any:
    """The value of an argument of unknown type: null, true, false, a number, a string, or a list or mapping in YAML.

    Quotes around a string are removed. Any other string is returned unchanged, with all its spaces and signs.
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
    """Whether YAML would drop or change part of a text: a comment, or line breaks.

    Raises:
        yaml.YAMLError: The text is not valid YAML.
    """
    at = 0
    for token in yaml.scan(text):
        if text[at : token.start_mark.index].strip():
            return True
        at = max(at, token.end_mark.index)
    return bool(text[at:].strip()) or "\n" in text.strip()
