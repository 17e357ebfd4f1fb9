"""Checks of a task's method names: methods that ksim would never call, or call with the wrong arguments."""

import difflib
import inspect
import types
from typing import Any

from xax.task.base import BaseTask

from ksim.errors import ConfigError
from ksim.host.notices import warn_user
from ksim.task.callbacks import CallbackTask

RENAMED = {
    "get_mdp": "the hooks of its terms (get_rewards and its siblings), or get_environment for another kind of "
    "environment",
    "custom_gradient_sync": "sync_gradients(grads), which is called inside the mapped step with this device's "
    "gradients and returns what all devices apply (DISTRIBUTED_TRAINING.md, Custom gradient synchronisation)",
}
"""Names of hooks in other programs, each with the hooks that ksim calls instead."""
_HOOKS = ("get_", "_get_", "on_", "_rollout", "sync_gradients", "add_logger_handlers")
"""Prefixes of the names of hooks."""
_CLOSE = 0.85
"""Similarity, from 0 to 1 by difflib, from which a method's name is taken for a misspelt hook."""


def check_hook_names(task: BaseTask[Any]) -> None:
    """Checks the methods of a task's class that its authors wrote.

    Warns:
        UserWarning: A method nearly has the name of a hook that the class does not override, and takes its arguments.

    Raises:
        ConfigError: A method has the name of another program's hook, or a callback takes other arguments.
    """
    theirs, ours = _methods(type(task))
    for name in theirs.keys() & RENAMED.keys():
        raise ConfigError(f"{type(task).__name__}.{name} is never called. Override {RENAMED[name]}.")
    # Overrides of xax's other methods, such as `__init__` and `debug`, are called by the task itself alone.
    callbacks = {name for name, x in vars(CallbackTask).items() if isinstance(x, types.FunctionType)}
    for name in theirs.keys() & callbacks:
        if not _takes_arguments_of(theirs[name], ours[name]):
            raise ConfigError(
                f"{type(task).__name__}.{name}{inspect.signature(theirs[name])} must take the arguments "
                f"{inspect.signature(ours[name])}."
            )
    hooks = [name for name in ours if name.startswith(_HOOKS) and name not in theirs]
    for name in theirs.keys() - ours.keys():
        for hook in difflib.get_close_matches(name, hooks, n=1, cutoff=_CLOSE):
            if _takes_arguments_of(theirs[name], ours[hook]):
                warn_user(
                    f"ksim never calls {type(task).__name__}.{name}. Did you mean {hook}? If not, another name avoids "
                    "this warning."
                )


def _methods(task_class: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The functions of a class and its bases by name: first its authors', then the ones of ksim and xax."""
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for base in reversed(task_class.__mro__):
        found = ours if base.__module__.partition(".")[0] in ("ksim", "xax") else theirs
        found.update({name: x for name, x in vars(base).items() if isinstance(x, types.FunctionType)})
    return theirs, ours


def _takes_arguments_of(method: Any, hook: Any) -> bool:
    """Whether a method can be called like a hook, with all arguments by position."""
    try:
        inspect.signature(method).bind(*inspect.signature(hook).parameters)
    except TypeError:
        return False
    return True
