"""Checks of what modules such as terms are called with."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx

from ksim.errors import ConfigError, near_misses


def check_range(
    module: eqx.Module, field: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> None:
    """Checks a field of a module, such as a term: a number, or a range as two numbers, the smaller first.

    Args:
        module: The module, whose class the message names.
        field: The field's name.
        least: No number may be below it.
        above: Every number must be above it.
        most: No number may be above it.

    Raises:
        ConfigError: It is not so.
    """
    value = getattr(module, field)
    bounds = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(bounds) == 2 and bounds[0] <= bounds[1] and least <= bounds[0] and above < bounds[0] and bounds[1] <= most:
        return
    rule = "two numbers, the smaller first" if isinstance(value, Sequence) else "a number"
    rule += f", at least {least:g}" if least > -math.inf else ""
    rule += f", above {above:g}" if above > -math.inf else ""
    rule += f", at most {most:g}" if most < math.inf else ""
    raise ConfigError(f"{type(module).__name__} has {field}={value}, which must be {rule}.")


def check_arguments(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks what a class is called with.

    Raises:
        ConfigError: It has no argument of a name, which the message lists the near misses of; too many are given, one
            twice, or one is missing.
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


if TYPE_CHECKING:
    CheckedModule = eqx.Module
else:

    class _CheckedMeta(type(eqx.Module)):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            check_arguments(cls, args, kwargs)
            return super().__call__(*args, **kwargs)

    class CheckedModule(eqx.Module, metaclass=_CheckedMeta):
        """A module whose misspelt arguments are an error of ksim's; for type checkers a plain one."""
