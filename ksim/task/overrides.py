"""`key=value` overrides of a config."""

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from ksim.config import allows_null, as_type, check_fields, check_plain, describe_type, in_types, is_of_type, is_text
from ksim.errors import ConfigError, near_misses, quoted
from ksim.host.plain_yaml import has_lost_text, read_yaml
from ksim.parallel.job import hint
from ksim.task.config import RLConfig
from ksim.task.distributed import DistributedRLConfig

_REMOVED = {"device_timers": "Every device is timed now, under every engine: leave it out."}


def parse_overrides(base: RLConfig, argv: Sequence[str]) -> Any:
    """A config with `key=value` overrides.

    Values of string options are taken literally. Values of other options are parsed as YAML.

    Raises:
        ConfigError: An argument is not `key=value`, a key is unknown or given twice with different values, or a value
            is not of the option's type.
    """
    known = {f.name: f for f in dataclasses.fields(base)}
    check_fields(base)
    base, hints = in_types(base), typing.get_type_hints(type(base))
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for argument in argv:
        key, equals, value = argument.partition("=")
        if key.lstrip("-") in known and key not in known:
            raise ConfigError(f"Option {quoted(argument)} must be written {key.lstrip('-')}=VALUE, without dashes.")
        if not equals:
            raise ConfigError(f"Argument {quoted(argument)} must be of the form key=value. {_meant(key, known)}")
        if key not in known:
            raise ConfigError(f"There is no option {quoted(key)}. {_meant(key, known)} --help lists all.")
        if given.setdefault(key, value) != value:
            raise ConfigError(
                f"Option {key} is given twice: {quoted(given[key])} and {quoted(value)}. Leave one of them out."
            )
        with _naming(base, key, value):
            values[key] = as_type(_parse_value(value, type(base), key), hints[key])
    config = dataclasses.replace(base, **values)
    check_fields(config)
    return config


def _meant(key: str, known: Mapping[str, Any]) -> str:
    """A hint for an option without a value, or an unknown one: an example, similar options, or why it was removed."""
    if key in known:
        return f"For example: {key}=VALUE."
    elsewhere = {f.name for f in dataclasses.fields(DistributedRLConfig)} - known.keys()
    hinted = hint(key)
    if elsewhere and (hinted or key in elsewhere):
        return f"{hinted} It needs a task that derives from ksim.DistributedPPOTask.".lstrip()
    return _REMOVED.get(key.lstrip("-")) or hinted or near_misses(key, known)


def _parse_value(text: str, config_class: type, key: str) -> Any:
    """The value of a text: the text itself for a string option, else the parsed YAML.

    Raises:
        ConfigError: The text has characters that no option may have.
        ValueError: The text has tags, anchors or comments, is empty (YAML would read null), or is not of the option's
            type.
        Exception: The text is not YAML; the parser raises many types of errors.
    """
    if is_text(config_class, key):
        if text == "null" and allows_null(config_class, key):
            return None
        check_plain(key, text)
        return text
    refused = yaml.TagToken, yaml.AnchorToken, yaml.AliasToken, yaml.DocumentStartToken
    if any(isinstance(token, refused) for token in yaml.scan(text)):
        raise ValueError("Tags and anchors are not allowed on the command line.")
    if has_lost_text(text):
        raise ValueError("YAML would leave out a part of it.")
    value = read_yaml(text)
    if value == "???" or (value is None and text.strip().lower() not in ("null", "~")):
        raise ValueError("It would be taken for a value that is missing, or null.")
    if not is_of_type(value, typing.get_type_hints(config_class)[key]):
        raise ValueError("It is of another type.")
    return value


@contextlib.contextmanager
def _naming(base: RLConfig, key: str, value: str) -> Iterator[None]:
    """Turns any error of the parser into a ConfigError that names the option and its type."""
    try:
        yield
    except ConfigError:
        raise
    except Exception:  # noqa: BLE001 - PyYAML lets through what Python's conversions raise
        kind = describe_type(type(base), key)
        raise ConfigError(f"Option {key} ({quoted(value)}) must be {kind}.") from None
