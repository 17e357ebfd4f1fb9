"""Descriptions of hooks' arguments and results for error messages."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ksim.errors import ConfigError, quoted

NETWORKS = "'Custom networks' in docs/own_algorithm.md"
HOOKS = "'Hooks of the algorithm' in docs/own_algorithm.md"
_MAX_LISTED = 4


def described(value: Any) -> str:
    """A description of a value by its type; of arrays, dtype and shape."""
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if type(value) in (tuple, list):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(described(x) for x in value)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {described(x)}" for key, x in value.items()) + "}"
    name = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return f"{name} {quoted(value)}" if isinstance(value, str | int | float) else name


def tree_differences(expected: PyTree, found: PyTree, name: str) -> str:
    """Differences of a tree from the expected structure, shapes and dtypes, as text; empty if there are none."""
    leaves = [
        {f"{name}{jax.tree_util.keystr(path)}": x for path, x in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (expected, found)
    ]
    wanted, there = leaves
    texts = [
        f"{path} is {described(there[path]) if path in there else 'missing'} instead of {described(x)}"
        for path, x in wanted.items()
        if path not in there or not _is_alike(x, there[path])
    ]
    texts += [f"{path} ({described(x)}) should not be there" for path, x in there.items() if path not in wanted]
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    if not texts and jax.tree.structure(expected) != jax.tree.structure(found):
        return f"{name} is {described(found)} instead of {described(expected)}"
    return ", ".join(texts[:_MAX_LISTED]) + more


def _is_alike(expected: Any, found: Any) -> bool:
    if not hasattr(found, "dtype") or not hasattr(found, "shape"):
        return False
    # Compare dtypes as on a device: NumPy arrays of host code may have 64 bits.
    is_same_type = found.dtype == expected.dtype or (
        isinstance(found, np.ndarray) and jax.dtypes.canonicalize_dtype(found.dtype) == expected.dtype
    )
    return found.shape == expected.shape and is_same_type


def is_float(x: Any) -> bool:
    """Whether `x` is an array of floating-point numbers, or the shape of one."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def check_one_key(hook: str, rng: Any) -> None:
    """Raises ConfigError unless `rng`, an argument of a hook, is one typed key."""
    is_key = hasattr(rng, "dtype") and jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
    if not is_key or rng.shape != ():
        raise ConfigError(
            f"rng of {hook} must be one key of jax.random.key, but is {described(rng)}. Pass one of them, as after "
            f"rng, sub = jax.random.split(rng); env_keys makes one per environment of it. See {HOOKS}."
        )
