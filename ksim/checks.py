"""Checks of user input: options, and the arguments of modules such as terms.

Every rule about one value ends in `check_rule`, which words the error.
"""

import dataclasses
import inspect
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, dataclass_transform

import equinox as eqx
import numpy as np

from ksim.errors import ConfigError, near_misses, quoted

MAX_COUNT = 2**31 - 1
"""The largest value of a 32-bit index on a device."""
MAX_LAYERS = 100
"""Limit on the number of hidden layers: each is traced separately."""
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def check_rule(what: str, is_met: bool, rule: str) -> None:
    """Raises ConfigError unless the rule is met. The message says that `what`, a value with its name, must meet it."""
    if not is_met:
        raise ConfigError(f"{what} must be {rule}.")


def check_positive(name: str, value: float | None, *, allow_zero: bool = False, most: float = _LARGEST) -> None:
    """Raises ConfigError unless the value is None, or positive (or, if allowed, zero) and at most `most`.

    A fraction of 1 must differ from zero in 32 bits.
    """
    if value is None or (allow_zero and value == 0):
        return
    if value <= 0 or not math.isfinite(value):
        rule = "zero or more" if allow_zero else "positive"
    elif value < _SMALLEST:
        rule = f"at least {_SMALLEST:.2g}, the least that 32 bits can tell from zero"
    else:
        rule = f"at most {most:.2g}" if isinstance(most, float) else f"at most {most}"
    check_rule(f"{name} ({value})", _SMALLEST <= value <= most, rule)


def check_count(name: str, value: int | None) -> None:
    """Raises ConfigError unless the value is None, or at least 1 and within 32 bits."""
    check_positive(name, value, most=MAX_COUNT)


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Raises ConfigError unless these can be the sizes of hidden layers."""
    is_met = len(sizes) <= MAX_LAYERS and all(1 <= size <= MAX_COUNT for size in sizes)
    check_rule(f"{name} ({quoted(sizes)})", is_met, f"positive widths of at most {MAX_LAYERS} layers")


def check_divisible(
    what: str,
    number: int,
    by_what: str,
    by: int,
    *,
    nearest: Sequence[int] | None = None,
    kind: str = "values",
    fix: str = "",
) -> None:
    """Raises ConfigError unless one number divides evenly by another.

    The message lists the nearest valid values, by default of the first number. `fix` is a sentence that follows it.
    """
    if number % by:
        below = number // by * by
        valid = [n for n in (below, below + by) if n > 0] if nearest is None else nearest
        raise ConfigError(
            f"{what} ({number}) must be divisible by {by_what} ({by}). "
            f"Nearest valid {kind}: {', '.join(map(str, valid))}.{fix and f' {fix}'}"
        )


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises ConfigError unless the value is one of the choices."""
    check_rule(f"{name} ({quoted(value)})", value in choices, f"one of {', '.join(choices)}")


def check_field(module: eqx.Module, field: str, is_met: bool, rule: str) -> None:
    """Raises ConfigError, naming the module's class and the field's value and rule, unless the rule is met."""
    check_rule(f"{type(module).__name__} has {field}={getattr(module, field)}, which", is_met, rule)


class Bounds(TypedDict, total=False):
    """Bounds of a number: it must be at least `least`, above `above` and at most `most`."""

    least: float
    above: float
    most: float


def check_bounds(name: str, value: float | None, **bounds: Unpack[Bounds]) -> None:
    """Raises ConfigError unless an option is None or within its bounds, in the words of the other checks here.

    With `least=1` alone it must be a count. With `least=0` or `above=0` it must fit 32 bits.
    """
    least, most = bounds.get("least"), bounds.get("most")
    if least is not None and most is not None:
        check_rule(f"{name} ({value})", value is None or least <= value <= most, f"from {least} to {most}")
    elif bounds == {"least": 1}:
        check_positive(name, value, most=MAX_COUNT)
    elif least == 0 or bounds.get("above") == 0:
        check_positive(name, value, allow_zero=least == 0, most=_LARGEST if most is None else most)
    else:
        is_met = value is None or _is_within(value, **bounds)
        check_rule(f"{name} ({value})", is_met, ", ".join(bounds_in_words(bounds)))


def check_range(module: eqx.Module, field: str, *, rule: str | None = None, **bounds: Unpack[Bounds]) -> None:
    """Checks a field of a module, such as a term: a number, or a range as two numbers, the smaller first.

    The bounds hold for every number; `rule` is their rule in words, by default made of them.

    Raises:
        ConfigError: The message names the module's class, the field and the rule.
    """
    value = getattr(module, field)
    numbers = tuple(value) if isinstance(value, Sequence) else (value, value)
    is_met = len(numbers) == 2 and numbers[0] <= numbers[1] and all(_is_within(x, **bounds) for x in numbers)
    kind = "two numbers, the smaller first" if isinstance(value, Sequence) else "a number"
    check_field(module, field, is_met, rule or ", ".join([kind, *bounds_in_words(bounds)]))


def _is_within(value: float, least: float = -math.inf, above: float = -math.inf, most: float = math.inf) -> bool:
    return least <= value <= most and above < value


def bounds_in_words(bounds: Bounds) -> list[str]:
    """Each bound in words, such as "above 0"."""
    words = {"least": "at least", "above": "above", "most": "at most"}
    written = lambda number: f"{number:g}" if isinstance(number, float) else str(number)
    return [f"{words[bound]} {written(bounds[bound])}" for bound in words if bound in bounds]


def pick_num_batches(num_envs: int, batch_size: int | None, num_batches: int | None) -> int:
    """The number of minibatches, unchecked: as given, or from the batch size, or 4."""
    if num_batches is not None:
        return num_batches
    return 4 if batch_size is None else num_envs // batch_size


def is_one_line(text: str) -> bool:
    """Whether a text has no line breaks, other control characters, or bytes that are not UTF-8."""
    return not {"Cc", "Cs", "Zl", "Zp"} & {unicodedata.category(character) for character in text}


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT, with a port from 1 to 65535."""
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and port.isascii() and len(port) <= 5 and 0 < int(port) < 2**16
    return is_host(host.strip("[]")) and "/" not in host and is_port


def is_host(text: str) -> bool:
    """Whether a text can be a host's name or address. For others, such as `a..b`, sockets raise UnicodeError."""
    try:
        return bool(text.encode("idna"))
    except UnicodeError:
        return False


def check_batch(num_envs: int, batch_size: int | None, num_batches: int | None, num_devices: int) -> tuple[int, int]:
    """The global batch size and number of minibatches, from either, both or neither (then 4 minibatches).

    Raises:
        ConfigError: The figures do not fit each other or the number of devices.
    """
    check_count("Batch size", batch_size)
    check_count("Number of batches", num_batches)
    nearest = lambda size: sorted(sorted((b for b in valid if b % num_devices == 0), key=lambda b: abs(b - size))[:2])
    valid = _divisors(num_envs)
    if num_batches is None and batch_size is not None and batch_size > num_envs:
        raise ConfigError(
            f"Batch size ({batch_size}) must be at most the number of environments ({num_envs}). "
            f"Nearest valid batch sizes: {', '.join(map(str, nearest(batch_size)))}."
        )
    num_batches = pick_num_batches(num_envs, batch_size, num_batches)
    if batch_size is None:
        near = [min(valid, key=lambda n: abs(n - num_batches))]
        what = ("Number of environments", num_envs, "number of batches", num_batches)
        check_divisible(*what, nearest=near, kind="number of batches")
        batch_size = num_envs // num_batches
    if batch_size * num_batches != num_envs:
        raise ConfigError(
            f"Batch size ({batch_size}) times number of batches ({num_batches}) must equal number of environments "
            f"({num_envs}). Nearest valid batch sizes: {', '.join(map(str, nearest(batch_size)))}."
        )
    check_divisible("Batch size", batch_size, "number of devices", num_devices, nearest=nearest(batch_size))
    return batch_size, num_batches


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def check_arguments(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks the arguments of a call of a class.

    Raises:
        ConfigError: An argument is unknown (the message lists similar names), given twice, missing, or one too many.
    """
    signature = inspect.signature(cls.__init__)
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        _, *known = signature.parameters
        takes_any = any(x.kind is x.VAR_KEYWORD for x in signature.parameters.values())
        for name in () if takes_any else kwargs:
            if name not in known:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}. {near_misses(name, known)}") from error
        raise ConfigError(f"{cls.__name__}({', '.join(known)}): {error}.") from error


def ranged(default: Any, *, rule: str | None = None, **bounds: Unpack[Bounds]) -> Any:
    """A field of a `CheckedModule` that must be as `check_range` says; if the default is None, it may also be None."""
    return eqx.field(default=default, metadata={"range": {"rule": rule, **bounds}})


def required(*, rule: str | None = None, **bounds: Unpack[Bounds]) -> Any:
    """A `ranged` field without a default."""
    return ranged(dataclasses.MISSING, rule=rule, **bounds)


def check_ranges(module: eqx.Module) -> None:
    """Checks all fields that are `ranged`. It is for rules between fields, which Equinox checks first."""
    for field in dataclasses.fields(module):
        if "range" in field.metadata and not (field.default is None and getattr(module, field.name) is None):
            check_range(module, field.name, **field.metadata["range"])


@dataclass_transform(field_specifiers=(dataclasses.field, eqx.field, required))
class _CheckedMeta(type(eqx.Module)):
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            check_arguments(cls, args, kwargs)
            return super().__call__(*args, **kwargs)


class CheckedModule(eqx.Module, metaclass=_CheckedMeta):
    """A module whose misspelt arguments, and fields out of their ranges, are errors of ksim's."""

    def __check_init__(self) -> None:
        check_ranges(self)
