"""Conversion of a policy's jaxpr to ONNX."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import onnx

from ksim.errors import ConfigError
from ksim.policy.export.graph import Graph, Value
from ksim.policy.export.primitives import RULES, NotCovered
from ksim.policy.jaxprs import inner_jaxpr, is_literal, live_equations
from ksim.policy.program import DeterministicPolicy

MAX_UNROLLED = 64
"""Most iterations of a scan that is unrolled. ONNX's own loops are slow and not supported everywhere."""


def onnx_policy(policy: DeterministicPolicy, metadata: Mapping[str, str]) -> onnx.ModelProto:
    """A policy as an ONNX model that contains its arrays and the normalizer.

    Inputs are `obs` (`obs_<group>` for groups other than the actor's) and, for a policy with memory, `memory_0` and so
    on. Outputs are `action`, then `next_memory_0` and so on. The first axis of each is the batch.

    Raises:
        ConfigError: The policy uses an operation that is not covered.
    """
    try:
        return _converted(policy, metadata, jax.export.symbolic_shape("b")[0])
    except ConfigError:
        raise
    except Exception:  # noqa: BLE001 - a model that cannot be traced for any number of rows may raise anything
        return _converted(policy, metadata, 1)


def _converted(policy: DeterministicPolicy, metadata: Mapping[str, str], num_rows: Any) -> onnx.ModelProto:
    function, inputs = policy.batched(num_rows)
    jaxpr, (_, after) = jax.make_jaxpr(function, return_shape=True)(*inputs)
    graph = Graph()
    values = [graph.add_input(name, part[name].shape, part[name].dtype) for part in inputs for name in sorted(part)]
    # JAX sorts them by name: memory_10 before memory_2.
    names = ["action", *(f"next_{name}" for name in sorted(after))]
    found = dict(zip(names, zip(convert(graph, jaxpr, values), jaxpr.out_avals, strict=True), strict=True))
    for name in ["action", *(f"next_{name}" for name in policy.memory)]:
        value, aval = found[name]
        graph.add_output(name, value, aval.shape, aval.dtype)
    return graph.model("policy", dict(metadata))


def convert(graph: Graph, jaxpr: Any, inputs: Sequence[Value], wanted: Sequence[bool] | None = None) -> list[Any]:
    """Adds the equations of a closed jaxpr to a graph. Values that depend on no input are computed immediately.

    Args:
        wanted: Mask of the outputs that are needed; None for all. The others are not computed and are None.

    Raises:
        ConfigError: An operation is not covered.
    """
    wanted = [True] * len(jaxpr.jaxpr.outvars) if wanted is None else wanted
    values: dict[Any, Any] = dict(zip(jaxpr.jaxpr.constvars, map(np.asarray, jaxpr.consts), strict=True))
    values |= dict(zip(jaxpr.jaxpr.invars, inputs, strict=True))
    read = lambda atom: np.asarray(atom.val, atom.aval.dtype) if is_literal(atom) else values.get(atom)
    for eqn, outs in live_equations(jaxpr.jaxpr, wanted)[0]:
        values.update(zip(eqn.outvars, _apply(graph, eqn, [read(v) for v in eqn.invars], outs), strict=True))
    return [read(v) if want else None for v, want in zip(jaxpr.jaxpr.outvars, wanted, strict=True)]


def _apply(graph: Graph, eqn: Any, arguments: list[Any], wanted: list[bool]) -> Sequence[Any]:
    name, called = eqn.primitive.name, inner_jaxpr(eqn)
    if called is not None:
        return convert(graph, called, arguments, wanted)
    has_batch = any(not isinstance(size, int) for v in eqn.outvars for size in v.aval.shape)
    if not has_batch and all(isinstance(x, np.ndarray) for x in arguments):
        out = eqn.primitive.bind(*arguments, **eqn.params)
        return [np.asarray(x) for x in (out if eqn.primitive.multiple_results else [out])]
    if name == "scan" and eqn.params["length"] <= MAX_UNROLLED:
        return _unrolled(graph, eqn, arguments)
    try:
        out = _rule(name)(graph, eqn, *arguments)
    except (NotCovered, ValueError) as error:
        way = f", used {error}," if str(error) else ""
        raise ConfigError(
            f"The policy cannot be written as ONNX: its operation {name!r}{way} is not covered. Compose it of others "
            f"(covered: {', '.join(sorted(RULES))}), or run policy.jaxexport, which holds any operation of JAX."
        ) from None
    return out if isinstance(out, list) else [out]


def _rule(name: str) -> Callable[..., Any]:
    if name not in RULES:
        raise NotCovered
    return RULES[name]


def _unrolled(graph: Graph, eqn: Any, arguments: list[Value]) -> list[Any]:
    """The outputs of a scan, unrolled into one iteration after the other."""
    params, body = eqn.params, eqn.params["jaxpr"].jaxpr
    # Scanned and stacked arrays have one axis more than in the body. (JAX's own parameters differ between versions.)
    is_row = lambda inner, outer: inner.aval.ndim < outer.aval.ndim
    num_carry = sum(not is_row(*both) for both in zip(body.outvars, eqn.outvars, strict=True))
    num_consts = len(arguments) - num_carry - sum(is_row(*both) for both in zip(body.invars, eqn.invars, strict=True))
    consts, carry = arguments[:num_consts], arguments[num_consts : num_consts + num_carry]
    sequences = arguments[num_consts + num_carry :]
    turns = range(params["length"])
    outputs: dict[int, list[Value]] = {}
    for turn in reversed(turns) if params["reverse"] else turns:
        rows = [
            x[turn] if isinstance(x, np.ndarray) else graph.op("Gather", x, np.array(turn, np.int64), axis=0)
            for x in sequences
        ]
        out = convert(graph, params["jaxpr"], [*consts, *carry, *rows])
        carry, outputs[turn] = out[:num_carry], out[num_carry:]
    in_order = zip(*(outputs[turn] for turn in turns), strict=True)
    stacked = [_stack(graph, rows) for rows in in_order]
    return [*carry, *stacked]


def _stack(graph: Graph, rows: Sequence[Value]) -> Value:
    if all(isinstance(row, np.ndarray) for row in rows):
        return np.stack(rows)  # type: ignore[arg-type]
    axis = np.array([0], np.int64)
    return graph.op("Concat", *(graph.op("Unsqueeze", row, axis) for row in rows), axis=0)
