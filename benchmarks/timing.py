"""Interleaved timing of programs in one process, in wall time and processor time."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

Result = TypeVar("Result")


class Seconds(NamedTuple):
    """Wall time, and processor time over all threads, which other programs disturb less."""

    wall: float
    processor: float


def timed(run: Callable[[], Result]) -> tuple[Result, Seconds]:
    """A function's result, once JAX has computed it, and the time that it took."""
    start = Seconds(time.perf_counter(), time.process_time())
    result = jax.block_until_ready(run())
    return result, Seconds(time.perf_counter() - start.wall, time.process_time() - start.processor)


def interleaved(runs: dict[str, Callable[[], Result]], repeats: int, warm_up: int = 1) -> dict[str, list[Result]]:
    """The results of each function, called in turn. The first turns warm up and are dropped."""
    found: dict[str, list[Result]] = {name: [] for name in runs}
    for repeat in range(-warm_up, repeats):
        # In alternating order, or the second would always have the warmer machine.
        for name in list(runs) if repeat % 2 else list(reversed(runs)):
            value = runs[name]()
            if repeat >= 0:
                found[name].append(value)
    return found


def time_in_turn(runs: dict[str, Callable[[], Any]], repeats: int, warm_up: int = 1) -> dict[str, list[Seconds]]:
    """The times of each function, called in turn. The first turns compile and warm up, and are dropped."""
    return interleaved({name: lambda run=run: timed(run)[1] for name, run in runs.items()}, repeats, warm_up)


def ratios(times: Sequence[Seconds], others: Sequence[Seconds], clock: str = "wall") -> list[float]:
    """Times over others of the same turn, by a clock of `Seconds`."""
    return [getattr(x, clock) / getattr(y, clock) for x, y in zip(times, others, strict=True)]
