"""An ONNX graph, built node by node."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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
        """Adds a node.

        Returns:
            The name of its output; a list of names if there are several.
        """
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
