"""Declaration, description and checks of config fields."""

import dataclasses
import enum
import functools
import json
import math
import re
import shlex
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xax

from ksim.checks import bounds_in_words, check_bounds, check_choice, check_positive, check_rule, is_one_line
from ksim.errors import ConfigError, quoted
from ksim.host.plain_yaml import FRACTION

CHECKPOINT_MODES = ("eval", "view", "export", "replay")
"""Values of `run_mode` that read a checkpoint."""
GROUPS = ("Run", "Environment", "PPO", "Network", "Devices", "Evaluation", "Checkpoints", "Viewer", "Task")
"""The headings of `--help`."""
_ABOUT_RUNS = ("Devices", "Evaluation", "Checkpoints", "Viewer")

_TIME = r"[0-9]+(?::[0-5]?[0-9]){1,2}(?:\.[0-9]*)?"
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


def field(
    value: Any,
    *,
    help: str,  # noqa: A002 - xax's name
    group: str | None = None,
    kind: str | None = None,
    choices: Sequence[str] | None = None,
    details: str | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    label: str | None = None,
    saved: bool = True,
    per_process: bool = False,
    fixed: bool = False,
    network: bool = False,
) -> Any:
    """A config field: its default, its help text, and its metadata.

    Args:
        group: The heading under which `--help` lists it, one of `GROUPS`; by default the `help_group` of the class that
            declares it first, or the last.
        kind: Its valid values, in words, if its type does not say it.
        choices: Its valid texts, if there are no others.
        details: The text that `--help <name>` shows besides `help`.
        least, above, most: Bounds of a number, or of each number of a list; see `ksim.checks.check_bounds`.
        label: Its name in messages about the bounds; by default its name as an option.
        saved: Whether a run that is resumed or evaluated keeps its value. False for options of the machine and of a
            single start.
        per_process: Whether it may differ between the processes of a job.
        fixed: Whether a checkpoint depends on it, so that it cannot change when its run is resumed.
        network: Whether the policy of a checkpoint depends on it, so that it cannot change when that is evaluated.
    """
    metadata: dict[str, Any] = {"help": help, "saved": saved}
    bounds = {"least": least, "above": above, "most": most}
    roles: dict[str, Any] = {
        "group": group,
        "kind": kind,
        "choices": None if choices is None else tuple(choices),
        "details": details,
        "bounds": {side: bound for side, bound in bounds.items() if bound is not None},
        "label": label,
        "per_process": per_process,
        "fixed": fixed,
        "network": network,
    }
    return xax.field(value, **metadata, **{name: role for name, role in roles.items() if role})


@functools.cache
def options_metadata(config_class: type) -> Mapping[str, Mapping[str, Any]]:
    """Metadata of each option by name: the arguments of `field`, and its `group`.

    If a subclass declares an option again, with another default, it keeps all metadata that are not given again.
    """
    found: dict[str, dict[str, Any]] = {}
    for cls in filter(dataclasses.is_dataclass, reversed(config_class.__mro__)):
        group = vars(cls).get("help_group", GROUPS[-1])
        for option in dataclasses.fields(cls):
            found[option.name] = found.get(option.name, {"group": group}) | dict(option.metadata)
    return found


def options_with(config_class: type, role: str) -> list[str]:
    """The options that were declared with a role, an argument of `field` such as `fixed`."""
    return [name for name, metadata in options_metadata(config_class).items() if role in metadata]


def hyperparameters(config_class: type) -> list[str]:
    """Options that affect learning: of the environment, the algorithm, the network and the task."""
    return [
        name
        for name, known in options_metadata(config_class).items()
        if known.get("saved", True) and known["group"] not in _ABOUT_RUNS
    ]


def changed_options(config: Any) -> list[str]:
    """Options that affect learning and differ from their defaults."""
    kept_as = lambda x: list(x) if isinstance(x, tuple) else x
    defaults = defaults_of(type(config))
    return [name for name in hyperparameters(type(config)) if kept_as(getattr(config, name)) != kept_as(defaults[name])]


def defaults_of(cls: type) -> dict[str, Any]:
    """The defaults of a dataclass by field; `dataclasses.MISSING` for a field without one."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cls)
    return {x.name: x.default_factory() if callable(x.default_factory) else x.default for x in fields}


def is_of_the_run(field: "dataclasses.Field[Any]") -> bool:
    """Whether an option stays with a run; see `field`."""
    return field.metadata.get("saved", True)


def describe_type(config_class: type, name: str) -> str:
    """The allowed values of an option, in words."""
    metadata = options_metadata(config_class)[name]
    if "kind" in metadata:
        return metadata["kind"]
    if "choices" in metadata:
        *others, last = metadata["choices"]
        return f"{', '.join(others)} or {last}"
    hint = typing.get_type_hints(config_class)[name]
    return " or ".join(
        f"a list, as in {'[a,b]' if str in typing.get_args(option) else '[256,128]'}"
        if typing.get_origin(option) is list
        else _WORDS.get(option, str(option))
        for option in _alternatives(hint)
    )


def describe_values(config_class: type, name: str) -> str:
    """The allowed values of an option, in words, with its bounds."""
    bounds = options_metadata(config_class)[name].get("bounds", {})
    return ", ".join([describe_type(config_class, name), *bounds_in_words(bounds)])


def is_text(config_class: type, name: str) -> bool:
    """Whether an option is a text, or null."""
    return set(_alternatives(typing.get_type_hints(config_class)[name])) <= {str, type(None)}


def allows_null(config_class: type, name: str) -> bool:
    """Whether an option may be null."""
    return type(None) in _alternatives(typing.get_type_hints(config_class)[name])


def as_argument(name: str, value: Any) -> str:
    """An option as written on the command line, quoted for a shell: `desired_kl=null`, `'actor_sizes=[64,64]'`."""
    return shlex.quote(f"{name}={written(value)}")


def written(value: Any) -> str:
    """A value as written on the command line."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def check_fields(config: Any) -> None:
    """Checks that every option fits its declaration, and can be written to a config file.

    Raises:
        ConfigError: An option has another type, is out of bounds, or is none of its choices.
    """
    hints, metadata = typing.get_type_hints(type(config)), options_metadata(type(config))
    for option in dataclasses.fields(config):
        name, value, known = option.name, getattr(config, option.name), metadata[option.name]
        if not is_of_type(value, hints[name]):
            fix = " Convert it by its tolist()." if isinstance(value, np.generic | np.ndarray) else ""
            raise ConfigError(f"{name} ({quoted(value)}) must be {describe_type(type(config), name)}.{fix}")
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise ConfigError(f"{name} ({quoted(value)}) must be a number of at most 64 bits.")
            if isinstance(item, str):
                check_plain(name, item)
            elif "bounds" in known and isinstance(item, int | float):
                check_bounds(known.get("label", name), item, **known["bounds"])
        if isinstance(value, str) and "choices" in known:
            check_choice(name, value, known["choices"])


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def as_type(value: Any, hint: Any) -> Any:
    """A value in its option's type: a float for an integer, a list for a tuple, an enum's member for its name."""
    kinds = _alternatives(hint)
    if type(value) in (list, tuple, dict):
        item = next((x for kind in kinds for x in reversed(typing.get_args(kind)) if x is not ...), Any)
        if type(value) is dict:
            return {name: as_type(x, item) for name, x in value.items()}
        return [as_type(x, item) for x in value]
    if type(value) is int and float in kinds and int not in kinds:
        return float(value)
    return next((kind[value] for kind in kinds if _is_enum(kind) and isinstance(value, str)), value)


def in_types(config: Any) -> Any:
    """A checked config with every value in its option's type."""
    hints = typing.get_type_hints(type(config))
    values = {x.name: as_type(getattr(config, x.name), hints[x.name]) for x in dataclasses.fields(config)}
    return dataclasses.replace(config, **values)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an option. For types that ksim does not know, every value has."""
    options = _alternatives(hint)
    if len(options) > 1:
        return any(is_of_type(value, option) for option in options)
    origin, items = typing.get_origin(hint), [item for item in typing.get_args(hint) if item is not ...]
    if origin in (list, tuple):
        return type(value) in (list, tuple) and all(any(is_of_type(x, item) for item in items) for x in value)
    if origin is typing.Literal:
        return any(type(value) is type(item) and value == item for item in items)
    if _is_enum(hint):
        return isinstance(value, hint) or (isinstance(value, str) and value in hint.__members__)
    if origin is dict:
        return type(value) is dict and all(is_of_type(x, items[1]) for x in value.values())
    # By `type` and not isinstance: true is no whole number, and a NumPy scalar cannot be written to config.yaml.
    exactly = {int: (int,), float: (int, float), bool: (bool,), str: (str,), type(None): (type(None),)}
    return type(value) in exactly[hint] if hint in exactly else True


def check_plain(name: str, text: str) -> None:
    """Raises ConfigError for a text that a config file or a message could not show."""
    if any("\ud800" <= character <= "\udfff" for character in text):  # Python's stand-ins for bytes that are not text
        raise ConfigError(f"{name} ({quoted(text)}) must be text in UTF-8.")
    if not is_one_line(text) or text == "???" or "${" in text:
        raise ConfigError(
            f"{name} ({quoted(text)}) must be plain text: without line breaks and other control characters, "
            "and neither ??? nor with ${...}, which stand for something else in a config file."
        )


def seconds_of(name: str, value: Any) -> float | None:
    """A duration in seconds, from a number or a text as in 11:55:00; None for None.

    Raises:
        ConfigError: It is neither, or not positive.
    """
    if value is None:
        return None
    is_number = type(value) in (int, float) or (isinstance(value, str) and re.fullmatch(FRACTION, value) is not None)
    is_time = isinstance(value, str) and re.fullmatch(_TIME, value) is not None
    parts = [float(part) for part in str(value).split(":")] if is_number or is_time else [math.nan]
    seconds = sum(part * 60**i for i, part in enumerate(reversed(parts)))
    is_duration = math.isfinite(seconds)
    check_rule(f"{name} ({quoted(value)})", is_duration, "seconds, or hours, minutes and seconds as in 11:55:00")
    check_positive(name, seconds)
    return seconds
