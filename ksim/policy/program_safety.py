"""Security checks of the programs that `ksim.load_policy` runs: they may compute and do nothing else.

A checkpoint may come from an untrusted source, and its programs are compiled to machine code. A program may hold only
the operations in `OPERATIONS`, arrays of limited size, and no loop whose count is known to be too large. Nothing is
compiled before all checks have passed.

MLIR's reader and XLA are written in C++ and can crash on crafted input, and a loop may never end. So `check_apart`
first reads, compiles and runs the programs in a separate process, with limits of time and memory. That process runs
this file by its path and imports only JAX. It runs the programs on zeros: a loop that depends on its input may still
not end on other input.
"""

import functools
import io
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""Platforms that a program is lowered for."""

_STABLEHLO = """
abs add and atan2 bitcast_convert broadcast_in_dim case cbrt ceil cholesky clamp compare complex concatenate constant
convert convolution cosine count_leading_zeros divide dot_general dynamic_broadcast_in_dim dynamic_conv dynamic_gather
dynamic_iota dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice exponential exponential_minus_one fft floor
gather get_dimension_size if imag iota is_finite log log_plus_one logistic maximum minimum multiply negate not
optimization_barrier or pad popcnt power real real_dynamic_slice reduce reduce_precision reduce_window remainder reshape
return reverse rng_bit_generator round_nearest_afz round_nearest_even rsqrt scatter select select_and_scatter shift_left
shift_right_arithmetic shift_right_logical sign sine slice sort sqrt subtract tan tanh transpose triangular_solve while
xor
"""
OPERATIONS = {"builtin.module", "func.func", "func.call", "func.return"} | {
    f"stablehlo.{name}" for name in _STABLEHLO.split()
}
"""Operations that only compute: none calls native code, communicates with a device or process, or has side effects."""
# Attributes of the only allowed custom call: JAX's assertion on a symbolic number of rows, removed before compilation.
_ASSERTION = {"call_target_name", "api_version", "error_message", "has_side_effect"}
# Prefix of composites: functions that JAX's lowering names and also defines, as in "chlo.erfc".
_COMPOSITE = "chlo."
# Attributes that JAX sets on modules and functions. Other dialect attributes are refused: they could instruct the
# compiler in any way.
_NOTES = {
    "jax.uses_shape_polymorphism",
    "mhlo.num_partitions",
    "mhlo.num_replicas",
    "jax.global_constant",
    "jax.result_info",
}
MAX_BYTES = 4 << 30
"""Bytes that a program may take at most for its results and temporaries."""
_MAX_NUMBERS = 2**27
"""Elements that an array in a program may have at most."""
_MAX_WORK = 10**10
"""Elements that a program may read and write at most for one row. An operation counts as `_OVERHEAD` at least."""
_OVERHEAD = 100
_TIMEOUT_S = 120.0
_MAX_MEMORY = 16 << 30
_REFUSED = 3


class RefusedError(ValueError):
    """A program is refused. The message is the reason, worded as the end of a sentence."""


def read_programs(step: bytes, start: bytes) -> tuple[jax.export.Exported, jax.export.Exported]:
    """Reads the programs of a policy; raises RefusedError if they fail a check. Nothing is compiled."""
    try:
        programs = jax.export.deserialize(bytearray(step)), jax.export.deserialize(bytearray(start))
        for program in programs:
            _check_header(program)
            _check_operations(program)
        _check_signatures(*programs)
    except RefusedError:
        raise
    # The readers can raise anything on a damaged or crafted file.
    except Exception as error:
        raise RefusedError(f"it cannot be read ({_first_line(error)})") from error
    return programs


@functools.lru_cache(maxsize=16)
def check_apart(step: bytes, start: bytes) -> None:
    """Reads, checks, compiles and runs programs in a separate process, which may crash.

    Raises:
        RefusedError: They fail a check, or the process crashed or hung on them.
    """
    # On the CPU, which always exists: an accelerator may have no memory for a second process.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", str(Path(__file__).absolute())]
    stdin = io.BytesIO()
    np.savez(stdin, step=np.frombuffer(step, np.uint8), start=np.frombuffer(start, np.uint8))
    try:
        done = subprocess.run(
            command, input=stdin.getvalue(), capture_output=True, timeout=_TIMEOUT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(f"it could not be compiled and run within {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise RefusedError(f"the process that checks it cannot be started ({error})") from error
    if done.returncode == _REFUSED:
        raise RefusedError(done.stdout.decode(errors="replace"))
    if done.returncode:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RefusedError(
            f"the process that checked it has crashed over it (exit code {done.returncode}, {last_line!r:.200})"
        )


def _check_header(program: jax.export.Exported) -> None:
    """Checks the metadata of a program: version, platforms, devices, effects."""
    version = program.calling_convention_version
    oldest = jax.export.minimum_supported_calling_convention_version
    newest = jax.export.maximum_supported_calling_convention_version
    if not oldest <= version <= newest:
        age = "older" if version < oldest else "newer"
        raise RefusedError(
            f"it was exported by {'an' if version < oldest else 'a'} {age} JAX (calling convention {version}; this "
            f"one, {jax.__version__}, runs {oldest} to {newest})"
        )
    if "cpu" not in program.platforms or not set(program.platforms) <= set(PLATFORMS):
        raise RefusedError(f"it is for the platforms {program.platforms!r:.80}, not {PLATFORMS}")
    unwanted = {
        "more than one device": program.nr_devices != 1,
        "effects": bool(program.ordered_effects or program.unordered_effects),
        "safety checks switched off": bool(program.disabled_safety_checks),
        "a gradient": program.has_vjp(),
    }
    for what, is_there in unwanted.items():
        if is_there:
            raise RefusedError(f"it has {what}, which no policy's program has")


def _check_operations(program: jax.export.Exported) -> None:
    """Checks every operation of a program and its attributes."""
    problems: list[str] = []

    def look(operation: Any) -> ir.WalkResult:
        problem = _problem(operation)
        if problem is not None:
            problems.append(problem)
        return ir.WalkResult.INTERRUPT if problem else ir.WalkResult.ADVANCE

    with ir.Context() as context, ir.Location.unknown():
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, program.mlir_module_serialized)
        module.operation.walk(look)
        if problems:
            raise RefusedError(f"it holds {problems[0]}, which is none of the operations that a policy may be made of")
        work = _Work(module).of_function("main")
    if work > _MAX_WORK:
        raise RefusedError(f"it handles {float(work):.0e} numbers for one row, and may handle {_MAX_WORK:.0e}")


def _problem(operation: Any) -> str | None:
    """The reason to refuse an operation; None if it is allowed."""
    # Attributes are checked by name only: MLIR's bindings cannot read all of them, such as complex constants.
    name, attributes = operation.name, set(operation.attributes)
    text = lambda attribute: ir.StringAttr(operation.attributes[attribute]).value
    if name == "stablehlo.custom_call":
        target = text("call_target_name")
        if target != "shape_assertion" or not attributes <= _ASSERTION:
            return f"the custom call {target!r:.80}"
    elif name == "stablehlo.composite":
        if not text("name").startswith(_COMPOSITE):
            return f"the composite {text('name')!r:.80}"
    elif name not in OPERATIONS:
        return f"{name!r:.80}"
    with_notes = {"arg_attrs", "res_attrs"} & attributes
    parts = [x for key in with_notes for x in ir.ArrayAttr(operation.attributes[key])]
    notes = [named for part in parts for named in (x.name for x in ir.DictAttr(part))]
    unknown = {named for named in (*attributes, *notes) if "." in named} - _NOTES
    return f"{name!r} with {min(unknown)!r:.80}" if unknown else None


class _Work:
    """The array elements that the functions of a module process. Sizes that depend on the rows count as 1."""

    def __init__(self, module: Any) -> None:
        self._functions = {ir.StringAttr(f.operation.attributes["sym_name"]).value: f.operation for f in module.body}
        self._known: dict[str, int | None] = {}

    def of_function(self, name: str) -> int:
        """The array elements that a function processes in one call.

        Raises:
            RefusedError: The function calls itself, or holds an array that is too large.
        """
        if name not in self._known:
            self._known[name] = None  # in progress
            self._known[name] = self._of_regions(self._functions[name], _OVERHEAD)
        work = self._known[name]
        if work is None:
            raise RefusedError("it holds a function that calls itself")
        return work

    def _of_regions(self, operation: Any, overhead: int) -> int:
        return sum(self._of(op.operation, overhead) for region in operation.regions for block in region for op in block)

    def _of(self, operation: Any, overhead: int) -> int:
        name, attributes = operation.name, operation.attributes
        operands, results = ([_num_numbers(x.type) for x in part] for part in (operation.operands, operation.results))
        largest = max([*operands, *results], default=0)
        if largest > _MAX_NUMBERS:
            raise RefusedError(f"it holds an array of {largest} numbers, and may hold {_MAX_NUMBERS}")
        own = overhead + sum(operands) + sum(results)
        match name:
            case "func.call" | "stablehlo.composite":
                callee = attributes["callee" if name == "func.call" else "decomposition"]
                return own + self.of_function(ir.FlatSymbolRefAttr(callee).value)
            case "stablehlo.while":
                return own + (_num_turns(operation) + 1) * self._of_regions(operation, _OVERHEAD)
            case "stablehlo.case":
                return own + self._of_regions(operation, overhead)
            case "stablehlo.dot_general" | "stablehlo.triangular_solve" | "stablehlo.cholesky":
                return own + math.isqrt(math.prod(operands) * largest) + largest  # the upper bound for these sizes
            case "stablehlo.convolution" | "stablehlo.dynamic_conv":
                return own + max(results) * operands[1]
            case "stablehlo.sort" | "stablehlo.fft":
                own *= 64  # more than the logarithm of any size
        if "window_dimensions" in attributes:
            own *= math.prod(ir.DenseI64ArrayAttr(attributes["window_dimensions"]))
        return own * (1 + self._of_regions(operation, 1))  # a reduction runs its region once per element


def _num_numbers(kind: Any) -> int:
    """The number of elements of a tensor. A size that depends on the rows counts as 1."""
    return math.prod(n for n in kind.shape if n >= 0) if isinstance(kind, ir.RankedTensorType) else 1


def _num_turns(loop: Any) -> int:
    """The iterations of a loop whose counter has a constant start, end and step, as loops of scans do.

    Any other loop counts as one iteration. `check_apart` runs it on zeros; it may still not end on other input.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    compare = _origin(_returned(condition)[0])
    if compare is not None and compare.name == "stablehlo.compare":
        counter, end = compare.operands
        is_less = "comparison_direction LT" in str(compare.attributes["comparison_direction"])
        largest = {"tensor<i32>": 2**31, "tensor<i64>": 2**63}.get(str(counter.type))
        if is_less and largest and isinstance(counter, ir.BlockArgument) and counter.owner == condition:
            index = counter.arg_number
            after = _origin(_returned(body)[index])
            first, last, steps = _constant(loop.operands[index]), _constant(end, loop), []
            if after is not None and after.name == "stablehlo.add":
                steps = [_constant(x) for x in after.operands if x != body.arguments[index]]
            (step,) = steps if len(steps) == 1 else (None,)
            # The counter must not overflow.
            if first is not None and last is not None and step is not None and 0 < step < largest - last:
                return max(0, -(-(last - first) // step))
    return 1


def _returned(block: Any) -> Any:
    return list(block.operations)[-1].operation.operands


def _origin(value: Any) -> Any:
    """The operation that produces a value; None for a block argument."""
    return value.owner.operation if isinstance(value, ir.OpResult) else None


def _constant(value: Any, loop: Any = None) -> int | None:
    """The integer that a value has in every run; None if it is not constant.

    With `loop`, a value that the loop carries unchanged counts as constant.
    """
    if loop is not None and isinstance(value, ir.BlockArgument):
        index, (condition, body) = value.arg_number, (region.blocks[0] for region in loop.regions)
        is_carried = value.owner == condition and _returned(body)[index] == body.arguments[index]
        return _constant(loop.operands[index]) if is_carried else None
    origin = _origin(value)
    if origin is None or origin.name != "stablehlo.constant" or _num_numbers(value.type) != 1:
        return None
    if not isinstance(value.type.element_type, ir.IntegerType):
        return None
    return int(ir.DenseIntElementsAttr(origin.attributes["value"])[0])


def _check_signatures(step: jax.export.Exported, start: jax.export.Exported) -> None:
    """Checks the signatures of two programs: `(arrays, obs, memory) -> (action, memory)` and `arrays -> memory`."""
    (arrays, obs, memory), keywords = jax.tree.unflatten(step.in_tree, step.in_avals)
    action, after = jax.tree.unflatten(step.out_tree, step.out_avals)
    (start_arrays,), start_keywords = jax.tree.unflatten(start.in_tree, start.in_avals)
    first = jax.tree.unflatten(start.out_tree, start.out_avals)
    shapes = lambda part: {name: (x.shape, x.dtype) for name, x in part.items()}
    rows = next(iter(obs.values())).shape[0]
    fits = (
        not (keywords or start_keywords)
        and all(isinstance(name, str) for part in (arrays, obs, memory) for name in part)
        and (rows == 1 or str(rows) == "b")
        and action.ndim == 2
        and jnp.issubdtype(action.dtype, jnp.floating)
        and all(x.ndim == 2 and x.dtype == np.float32 for x in obs.values())
        and all(x.shape[0] == rows for x in (action, *obs.values(), *memory.values()))
        and shapes(memory) == shapes(after) == {name: ((rows, *s), t) for name, (s, t) in shapes(first).items()}
        and shapes(arrays) == shapes(start_arrays)
        and all(type(n) is int for x in (*arrays.values(), *first.values()) for n in x.shape)
        and all(type(n) is int for x in (action, *obs.values()) for n in x.shape[1:])
    )
    if not fits:
        raise RefusedError("its inputs and outputs are not those of a policy's program")


def bounded(program: jax.export.Exported) -> Callable[..., Any]:
    """A program as a function that raises RefusedError instead of taking more than `MAX_BYTES` of memory.

    It is compiled for each number of rows, because the memory may depend on that number in any way.
    """
    function = jax.jit(program.call)
    compiled: dict[Any, Callable[..., Any]] = {}

    def call(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(arguments)
        if any(isinstance(x, Tracer) for x in leaves):  # part of a larger program, the caller's responsibility
            return function(*arguments)
        key = tuple((x.shape, x.dtype, getattr(x, "sharding", None)) for x in leaves)
        if key not in compiled:
            compiled[key] = _compiled(function, arguments)
        return compiled[key](*arguments)

    return call


def _compiled(function: Any, arguments: Any) -> Any:
    compiled = function.lower(*arguments).compile()
    memory = compiled.memory_analysis()
    num_bytes = 0 if memory is None else memory.temp_size_in_bytes + memory.output_size_in_bytes
    if num_bytes > MAX_BYTES:
        raise RefusedError(f"it takes {num_bytes / 2**30:.0f} GiB of memory, and may take {MAX_BYTES / 2**30:.0f}")
    return compiled


def _try(program: jax.export.Exported) -> None:
    """Compiles a program and runs it on one row of zeros."""
    one = lambda x: np.zeros([n if isinstance(n, int) else 1 for n in x.shape], x.dtype)
    arguments, _ = jax.tree.unflatten(program.in_tree, [one(x) for x in program.in_avals])
    jax.block_until_ready(bounded(program)(*arguments))


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[0].split())[:200].rstrip(" .;") if lines else type(error).__name__


def _main() -> int:
    """Checks, compiles and runs the programs on standard input. Prints the reason if it refuses them."""
    try:
        import resource  # noqa: PLC0415 - not on Windows

        resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # no such module or limit, or the limit is lower already
        pass
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as given:
        step, start = given["step"].tobytes(), given["start"].tobytes()
    try:
        for program in read_programs(step, start):
            try:
                _try(program)
            except RefusedError:
                raise
            except Exception as error:  # the compiler can raise anything
                raise RefusedError(f"it cannot be compiled and run ({_first_line(error)})") from error
    except RefusedError as error:
        sys.stdout.write(str(error))
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main())
