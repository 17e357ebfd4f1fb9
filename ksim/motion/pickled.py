"""Arrays from a pickle, without executing any of its code."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np


class _ArraysOnly(pickle._Unpickler):  # type: ignore[name-defined]
    """An unpickler for arrays of numbers and plain containers only.

    It uses the Python implementation, because the C implementation allocates memory for any index that a file names. It
    only calls the functions below, which make arrays from the bytes in the file.
    """

    def find_class(self, module: str, name: str) -> Any:
        parts = module.replace("numpy._core", "numpy.core").removeprefix("numpy.core.")
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy", "dtype"): _number_type,
            ("numpy", "ndarray"): _Array,
            ("multiarray", "_reconstruct"): lambda *_: _Array(),
            ("multiarray", "scalar"): lambda dtype, data: _array(dtype, (), data),
            ("numeric", "_frombuffer"): lambda data, dtype, shape, order: _array(dtype, shape, data, order),
            ("_codecs", "encode"): _latin1,
        }
        if (parts, name) not in known:
            raise pickle.UnpicklingError(f"it would run {module}.{name}")
        return known[parts, name]


class _Number:
    """A numeric dtype under construction: NumPy sets the byte order afterwards."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        if state[1] in ("<", ">"):
            self.code = state[1] + self.code.lstrip("<>=|")

    @property
    def dtype(self) -> np.dtype:
        dtype = np.dtype(self.code)
        if dtype.kind not in "biufU":
            raise pickle.UnpicklingError(f"it has an array of {dtype}")
        return dtype


class _Array:
    """An array under construction."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.array = _array(dtype, shape, data, "F" if is_fortran else "C")


def _number_type(code: Any, *_: Any) -> _Number:
    if not isinstance(code, str) or len(code) > 8:
        raise pickle.UnpicklingError("it has a type that is none of numbers")
    return _Number(code)


def _array(dtype: Any, shape: Any, data: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Number):
        raise pickle.UnpicklingError("it has an array that is none of numbers")
    return np.frombuffer(bytes(data), dtype.dtype).reshape(shape, order=order)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it would decode {encoding!r:.40}")
    return text.encode("latin1")


def load_arrays(content: bytes) -> Any:
    """The content of a pickle: dicts, lists, numbers, texts and NumPy arrays of numbers.

    Raises:
        ValueError: The pickle contains anything else, or is damaged.
    """
    try:
        return _plain(_ArraysOnly(io.BytesIO(content)).load())
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _plain(value: Any, depth: int = 0) -> Any:
    """The value with its arrays completed."""
    if depth > 3:  # objects shared by nested lists would grow exponentially
        raise ValueError("it is nested too deeply")
    if isinstance(value, _Array):
        if value.array is None:
            raise ValueError("it has an array without numbers")
        return value.array
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic):
        return value
    raise ValueError(f"it has a {type(value).__name__}")
