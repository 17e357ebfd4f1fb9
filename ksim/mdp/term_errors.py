"""Errors in the code of a term: they name the term, the line of its author, and the fix of a common mistake."""

import contextlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import equinox as eqx
import jax

from ksim.errors import ConfigError, near_misses
from ksim.mdp.term import Context
from ksim.physics.engine import DERIVED_FIELDS
from ksim.types import PhysicsState

_KSIM = f"{Path(__file__).parents[1]}{os.sep}"
_NO_AUTHOR = "site-packages", "dist-packages", sysconfig.get_path("stdlib")
_INTERACTIVE = "<stdin>", "<ipython-input", "<python-input"
"""File names that Python gives to typed code; other names in angle brackets belong to generated code."""

_TRACING = {
    jax.errors.TracerBoolConversionError: (
        "Python's if, while, and, or, not, min and max cannot depend on a value of the simulation, which is traced. "
        "Use jnp.where(condition, a, b), jnp.logical_and, jnp.logical_or, jnp.minimum, jnp.maximum or jax.lax.cond."
    ),
    jax.errors.TracerArrayConversionError: (
        "NumPy cannot compute with a value of the simulation, which is traced. Use jnp in place of np."
    ),
    jax.errors.TracerIntegerConversionError: (
        "a value of the simulation, which is traced, cannot index a list, nor be a shape or a range. Use "
        "jnp.asarray(values)[index]."
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "a mask of traced values leaves an unknown number of elements. Use jnp.where(mask, values, 0.0)."
    ),
    jax.errors.ConcretizationTypeError: (
        "float, int, bool, .item() and shapes cannot take a value of the simulation, which is traced. Keep it an array "
        "of jnp."
    ),
}
"""Advice by the class of JAX's error; a subclass comes before its base."""


@contextlib.contextmanager
def named_errors(name: str, term: object) -> Iterator[None]:
    """Turns whatever the code of a term raises into an error that names the term and the line.

    Args:
        name: The term's name, `kind/name` or `kind/group/name`; for the actuators their kind alone.

    Raises:
        ConfigError: The code raised an error, which is its cause.
    """
    kind, *_, own = name.split("/") if "/" in name else (name, "")
    try:
        yield
    except Exception as error:
        title = f"{kind.replace('_', ' ').capitalize()}{f' {own!r}' if own else ''} ({type(term).__name__})"
        if isinstance(error, ConfigError):
            raise ConfigError(f"{title}: {error}") from error
        raise ConfigError(described_failure(title, term, error)) from error


def described_failure(title: str, owner: object, error: Exception) -> str:
    """The message for an error in a user's code: with the line, and with the fix if the error is a common one of JAX.

    Args:
        title: The name of the code, as in `Reward 'alive' (Alive)`.
        owner: The object whose class has the code.
    """
    return f"{title} failed{_place(error.__traceback__, owner)}: {_explained(error)}"


def _place(trace: TracebackType | None, owner: object) -> str:
    """The last traceback line in the code's author's files: outside libraries, and outside ksim if possible."""
    file_of_owner = getattr(sys.modules.get(type(owner).__module__), "__file__", None)
    lines = [
        line for line in traceback.extract_tb(trace) if line.filename == file_of_owner or _has_author(line.filename)
    ]
    lines = [line for line in lines if not line.filename.startswith(_KSIM)] or lines
    if not lines:
        return ""
    source = f", `{lines[-1].line}`" if lines[-1].line else ""
    return f" at {lines[-1].filename}:{lines[-1].lineno}{source}"


def _has_author(filename: str) -> bool:
    if filename.startswith("<"):
        return filename.startswith(_INTERACTIVE)
    return not any(part in filename for part in _NO_AUTHOR)


def _explained(error: Exception) -> str:
    for kind, advice in _TRACING.items():
        if isinstance(error, kind):
            return advice
    words = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {words[0][:300]}" if words else type(error).__name__
    help_ = _attribute_help(error) if isinstance(error, AttributeError) else ""
    return f"{message.rstrip('.')}. {help_}".rstrip()


def _attribute_help(error: AttributeError) -> str:
    name, owner = error.name, error.obj
    if name is None:
        return ""
    if isinstance(owner, Context | PhysicsState) and name in DERIVED_FIELDS:
        return f"Declare needs = ({name!r},) in the term's class, and read context.derived({name!r})."
    if isinstance(owner, Context) and name in PhysicsState.__dataclass_fields__:
        return f"Read context.physics.{name}."
    if isinstance(owner, eqx.Module) or type(owner).__module__.startswith("ksim."):
        return near_misses(name, [known for known in dir(owner) if not known.startswith("_")])
    return ""
