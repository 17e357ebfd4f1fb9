"""Measurements of a task on one device, from which times on many devices are predicted."""

import collections
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core
from jaxtyping import PyTree

from ksim.host.terminal import print_line
from ksim.parallel.collectives import bind_axis
from ksim.parallel.layout import PmapDevices
from ksim.preflight.memory import num_bytes
from ksim.task.distributed_rl import DistributedRLTask
from ksim.tools.prediction import OneDevice, Setting, Size
from ksim.train.timing import TimedStep

MakeTask = Callable[..., DistributedRLTask[Any]]
"""`(num_envs, **options) -> the task on one device`, with a batch size in proportion to `num_envs`."""
_DIVISORS = (1, 8, 64)
"""Divisors of `num_envs` to measure: strong scaling divides the envs among devices, so it needs times of fewer envs."""


def measure_one_device(make: MakeTask, num_envs: int, *, repeats: int, iterations: int) -> OneDevice:
    """Times rollout and update with several numbers of envs, in turn, and counts the bytes that devices would send.

    Args:
        num_envs: The largest number of envs.
        repeats: Repetitions, each of all sizes in turn.
        iterations: Training iterations per size and repetition.

    Raises:
        ConfigError: The task does not work on one device.
    """
    whole = make(num_envs)
    whole.check()
    batch_size, num_batches = whole.batch_figures()
    fits = lambda divisor: num_envs % (divisor * (num_batches or 1)) == 0
    runs = {}
    for size in [num_envs // divisor for divisor in _DIVISORS if fits(divisor)]:
        print_line(f"Compiling {size} environments on 1 device ...")
        runs[size] = _timed(whole if size == num_envs else make(size))
    times: dict[int, list[tuple[float, float]]] = {size: [] for size in runs}
    for repeat in range(repeats):
        print_line(f"Repetition {repeat + 1} of {repeats} ...")
        for size, run in runs.items():
            times[size] += [run() for _ in range(iterations)]
    return OneDevice(
        task=type(whole).__name__,
        device=whole.layout.devices[0].device_kind,
        batch_size=batch_size or num_envs,
        gradient_bytes=num_bytes(whole.learner_shapes()[0].params),
        sizes=[Size(size, *map(list, zip(*halves, strict=True))) for size, halves in times.items()],
        settings=_settings(make, whole),
    )


def _timed(task: DistributedRLTask[Any]) -> Callable[[], tuple[float, float]]:
    """A function that runs an iteration and returns the seconds of rollout and update, after two warm-up iterations."""
    held = [task.layout.place(task.initial_state())]
    step = TimedStep(task.layout, task.make_train_step(None), held[0], donate=True)

    def run() -> tuple[float, float]:
        held[0], _, seconds = step(held[0])
        return float(seconds[0, 0]), float(seconds[0, 1])

    for _ in range(2):
        run()
    return run


def _settings(make: MakeTask, whole: DistributedRLTask[Any]) -> list[Setting]:
    """The task's own setting, then the alternatives that a user may choose."""
    config, updates = whole.config, whole.updates_per_iteration() or 1
    periods = sorted({1, updates, *(4**i for i in range(1, 16) if 4**i < updates)})
    wanted = [(config.grad_sync_mode, min(config.grad_sync_period, updates))]
    wanted += [("accumulate", period) for period in periods] + [("local", period) for period in periods if period > 1]
    state, step = whole.initial_state(), whole.make_train_step(None)
    collected = jax.eval_shape(bind_axis(step.roll_out, whole.device_axis), state.envs, state.learner)[1]
    settings = []
    for mode, period in dict.fromkeys(wanted):
        task = make(config.num_envs, grad_sync_mode=mode, grad_sync_period=period)
        # One device with an axis, so that the hooks of the task reduce over it.
        task.layout = PmapDevices(task.layout.devices, task.device_axis)
        improve = task.make_train_step(task.device_axis).improve
        reductions = sorted(count_reductions(improve, task.device_axis, state.learner, collected).items(), reverse=True)
        settings.append(Setting(mode, period, task.figures().syncs_per_iteration, reductions))
    return settings


def count_reductions(function: Callable[..., Any], axis_name: str, *args: PyTree) -> collections.Counter[int]:
    """The number of reductions over devices in a function, by the bytes that each device contributes to one.

    Counted in the traced function: once per iteration of a loop, and in every branch of a condition. Gathers and other
    collectives count as reductions. The compiler may combine some.

    Args:
        function: The computation of every device.
        axis_name: The axis of devices.
        args: Arguments of the function, or their shapes.
    """
    traced = jax.make_jaxpr(function, axis_env=[(axis_name, 2)])(*args)
    return _count(traced.jaxpr, axis_name)


def _count(jaxpr: jax.extend.core.Jaxpr, axis_name: str) -> collections.Counter[int]:
    counts: collections.Counter[int] = collections.Counter()
    for eqn in jaxpr.eqns:
        axes = [eqn.params.get(name) for name in ("axes", "axis_name")]
        is_collective = any(x == axis_name or (isinstance(x, tuple) and axis_name in x) for x in axes)
        if is_collective and eqn.invars:  # `axis_index` sends nothing
            counts[sum(num_bytes(v.aval) for v in eqn.invars)] += 1
        turns = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for inner in _inner_jaxprs(eqn.params.values()):
            counts.update({size: turns * times for size, times in _count(inner, axis_name).items()})
    return counts


def _inner_jaxprs(values: Any) -> Iterator[jax.extend.core.Jaxpr]:
    for value in values:
        if isinstance(value, jax.extend.core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, jax.extend.core.Jaxpr):
            yield value
        elif isinstance(value, list | tuple):
            yield from _inner_jaxprs(value)
