"""Checks that configs share, and how a field's help text is declared."""

import dataclasses
import math
from typing import Any

import xax

from ksim.types import ConfigError

CHECKPOINT_MODES = ("eval", "view", "export", "replay")
"""Values of `run_mode` that are about a checkpoint."""


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


def check_positive(name: str, value: float | None, *, allow_zero: bool = False) -> None:
    """Raises ConfigError unless the value is None, or finite and positive (or, if allowed, zero)."""
    if value is None or (math.isfinite(value) and (value > 0 or (allow_zero and value == 0))):
        return
    raise ConfigError(f"{name} ({value}) must be {'zero or more' if allow_zero else 'positive'}.")


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
    try:
        parts = [float(part) for part in str(value).split(":")]
    except ValueError:
        parts = []
    seconds = sum(part * 60**i for i, part in enumerate(reversed(parts)))
    if not 1 <= len(parts) <= 3 or isinstance(value, bool) or not (math.isfinite(seconds) and min(parts) >= 0):
        raise ConfigError(f"{name} ({value!r}) must be seconds, or hours, minutes and seconds as in 11:55:00.")
    check_positive(name, seconds)
    return seconds


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} ({value!r}) must be one of {', '.join(choices)}.")


def check_batch(num_envs: int, batch_size: int | None, num_batches: int | None, num_devices: int) -> tuple[int, int]:
    """The global batch size and number of minibatches, from either, both or neither (then 4 minibatches).

    Raises:
        ConfigError: The figures do not fit each other or the number of devices.
    """
    check_positive("Batch size", batch_size)
    check_positive("Number of batches", num_batches)
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
    valid = [b for b in range(num_devices, num_envs + 1, num_devices) if num_envs % b == 0]
    return ", ".join(map(str, sorted(sorted(valid, key=lambda b: abs(b - near))[:2])))


def _nearest_divisor(number: int, near: int) -> int:
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: abs(d - near))
