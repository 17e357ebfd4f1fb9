"""Debug logs of a run's setup: processes, devices, placement, compiled programs."""

import collections
import contextlib
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from ksim.learn.train_step import TrainStep
from ksim.parallel.multihost import Peers, num_processes, process_index
from ksim.preflight.memory import format_bytes
from ksim.task.rl import RLTask
from ksim.types import TrainState

logger = logging.getLogger(__name__)

_CACHE_EVENTS = {
    "/jax/compilation_cache/cache_hits": "cache hit",
    "/jax/compilation_cache/cache_misses": "cache miss",
}
_COLLECTIVE = re.compile(
    r" = (?P<type>\([^=]*?\)|\S+) "
    r"(?P<op>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(?:-start)?\("
)
_ARRAY = re.compile(r"([a-z]+)(\d*)\[([\d,]*)\]")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "JAX_", "XLA_", "PJRT_", "KSIM_", "NCCL_")


def log_setup(task: RLTask[Any], step: TrainStep, state: TrainState, peers: Peers) -> None:
    """Logs at debug the processes, the devices, the batch and the placement of every leaf of the placed state."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    logger.debug("This is process %d of %d.", process_index(), num_processes())
    for i, (host, pid) in enumerate(zip(peers.hosts, peers.pids, strict=True)):
        logger.debug("Process %d: pid %d on %s.", i, pid, host)
    for name in sorted(os.environ):
        if name.startswith(_VARIABLES):
            logger.debug("Environment: %s=%s", name, os.environ[name])
    layout, config = task.layout, task.config
    for i, device in enumerate(layout.devices):
        logger.debug(
            "Device %d: %s (%s, %s) of process %d.",
            i,
            device,
            device.platform,
            device.device_kind,
            device.process_index,
        )
    logger.debug("Layout: %s, axis %s.", type(layout).__name__, layout.axis_name)
    share = config.num_envs // layout.num_devices
    logger.debug("Batch: %d environments, %d on each device, %d steps.", config.num_envs, share, config.rollout_length)
    logger.debug("Hyperparameters: %s", step.learner.info().hyper)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name, shape = jax.tree_util.keystr(path), list(leaf.shape)
        logger.debug("Placement: state%s: %s%s, %s", name, leaf.dtype, shape, leaf.sharding)


def compiling(name: str, mapped: Any, *args: Any) -> Callable[[], Any]:
    """Lowers a mapped function and compiles it in a thread; returns a function that waits for the program.

    Logs at debug the times and the collectives of the program. Lowering is Python and holds the GIL, so only compiling
    runs in the thread.

    Args:
        name: The program's name in the log, as in `the update`.
        mapped: A function returned by `AbstractLayout.map`.
        args: Placed arguments.
    """
    start_s = time.perf_counter()
    lowered = mapped.lower(*args)
    lowering_s = time.perf_counter() - start_s
    executor = ThreadPoolExecutor(max_workers=1)
    program = executor.submit(_compiled, name, lowered, lowering_s)
    executor.shutdown(wait=False)
    return program.result


def _compiled(name: str, lowered: Any, lowering_s: float) -> Any:
    start_s = time.perf_counter()
    with _cache_events() as events:
        program = lowered.compile()
    compiling_s = time.perf_counter() - start_s
    if logger.isEnabledFor(logging.DEBUG):
        found = ", ".join(sorted(events)) or "the compilation cache is off, or cannot hold it"
        logger.debug("Program of %s: lowered in %.2f s, compiled in %.2f s (%s).", name, lowering_s, compiling_s, found)
        for line in describe_collectives(program.as_text()) or ["none"]:
            logger.debug("Collectives in the program of %s: %s", name, line)
    return program


@contextlib.contextmanager
def _cache_events() -> Iterator[set[str]]:
    """The events of the compilation cache while this thread compiles a program: `cache hit` or `cache miss`."""
    events: set[str] = set()
    thread = threading.get_ident()

    def listen(event: str, **_: Any) -> None:
        if event in _CACHE_EVENTS and threading.get_ident() == thread:
            events.add(_CACHE_EVENTS[event])

    jax.monitoring.register_event_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_listener(listen)


def describe_collectives(text: str) -> list[str]:
    """The collectives in a compiled program's text, as in `2 x all-reduce of f32[58411] (228.2 KiB)`.

    A collective in a loop counts once, however often it runs.
    """
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in text.splitlines():
        if found := _COLLECTIVE.search(line):
            arrays = [match[0] for match in _ARRAY.finditer(found["type"])]
            counts[found["op"], ", ".join(arrays)] += 1
    return [
        f"{count} x {op} of {arrays} ({format_bytes(sum(map(_num_bytes, _ARRAY.finditer(arrays))))})"
        for (op, arrays), count in sorted(counts.items())
    ]


def _num_bytes(array: re.Match[str]) -> int:
    """Bytes of an array such as `f32[8,4]`; a `pred` takes one byte per element."""
    bits = int(array[2] or 8)
    return math.prod(int(n) for n in array[3].split(",") if n) * max(bits // 8, 1)
