"""What a task can be told to do by what is built on tasks: training, evaluating, showing, ...

A task knows none of them. `ksim.commands`, on top of all, says which function does what.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

_FUNCTIONS: dict[str, str] = {}


def provide(functions: Mapping[str, str]) -> None:
    """Says which functions do what, by the names of commands, as `module:function`."""
    _FUNCTIONS.update(functions)


def command(name: str) -> Callable[..., Any]:
    """The function of a command; its module is imported now, which for some takes seconds."""
    module, _, function = _FUNCTIONS[name].partition(":")
    return getattr(importlib.import_module(module), function)
