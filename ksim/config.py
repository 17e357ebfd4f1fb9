"""Checks that configs share, and how a field's help text is declared."""

import dataclasses
import json
import math
import re
import shlex
import types
import typing
import unicodedata
from typing import Any

import numpy as np
import xax

from ksim.errors import ConfigError, shown
from ksim.host.plain_yaml import FRACTION

CHECKPOINT_MODES = ("eval", "view", "export", "replay")
"""Values of `run_mode` that are about a checkpoint."""

MAX_COUNT = 2**31 - 1
"""The most that the 32 bits of an index on a device can count."""
_TIME = r"[0-9]+(?::[0-9]{1,2}){1,2}(?:\.[0-9]*)?"
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


def field(value: Any, *, help: str, kind: str | None = None, of_the_run: bool = True) -> Any:  # noqa: A002 - xax's name
    """A config field with a default and the help text that `--help` shows.

    Args:
        value: The default.
        help: What it means.
        kind: What it may be, in words, where its type does not say it.
        of_the_run: Whether a run that is resumed or evaluated keeps its value; not so what belongs to the machine, or
            to what is asked for this time.
    """
    metadata: dict[str, Any] = {"help": help, "of_the_run": of_the_run}
    return xax.field(value, **metadata if kind is None else metadata | {"kind": kind})


def is_of_the_run(field: "dataclasses.Field[Any]") -> bool:
    """Whether an option stays with a run; see `field`."""
    return field.metadata.get("of_the_run", True)


def describe_type(config_class: type, name: str) -> str:
    """What an option may be, in words."""
    kind = next(f for f in dataclasses.fields(config_class) if f.name == name).metadata.get("kind")
    if kind is not None:
        return kind
    hint = typing.get_type_hints(config_class)[name]
    return " or ".join(
        "a list, as in [256,128]" if typing.get_origin(option) is list else _WORDS.get(option, str(option))
        for option in _alternatives(hint)
    )


def is_text(config_class: type, name: str) -> bool:
    """Whether an option is a text, or null."""
    return set(_alternatives(typing.get_type_hints(config_class)[name])) <= {str, type(None)}


def as_argument(name: str, value: Any) -> str:
    """An option as the command line takes it, quoted for a shell: `desired_kl=null`, `'actor_sizes=[64,64]'`."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return shlex.quote(f"{name}={text}")


def check_types(config: Any) -> None:
    """Checks that every option holds what its type says, and what a config file can hold.

    Raises:
        ConfigError: One does not.
    """
    hints = typing.get_type_hints(type(config))
    for option in dataclasses.fields(config):
        name, value = option.name, getattr(config, option.name)
        if not is_of_type(value, hints[name]):
            fix = " Convert it by its tolist()." if isinstance(value, np.generic | np.ndarray) else ""
            raise ConfigError(f"{name} ({shown(value)}) must be {describe_type(type(config), name)}.{fix}")
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise ConfigError(f"{name} ({shown(value)}) must be a number of at most 64 bits.")
            if isinstance(item, str) and not _is_plain(item):
                raise ConfigError(
                    f"{name} ({shown(value)}) must be plain text: without line breaks and other control characters, "
                    "and neither ??? nor with ${...}, which stand for something else in a config file."
                )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def is_of_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a type of which options are; of a type that ksim does not know, all are."""
    options = _alternatives(hint)
    if len(options) > 1:
        return any(is_of_type(value, option) for option in options)
    origin, items = typing.get_origin(hint), [item for item in typing.get_args(hint) if item is not ...]
    if origin in (list, tuple):
        return type(value) in (list, tuple) and all(any(is_of_type(x, item) for item in items) for x in value)
    if origin is dict:
        return type(value) is dict and all(is_of_type(x, items[1]) for x in value.values())
    # By `type` and not isinstance: true is no whole number, and a NumPy scalar cannot be written to config.yaml.
    exactly = {int: (int,), float: (int, float), bool: (bool,), str: (str,), type(None): (type(None),)}
    return type(value) in exactly[hint] if hint in exactly else True


def _is_plain(text: str) -> bool:
    is_control = any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
    return not is_control and text != "???" and "${" not in text


def check_positive(name: str, value: float | None, *, allow_zero: bool = False, most: float = _LARGEST) -> None:
    """Raises ConfigError unless the value is None, or positive (or, if allowed, zero) and at most `most`.

    A fraction of 1 must be one that 32 bits can tell from zero.
    """
    if value is None or (allow_zero and value == 0) or _SMALLEST <= value <= most:
        return
    if value <= 0 or not math.isfinite(value):
        rule = "zero or more" if allow_zero else "positive"
    elif value < _SMALLEST:
        rule = f"at least {_SMALLEST:.2g}, the least that 32 bits can tell from zero"
    else:
        rule = f"at most {most:.2g}" if isinstance(most, float) else f"at most {most}"
    raise ConfigError(f"{name} ({value}) must be {rule}.")


def check_count(name: str, value: int | None) -> None:
    """Raises ConfigError unless the value is None, or at least 1 and within 32 bits."""
    check_positive(name, value, most=MAX_COUNT)


def check_seed(name: str, value: int) -> None:
    """Raises ConfigError unless the value fits the 32 bits of a seed; others would be the same as one of these."""
    if not 0 <= value < 2**32:
        raise ConfigError(f"{name} ({value}) must be from 0 to {2**32 - 1}.")


def check_fraction(name: str, value: float) -> None:
    """Raises ConfigError unless 0 <= value <= 1."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} ({value}) must be from 0 to 1.")


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
    if not math.isfinite(seconds):
        raise ConfigError(f"{name} ({shown(value)}) must be seconds, or hours, minutes and seconds as in 11:55:00.")
    check_positive(name, seconds)
    return seconds


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} ({shown(value)}) must be one of {', '.join(choices)}.")


def check_batch(num_envs: int, batch_size: int | None, num_batches: int | None, num_devices: int) -> tuple[int, int]:
    """The global batch size and number of minibatches, from either, both or neither (then 4 minibatches).

    Raises:
        ConfigError: The figures do not fit each other or the number of devices.
    """
    check_count("Batch size", batch_size)
    check_count("Number of batches", num_batches)
    if batch_size is None and num_batches is None:
        num_batches = 4
    if batch_size is None:
        assert num_batches is not None
        if num_envs % num_batches:
            raise ConfigError(
                f"Number of environments ({num_envs}) must be divisible by number of batches ({num_batches}). "
                f"Nearest valid number of batches: {_nearest_divisor(num_envs, num_batches)}."
            )
        batch_size = num_envs // num_batches
    if num_batches is None:
        num_batches = num_envs // batch_size
    if batch_size * num_batches != num_envs:
        raise ConfigError(
            f"Batch size ({batch_size}) times number of batches ({num_batches}) must equal number of environments "
            f"({num_envs}). Nearest valid batch sizes: {_nearest_batch_sizes(num_envs, batch_size, num_devices)}."
        )
    if batch_size % num_devices:
        raise ConfigError(
            f"Batch size ({batch_size}) must be divisible by number of devices ({num_devices}). "
            f"Nearest valid values: {_nearest_batch_sizes(num_envs, batch_size, num_devices)}."
        )
    return batch_size, num_batches


def _nearest_batch_sizes(num_envs: int, near: int, num_devices: int) -> str:
    valid = [b for b in _divisors(num_envs) if b % num_devices == 0]
    return ", ".join(map(str, sorted(sorted(valid, key=lambda b: abs(b - near))[:2])))


def _nearest_divisor(number: int, near: int) -> int:
    return min(_divisors(number), key=lambda d: abs(d - near))


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
