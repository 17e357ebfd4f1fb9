"""The time of a rollout by kernel: `python -m benchmarks.throughput --profile`.

JAX's profiler records one rollout. Each kernel counts with the lower quartile of its durations over the steps, so the
steps in which another process held the core do not count. Under native MuJoCo the time within `Batch.step` is also
measured apart, as the median of all calls.
"""

import collections
import contextlib
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from mujoco.batch import Batch

GROUPS = {
    "physics and the callback around it": r"callback|ffi_call",
    "policy and value function": r"Linear|elu|GRUCell",
    "random numbers": r"random|threefry|uniform|normal",
    "observations": r"observation",
    "rewards and terminations": r"reward|termination",
    "commands, events": r"command|event",
    "checks for numbers that are not finite": r"is_finite",
    "writing the trajectory": r"dynamic_update_slice",
    "resets and other choices": r"select",
}
"""Groups of kernels. A kernel belongs to the first group whose pattern is in the name of its last operation."""


def print_profile(rollout: Any, state: Any, num_steps: int, num_kernels: int = 12) -> None:
    """Prints the times as Markdown, in ms per control step of the whole batch.

    Args:
        rollout: A compiled rollout.
        state: Its argument.
        num_steps: Its control steps.
        num_kernels: Number of the longest kernels, which are listed by name.
    """
    with physics_times() as physics_s:
        jax.block_until_ready(rollout(state))
    if physics_s:
        print(f"\n`Batch.step`: {1e3 * statistics.median(physics_s):.3f} ms, median of {len(physics_s)} calls.")
    name_of = operations(rollout.as_text())
    kernels = []
    for kernel, durations_s in recorded(rollout, state, set(name_of)).items():
        if len(durations_s) >= num_steps:  # others run once per rollout
            quartile_s = sorted(durations_s)[len(durations_s) // 4]
            kernels.append((1e3 * quartile_s * len(durations_s) / num_steps, kernel))
    totals: collections.Counter[str] = collections.Counter()
    for ms, kernel in kernels:
        totals[group(name_of[kernel])] += ms
    print(f"\n{len(kernels)} kernels in a step:\n\n| group | ms |\n|---|---|")
    for name, ms in totals.most_common():
        print(f"| {name} | {ms:.3f} |")
    print("\n| kernel | ms | its last operation |\n|---|---|---|")
    for ms, kernel in sorted(kernels, reverse=True)[:num_kernels]:
        print(f"| {kernel} | {ms:.3f} | `{name_of[kernel][-70:]}` |")
    print()


@contextlib.contextmanager
def physics_times() -> Iterator[list[float]]:
    """The seconds of each call of `Batch.step` meanwhile."""
    times_s: list[float] = []
    step = Batch.step

    def timed(*args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        step(*args, **kwargs)
        times_s.append(time.perf_counter() - start)

    Batch.step = timed
    try:
        yield times_s
    finally:
        Batch.step = step


def operations(program: str) -> dict[str, str]:
    """The kernels of a compiled program, with the name in JAX of what each computes last."""
    found = {}
    for line in program.splitlines():
        kernel = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line)
        name = re.search(r'op_name="([^"]*)"', line)
        # Control flow only holds other kernels, but a small loop is compiled into one, as a call.
        is_control_flow = re.search(r" (while|call|conditional)\(", line) and "xla_cpu_small_call" not in line
        if kernel and not is_control_flow:
            found[kernel[1]] = name[1] if name else ""
    return found


def recorded(rollout: Any, state: Any, kernels: set[str]) -> dict[str, list[float]]:
    """The seconds of every execution of each kernel in one rollout."""
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            jax.block_until_ready(rollout(state))
        (path,) = Path(directory).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(path))
        durations_s = collections.defaultdict(list)
        for event in (event for plane in profile.planes for line in plane.lines for event in line.events):
            if event.name in kernels:
                durations_s[event.name].append(1e-9 * event.duration_ns)
    return dict(durations_s)


def group(name: str) -> str:
    """The group of an operation, by its name in JAX."""
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, name)), "other")
