"""Tracing a function once, though many programs are made of it."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from jax.core import Tracer

P = ParamSpec("P")
T = TypeVar("T")


def traced_once(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose trace is kept: what calls it with tracers of the same shapes gets the same operations again.

    The start of a run traces a reset of the environment some eight times, for checks, for shapes and for programs; of a
    large robot under MJX each takes a second. Outside of a trace it is called as it is.

    Args:
        function: A function of trees of arrays, without side effects.
    """
    jitted = jax.jit(function, inline=True)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        is_traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs)))
        return (jitted if is_traced else function)(*args, **kwargs)

    return called
