"""Lowering and compiling functions mapped over devices. Some are kept out of JAX's compilation cache."""

import math
import re
import threading
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import PyTree

_COLLECTIVE = re.compile(
    r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute|collective_broadcast)\b"
)
_SHORTEST_S = "jax_persistent_cache_min_compile_time_secs"
# That option belongs to the whole process, and the cache reads it at the end of a compilation.
_one_at_a_time = threading.Lock()


class Mapped:
    """A function of placed arrays, mapped over devices and compiled at its first call."""

    def __init__(self, jitted: Any, view: Callable[[PyTree], PyTree], platform: str) -> None:
        """Wraps a mapped function.

        Args:
            jitted: The function, with a method `lower`.
            view: Converts placed arguments for `jitted`.
            platform: Platform of the devices, such as `cpu`.
        """
        self._jitted = jitted
        self._view = view
        self._platform = platform
        self._compiled: Any = None

    def lower(self, *args: PyTree) -> "Lowered":
        """The program for arguments like these, not compiled yet."""
        return Lowered(self._jitted.lower(*self._view(args)), self._platform)

    def __call__(self, *args: PyTree) -> PyTree:
        """Compiles at the first call; later arguments must have the same shapes and placement."""
        if self._compiled is None:
            self._compiled = self.lower(*args).compile()
        return self._compiled(*args)


class Lowered:
    """A mapped function's program before it is compiled."""

    def __init__(self, lowered: Any, platform: str) -> None:
        """Wraps a program that JAX lowered for devices of a platform."""
        self._lowered = lowered
        self._platform = platform

    def as_text(self) -> str:
        """The program in StableHLO."""
        return self._lowered.as_text()

    def compile(self) -> Any:
        """The compiled program.

        On CPU, programs with collectives are kept out of the compilation cache. XLA runs independent collectives in the
        same order on every device, but a program read from the cache has lost that order. Devices then add to
        different sums at the same time, which ends in SIGSEGV, an abort or wrong numbers.
        """
        if self._platform != "cpu":
            return self._lowered.compile()
        collectives = _COLLECTIVE.search(self.as_text())
        with _one_at_a_time:
            shortest_s = jax.config.values[_SHORTEST_S]
            if collectives:
                jax.config.update(_SHORTEST_S, math.inf)
            try:
                return self._lowered.compile()
            finally:
                jax.config.update(_SHORTEST_S, shortest_s)
