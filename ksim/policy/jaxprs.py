"""Dead-code elimination in jaxprs: the equations that given outputs depend on, to run or translate only those."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core

# Primitives that only call the single jaxpr in their parameters.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}


def inner_jaxpr(eqn: Any) -> jax.extend.core.ClosedJaxpr | None:
    """The jaxpr that an equation calls with its own arguments; None if it is not a call."""
    if eqn.primitive.name not in _CALLS:
        return None
    for value in eqn.params.values():
        if isinstance(value, jax.extend.core.ClosedJaxpr):
            return value
        if isinstance(value, jax.extend.core.Jaxpr):
            return jax.extend.core.ClosedJaxpr(value, ())
    return None


def is_literal(atom: Any) -> bool:
    """Whether an argument of an equation is a literal, not a variable."""
    return isinstance(atom, jax.extend.core.Literal)


def live_equations(jaxpr: Any, wanted: Sequence[bool]) -> tuple[list[tuple[Any, list[bool]]], list[bool]]:
    """The equations and inputs that the wanted outputs of a jaxpr depend on.

    Follows calls. Loops and branches count as depending on all of their inputs.

    Returns:
        The needed equations in order, each with a mask of its needed outputs; and a mask of the inputs that are read.
    """
    live = {v for v, want in zip(jaxpr.outvars, wanted, strict=True) if want and not is_literal(v)}
    needed = []
    for eqn in reversed(jaxpr.eqns):
        outs = [v in live for v in eqn.outvars]
        if not any(outs):
            continue
        called = inner_jaxpr(eqn)
        used = [True] * len(eqn.invars) if called is None else live_equations(called.jaxpr, outs)[1]
        live |= {v for v, is_used in zip(eqn.invars, used, strict=True) if is_used and not is_literal(v)}
        needed.append((eqn, outs))
    return needed[::-1], [v in live for v in jaxpr.invars]


def evaluate(jaxpr: Any, wanted: Sequence[bool], inputs: Sequence[Any]) -> list[Any]:
    """The wanted outputs of a closed jaxpr, with None in place of the others.

    Inputs that the wanted outputs do not read may be None. This function can itself be traced.
    """
    values = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    values |= dict(zip(jaxpr.jaxpr.invars, inputs, strict=True))
    read = lambda atom: atom.val if is_literal(atom) else values.get(atom)
    for eqn, outs in live_equations(jaxpr.jaxpr, wanted)[0]:
        arguments, called = [read(v) for v in eqn.invars], inner_jaxpr(eqn)
        if called is not None:
            results = evaluate(called, outs, arguments)
        else:
            results = eqn.primitive.bind(*arguments, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(v) if want else None for v, want in zip(jaxpr.jaxpr.outvars, wanted, strict=True)]
