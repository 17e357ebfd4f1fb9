"""Conversion of a policy from a jaxpr to ONNX."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ksim.errors import ConfigError
from ksim.policy.program import DeterministicPolicy, inner_jaxpr, is_literal, live_equations

OPSET = 18
"""Version of the ONNX operators: supported by ONNX Runtime since version 1.14 (2023)."""
IR_VERSION = 8

Value = str | np.ndarray
"""The value of a jaxpr's variable in the graph: the name of a tensor, or an array that is already known."""


class Graph:
    """Nodes and constants of an ONNX graph. Every tensor has a name.

    The batch size is known only when the graph runs. A dimension that is not an int stands for it.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: dict[str, tuple[tuple[Any, ...], np.dtype]] = {}
        self.outputs: dict[str, tuple[tuple[Any, ...], np.dtype]] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._transposed: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._num_rows: str | None = None
        self._count = 0

    def add_input(self, name: str, shape: Sequence[Any], dtype: Any) -> str:
        """Adds an input, whose first dimension is the batch. Returns its name."""
        self.inputs[name] = (tuple(shape), np.dtype(dtype))
        return name

    def add_output(self, name: str, value: Value, shape: Sequence[Any], dtype: Any) -> None:
        """Adds an output with the value of a tensor of the graph."""
        self.nodes.append(helper.make_node("Identity", [self.name(value)], [name]))
        self.outputs[name] = (tuple(shape), np.dtype(dtype))

    def name(self, value: Value) -> str:
        """The name of a tensor. A known array becomes a constant; equal arrays share one."""
        if isinstance(value, str):
            return value
        value = np.asarray(value, order="C")
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._names:
            self._names[key] = name = f"c{len(self._names)}"
            self.constants[name] = value
        return self._names[key]

    def op(self, kind: str, *inputs: Value, num_outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns the name of its output, or a list of names if there are several."""
        names = [f"t{self._count + i}" for i in range(num_outputs)]
        self._count += num_outputs
        self.nodes.append(helper.make_node(kind, [self.name(x) for x in inputs], names, **attributes))
        return names[0] if num_outputs == 1 else names

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """A tensor with its axes in another order. Successive transpositions are merged into one."""
        order = tuple(int(axis) for axis in order)
        if isinstance(value, np.ndarray):
            return np.transpose(value, order)
        source, before = self.untransposed(value, len(order))
        order = tuple(before[axis] for axis in order)
        if order == tuple(range(len(order))):
            return source
        result = self.op("Transpose", source, perm=order)
        self._transposed[result] = (source, order)
        return result

    def untransposed(self, value: str, rank: int) -> tuple[str, tuple[int, ...]]:
        """The tensor that this one transposes, and the order of its axes here."""
        return self._transposed.get(value, (value, tuple(range(rank))))

    def reshape(self, value: Value, shape: Sequence[Any]) -> Value:
        """A tensor in another shape."""
        if isinstance(value, np.ndarray):
            return np.reshape(value, [int(size) for size in shape])
        unknown = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        if len(unknown) <= 1:
            return self.op("Reshape", value, np.array([s if isinstance(s, int) else -1 for s in shape], np.int64))
        return self.op("Reshape", value, self.shape(shape))

    def stack(self, values: Sequence[Value], axis: int) -> Value:
        """Tensors joined along a new axis."""
        if all(isinstance(value, np.ndarray) for value in values):
            return np.stack(values, axis)  # type: ignore[arg-type]
        return self.op("Concat", *(self.op("Unsqueeze", x, np.array([axis], np.int64)) for x in values), axis=axis)

    def expand(self, value: Value, shape: Sequence[Any]) -> Value:
        """A tensor repeated along its axes of length 1."""
        if isinstance(value, np.ndarray) and all(isinstance(size, int) for size in shape):
            return np.broadcast_to(value, tuple(shape))
        return self.op("Expand", value, self.shape(shape))

    def shape(self, sizes: Sequence[Any]) -> Value:
        """Sizes as a tensor of integers.

        Raises:
            ValueError: A size is neither known nor the batch size; for example, twice the batch size.
        """
        if all(isinstance(size, int) for size in sizes):
            return np.array(sizes, np.int64)
        batch = next(iter(self.inputs.values()))[0][0]
        parts = []
        for size in sizes:
            if not isinstance(size, int) and size != batch:
                raise ValueError(f"size {size} of an array with the batch in it")
            parts.append(np.array([size], np.int64) if isinstance(size, int) else self._batch())
        return self.op("Concat", *parts, axis=0)

    def _batch(self) -> str:
        if self._num_rows is None:
            self._num_rows = self.op("Shape", next(iter(self.inputs)), start=0, end=1)
        assert self._num_rows is not None
        return self._num_rows

    def model(self, name: str, metadata: dict[str, str]) -> onnx.ModelProto:
        """The graph as a checked model, without nodes that no output depends on."""
        needed, nodes = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.append(node)
                needed |= set(node.input)
        info = lambda named: [
            helper.make_tensor_value_info(k, tensor_type(dtype), [s if isinstance(s, int) else "batch" for s in shape])
            for k, (shape, dtype) in named.items()
        ]
        constants = [numpy_helper.from_array(x, k) for k, x in self.constants.items() if k in needed]
        graph = helper.make_graph(nodes[::-1], name, info(self.inputs), info(self.outputs), constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="ksim")
        model.ir_version = IR_VERSION
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        return model


def tensor_type(dtype: Any) -> int:
    """ONNX's enum value for a numpy dtype."""
    return TensorProto.BOOL if dtype == np.bool_ else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


Rule = Callable[..., Any]
"""`(graph, eqn, *values) -> value`, or a list of values for an equation with several outputs."""

RULES: dict[str, Rule] = {
    "clamp": lambda graph, _, low, x, high: graph.op("Min", graph.op("Max", x, low), high),
    "concatenate": lambda graph, eqn, *xs: graph.op("Concat", *xs, axis=int(eqn.params["dimension"])),
    "erfc": lambda graph, eqn, x: graph.op("Sub", _number(eqn, 1), graph.op("Erf", x)),
    "exp2": lambda graph, eqn, x: graph.op("Pow", _number(eqn, 2), x),
    "is_finite": lambda graph, _, x: graph.op("Not", graph.op("Or", graph.op("IsNaN", x), graph.op("IsInf", x))),
    "ne": lambda graph, _, x, y: graph.op("Not", graph.op("Equal", x, y)),
    "rem": lambda graph, _, x, y: graph.op("Mod", x, y, fmod=1),
    "rsqrt": lambda graph, _, x: graph.op("Reciprocal", graph.op("Sqrt", x)),
    "square": lambda graph, _, x: graph.op("Mul", x, x),
    "stack": lambda graph, eqn, *xs: graph.stack(xs, int(eqn.params["axis"])),
    "transpose": lambda graph, eqn, x: graph.transpose(x, eqn.params["permutation"]),
}
"""Translation rules of the supported primitives, by name; `rule` adds the longer ones."""

_SAME = {  # one node of ONNX, the same inputs
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "add_any": "Add", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "copy": "Identity", "copy_p": "Identity", "cos": "Cos",
    "cosh": "Cosh", "div": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual",
    "gt": "Greater", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max",
    "min": "Min", "mul": "Mul", "neg": "Neg", "pow": "Pow", "sign": "Sign", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd",
}  # fmt: skip
_MAX_POWER = 16
"""Largest integer power that is written as products. They are exact up to rounding; ONNX's Pow need not be."""


class NotCovered(Exception):  # noqa: N818 - a way out, made into an error where the primitive is known
    """A primitive is used in an unsupported way, described by the message."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function in `RULES`."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


@rule(*_SAME)
def _same(graph: Graph, eqn: Any, *values: Value) -> Value:
    return graph.op(_SAME[eqn.primitive.name], *values)


@rule(*_LOGICAL)
def _logical(graph: Graph, eqn: Any, *values: Value) -> Value:
    if eqn.invars[0].aval.dtype != np.bool_:
        raise NotCovered("on whole numbers")
    return graph.op(_LOGICAL[eqn.primitive.name], *values)


@rule("expm1")
def _expm1(graph: Graph, eqn: Any, x: Value) -> Value:
    # tanh(x / 2) * (exp(x) + 1) loses no digits near 0.
    half = graph.op("Tanh", graph.op("Mul", x, _number(eqn, 0.5)))
    return graph.op("Mul", half, graph.op("Add", graph.op("Exp", x), _number(eqn, 1)))


@rule("log1p")
def _log1p(graph: Graph, eqn: Any, x: Value) -> Value:
    # 2 * atanh(x / (x + 2)) near 0, where 1 + x would lose digits.
    one, two = _number(eqn, 1), _number(eqn, 2)
    near = graph.op("Mul", two, graph.op("Atanh", graph.op("Div", x, graph.op("Add", x, two))))
    is_near = graph.op("Less", graph.op("Abs", x), _number(eqn, 0.5))
    return graph.op("Where", is_near, near, graph.op("Log", graph.op("Add", one, x)))


@rule("integer_pow")
def _integer_pow(graph: Graph, eqn: Any, x: Value) -> Value:
    power = abs(eqn.params["y"])
    if power == 0 or power > _MAX_POWER:
        result = graph.op("Pow", x, _number(eqn, power))
    else:
        result = x
        for bit in bin(power)[3:]:
            result = graph.op("Mul", result, result)
            result = graph.op("Mul", result, x) if bit == "1" else result
    return graph.op("Reciprocal", result) if eqn.params["y"] < 0 else result


@rule("round")
def _round(graph: Graph, eqn: Any, x: Value) -> Value:
    if eqn.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise NotCovered("away from zero")
    return graph.op("Round", x)


@rule("select_n")
def _select_n(graph: Graph, eqn: Any, which: Value, *cases: Value) -> Value:
    if eqn.invars[0].aval.dtype != np.bool_ or len(cases) != 2:
        raise NotCovered("by a whole number")
    if_false, if_true = cases
    if eqn.outvars[0].aval.dtype != np.bool_:
        return graph.op("Where", which, if_true, if_false)
    return graph.op("Or", graph.op("And", which, if_true), graph.op("And", graph.op("Not", which), if_false))


@rule("convert_element_type")
def _convert(graph: Graph, eqn: Any, x: Value) -> Value:
    before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return x if before == after else graph.op("Cast", x, to=tensor_type(after))


@rule("broadcast_in_dim")
def _broadcast_in_dim(graph: Graph, eqn: Any, x: Value, *_: Value) -> Value:
    shape, kept = eqn.outvars[0].aval.shape, eqn.params["broadcast_dimensions"]
    sizes = eqn.invars[0].aval.shape
    spread = [1] * len(shape)
    for axis, size in zip(kept, sizes, strict=True):
        spread[axis] = size
    x = x if tuple(spread) == tuple(sizes) else graph.reshape(x, spread)
    return x if tuple(spread) == tuple(shape) else graph.expand(x, shape)


@rule("reshape", "squeeze", "expand_dims")
def _reshape(graph: Graph, eqn: Any, x: Value, *_: Value) -> Value:
    if eqn.params.get("dimensions") is not None and eqn.primitive.name == "reshape":
        raise NotCovered("with an order of dimensions")
    return graph.reshape(x, eqn.outvars[0].aval.shape)


@rule("split")
def _split(graph: Graph, eqn: Any, x: str) -> list[Value]:
    sizes, axis = np.array(eqn.params["sizes"], np.int64), int(eqn.params["axis"])
    if len(sizes) == 1:
        return [x]
    # Split before the transposition: the operations after a split often transpose back.
    source, order = graph.untransposed(x, len(eqn.invars[0].aval.shape))
    parts = graph.op("Split", source, sizes, num_outputs=len(sizes), axis=order[axis])
    return [graph.transpose(part, order) for part in parts]


@rule("slice")
def _slice(graph: Graph, eqn: Any, x: Value) -> Value:
    sizes = eqn.invars[0].aval.shape
    starts, ends = eqn.params["start_indices"], eqn.params["limit_indices"]
    steps = eqn.params["strides"] or [1] * len(sizes)
    cut = [
        axis
        for axis, size in enumerate(sizes)
        if not (isinstance(starts[axis], int) and starts[axis] == 0 and ends[axis] == size and steps[axis] == 1)
    ]
    if any(not isinstance(sizes[axis], int) for axis in cut):
        raise NotCovered("along the batch")
    pick = lambda numbers: np.array([numbers[axis] for axis in cut], np.int64)
    return graph.op("Slice", x, pick(starts), pick(ends), np.array(cut, np.int64), pick(steps)) if cut else x


@rule("rev")
def _rev(graph: Graph, eqn: Any, x: Value) -> Value:
    axes = np.array(eqn.params["dimensions"], np.int64)
    last = np.full(len(axes), np.iinfo(np.int64).min)
    return graph.op("Slice", x, np.full(len(axes), -1), last, axes, np.full(len(axes), -1))


@rule("pad")
def _pad(graph: Graph, eqn: Any, x: Value, value: Value) -> Value:
    low, high, inner = zip(*eqn.params["padding_config"], strict=True)
    if any(inner) or min(low + high) < 0:
        raise NotCovered("between elements, or by a negative width")
    return graph.op("Pad", x, np.array(low + high, np.int64), value)


@rule(*_REDUCTIONS)
def _reduce(graph: Graph, eqn: Any, x: Value) -> Value:
    axes = np.array(eqn.params["axes"], np.int64)
    return graph.op(_REDUCTIONS[eqn.primitive.name], x, axes, keepdims=0) if len(axes) else x


@rule("reduce_and", "reduce_or")
def _reduce_logical(graph: Graph, eqn: Any, x: Value) -> Value:
    kind = "ReduceMin" if eqn.primitive.name == "reduce_and" else "ReduceMax"
    numbers = graph.op("Cast", x, to=tensor_type(np.int32))
    reduced = graph.op(kind, numbers, np.array(eqn.params["axes"], np.int64), keepdims=0)
    return graph.op("Cast", reduced, to=tensor_type(np.bool_))


@rule("argmax", "argmin")
def _arg(graph: Graph, eqn: Any, x: Value) -> Value:
    kind = "ArgMax" if eqn.primitive.name == "argmax" else "ArgMin"
    (axis,) = eqn.params["axes"]
    return graph.op("Cast", graph.op(kind, x, axis=int(axis), keepdims=0), to=tensor_type(eqn.outvars[0].aval.dtype))


@rule("cumsum")
def _cumsum(graph: Graph, eqn: Any, x: Value) -> Value:
    return graph.op("CumSum", x, np.array(eqn.params["axis"], np.int64), reverse=int(eqn.params["reverse"]))


@rule("gather")
def _gather(graph: Graph, eqn: Any, x: Value, indices: Value) -> Value:
    """Elements along one axis, as in `x[..., [3, 0]]` and `jnp.take`."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    axes = [int(axis) for axis in numbers.start_index_map]
    whole = all(eqn.params["slice_sizes"][axis] == size for axis, size in enumerate(sizes) if [axis] != axes)
    taken = tuple(int(axis) for axis in numbers.collapsed_slice_dims)
    if len(axes) != 1 or taken != tuple(axes) or not whole or numbers.operand_batching_dims:
        raise NotCovered("other than elements along one axis")
    if not isinstance(indices, np.ndarray):
        raise NotCovered("by indices that are computed from the observation")
    picked = indices[..., 0].astype(np.int64)
    if ((picked < 0) | (picked >= sizes[axes[0]])).any():
        raise NotCovered("by an index that is out of bounds")
    result = graph.op("Gather", x, picked, axis=axes[0])
    # ONNX puts the axes of the indices in place of the gathered axis; JAX puts the other axes at offset_dims.
    rank = len(sizes) - 1 + picked.ndim
    offsets = [int(axis) for axis in numbers.offset_dims]
    others = [axis for axis in range(rank) if axis not in offsets]
    kept = [axis for axis in range(rank) if not axes[0] <= axis < axes[0] + picked.ndim]
    order = [0] * rank
    for to, source in zip(offsets + others, kept + list(range(axes[0], axes[0] + picked.ndim)), strict=True):
        order[to] = source
    return graph.transpose(result, order)


@rule("dot_general")
def _dot_general(graph: Graph, eqn: Any, x: Value, y: Value) -> Value:
    (x_summed, y_summed), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    x_sizes, y_sizes = (v.aval.shape for v in eqn.invars)
    x_free = [axis for axis in range(len(x_sizes)) if axis not in (*x_summed, *x_batch)]
    y_free = [axis for axis in range(len(y_sizes)) if axis not in (*y_summed, *y_batch)]
    batch = [x_sizes[axis] for axis in x_batch]
    x_rows, y_columns = [x_sizes[axis] for axis in x_free], [y_sizes[axis] for axis in y_free]
    num_summed = math.prod(x_sizes[axis] for axis in x_summed)
    is_matrix = len(x_free) == len(y_free) == len(x_summed) == 1
    shape = [*batch, *x_rows, *y_columns]
    if is_matrix and not batch and isinstance(x, np.ndarray):
        # The batch first, as in y @ x.T. The next operations transpose back, and the two transpositions cancel.
        product = graph.op("MatMul", graph.transpose(y, [*y_free, *y_summed]), graph.transpose(x, [*x_summed, *x_free]))
        return graph.transpose(product, [1, 0])
    x = graph.transpose(x, [*x_batch, *x_free, *x_summed])
    y = graph.transpose(y, [*y_batch, *y_summed, *y_free])
    if not is_matrix:
        x = graph.reshape(x, [*batch, math.prod(x_rows), num_summed])
        y = graph.reshape(y, [*batch, num_summed, math.prod(y_columns)])
    product = graph.op("MatMul", x, y)
    return product if is_matrix else graph.reshape(product, shape)


@rule("conv_general_dilated")
def _conv(graph: Graph, eqn: Any, x: Value, kernel: Value) -> Value:
    params, rank = eqn.params, len(eqn.invars[0].aval.shape)
    in_order = tuple(range(rank))
    if any(tuple(spec) != in_order for spec in params["dimension_numbers"]):
        raise NotCovered("with channels elsewhere than first")
    if set(params["lhs_dilation"]) != {1} or params["batch_group_count"] != 1:
        raise NotCovered("transposed, or in groups of the batch")
    low, high = zip(*params["padding"], strict=True)
    return graph.op(
        "Conv",
        x,
        kernel,
        strides=_ints(params["window_strides"]),
        dilations=_ints(params["rhs_dilation"]),
        pads=_ints(low + high),
        group=int(params["feature_group_count"]),
    )


def _ints(numbers: Sequence[Any]) -> list[int]:
    return [int(number) for number in numbers]


def _number(eqn: Any, value: float) -> np.ndarray:
    return np.asarray(value, eqn.invars[0].aval.dtype)


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

    `wanted` is a mask of the needed outputs; None for all. The others are not computed and are None.

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
        if name not in RULES:
            raise NotCovered
        out = RULES[name](graph, eqn, *arguments)
    except (NotCovered, ValueError) as error:
        way = f", used {error}," if str(error) else ""
        raise ConfigError(
            f"The policy cannot be written as ONNX: its operation {name!r}{way} is not covered. Compose it of others "
            f"(covered: {', '.join(sorted(RULES))}), or run policy.jaxexport, which holds any operation of JAX."
        ) from None
    return out if isinstance(out, list) else [out]


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
    return [*carry, *(graph.stack(rows, 0) for rows in in_order)]
