"""Calls from compiled CPU programs to Python functions, such that the programs stay cacheable.

JAX does not keep programs with a `jax.pure_callback` in its compilation cache, because they hold the index of a Python
function in a list of the process that compiled them. Here a program holds a number that every process derives from the
function's content, and one handler looks the function up by it. The handler is a typed foreign function of XLA
(`jax.ffi`). Its C structures are read with ctypes; they are defined in xla/ffi/api/c_api.h in jaxlib, version 0.3,
which XLA promises to keep. The handler passes XLA's own buffers, so nothing is copied.
"""

import ctypes
import hashlib
import math
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

Fill = Callable[[np.ndarray, np.ndarray], None]
"""(rows (..., n), out (..., m)) -> None: fills `out`, one row per input row. Both are float32 and only valid during the
call."""

_TARGET = "ksim_host_function"
_METADATA = 1
"""The type of the extension with which XLA queries the handler's version at registration."""
_INTERNAL = 13
"""The error code to return if a function raised."""


class HostFunction:
    """A function of rows that programs call. They can find it as long as a reference to this object exists."""

    def __init__(self, fill: Fill, number: int) -> None:
        self.fill = fill
        self._number = number

    def __call__(self, row: Array, out_size: int) -> Array:
        """The result for a float32 row, (n,), traced or not; under `jax.vmap`, one call for all rows."""

        def on_host(rows: Array) -> np.ndarray:
            out = np.empty((*rows.shape[:-1], out_size), np.float32)
            self.fill(np.asarray(rows), out)
            return out

        if not isinstance(row, Tracer):
            return jnp.asarray(on_host(row))  # avoids compiling a program
        result = jax.ShapeDtypeStruct((out_size,), jnp.float32)
        return jax.lax.platform_dependent(
            row,
            cpu=lambda row: jax.ffi.ffi_call(_TARGET, result, vmap_method="broadcast_all")(
                row, number=np.int64(self._number)
            ),
            default=lambda row: jax.pure_callback(on_host, result, row, vmap_method="broadcast_all"),
        )


def host_function(fill: Fill, content: bytes) -> HostFunction:
    """The host function for some content, on which alone its results depend: an existing one, or a new one.

    Functions of equal content are shared, and have the same number in every process.
    """
    number = int.from_bytes(hashlib.sha256(content).digest()[:8], "little", signed=True)
    function = _functions.get(number)
    if function is None:
        _functions[number] = function = HostFunction(fill, number)
    return function


_functions: weakref.WeakValueDictionary[int, HostFunction] = weakref.WeakValueDictionary()


class _Struct(ctypes.Structure):
    """The fields with which all structures of XLA's interface begin."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p))


class _ApiVersion(_Struct):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("api_version", _ApiVersion), ("traits", ctypes.c_uint32))


class _Extension(ctypes.Structure):
    """An extension. It has metadata if its type is `_METADATA`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


class _ErrorArgs(_Struct):
    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _Api(_Struct):
    """The first fields of XLA's API structure."""

    _fields_ = (
        ("version", _ApiVersion),
        ("internal", ctypes.c_void_p),
        ("create_error", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArgs))),
    )


class _Buffer(_Struct):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Scalar(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64)))


class _Buffers(_Struct):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    )


class _Attributes(_Struct):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.POINTER(_Scalar))),
    )


class _CallFrame(_Struct):
    _fields_ = (
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("args", _Buffers),
        ("rets", _Buffers),
        ("attributes", _Attributes),
    )


def _array(buffer: _Buffer) -> np.ndarray:
    """A view of XLA's memory of a float32 array."""
    shape = tuple(buffer.dims[: buffer.rank])
    memory = (ctypes.c_float * math.prod(shape)).from_address(buffer.data)
    return np.frombuffer(memoryview(memory), np.float32).reshape(shape)


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))
def _handle(pointer: Any) -> int | None:
    """The handler that XLA calls on one of its threads. Returns an error, or None."""
    frame = pointer.contents
    try:
        extension = _Extension.from_address(frame.extension) if frame.extension else None
        if extension and extension.type == _METADATA:
            metadata, version = extension.metadata.contents, frame.api.contents.version
            metadata.api_version.major, metadata.api_version.minor, metadata.traits = version.major, version.minor, 0
            return None
        number = frame.attributes.values[0].contents.value[0]
        function = _functions.get(number)
        if function is None:
            raise RuntimeError("The environment of this program is gone. Hold it for as long as its programs are run.")
        rows, out = _array(frame.args.values[0].contents), _array(frame.rets.values[0].contents)
        rows.setflags(write=False)  # XLA may still read them
        function.fill(rows, out)
    except BaseException:  # noqa: BLE001 - no exception may leave a function that C calls
        message = traceback.format_exc().encode()
        error = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, message, _INTERNAL)
        return frame.api.contents.create_error(ctypes.byref(error))
    return None


jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(_handle), platform="cpu")
