"""The run modes of a task, and the functions that implement them.

A task does not import these functions, which are built on tasks. `ksim.commands` registers them.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

_FUNCTIONS: dict[str, str] = {}


def provide(functions: Mapping[str, str]) -> None:
    """Registers functions, as `module:function`, under the names of commands."""
    _FUNCTIONS.update(functions)


def command(name: str) -> Callable[..., Any]:
    """The function of a command. Imports its module, which can take seconds."""
    module, _, function = _FUNCTIONS[name].partition(":")
    return getattr(importlib.import_module(module), function)
