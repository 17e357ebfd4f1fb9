"""Measurements of training on one and on several devices."""

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import PyTree

from ksim.host.machine import num_cores
from ksim.host.terminal import print_line
from ksim.parallel.collectives import bind_axis, inner_jaxprs
from ksim.parallel.devices import select_devices
from ksim.parallel.layout import PmapDevices
from ksim.preflight.memory import num_bytes
from ksim.task.distributed import DistributedRLConfig, DistributedRLTask
from ksim.tools.prediction import OneDevice, Setting, Size
from ksim.train.timing import TracedStep


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """`median (lowest-highest)` of some values, each in a format such as `.2f` or `.0%`."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


MakeTask = Callable[..., DistributedRLTask[Any]]
"""`(num_envs, **options) -> the task on one device`, with a batch size in proportion to `num_envs`."""
_DIVISORS = (1, 8, 64)
"""Divisors of `num_envs` to measure: strong scaling divides the envs among devices, so it needs times of fewer envs."""


def measure_one_device(make: MakeTask, num_envs: int, *, repeats: int, iterations: int) -> OneDevice:
    """Times rollout and update with up to `num_envs` envs, and counts the bytes that devices would send.

    In each repetition, all sizes run in turn, each for `iterations` of training.

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
        runs[size] = _timed_runs(whole if size == num_envs else make(size))
    times: dict[int, list[tuple[float, float]]] = {size: [] for size in runs}
    for repeat in range(repeats):
        print_line(f"Repetition {repeat + 1} of {repeats} ...")
        for size, run in runs.items():
            times[size] += [run() for _ in range(iterations)]
    return OneDevice(
        task=type(whole).__name__,
        device=whole.layout.devices[0].device_kind,
        batch_size=batch_size or num_envs,
        gradient_bytes=num_bytes(whole.learner_shapes().state.params),
        sizes=[Size(size, *map(list, zip(*halves, strict=True))) for size, halves in times.items()],
        settings=_settings(make, whole),
    )


def _timed_runs(task: DistributedRLTask[Any]) -> Callable[[], tuple[float, float]]:
    """A function that runs an iteration and returns the seconds of rollout and update, after two warm-up iterations."""
    held = [task.layout.place(task.initial_state())]
    step = TracedStep(task.layout, task.make_train_step(None), held[0], donate=True).compile(held[0])

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
    collected = jax.eval_shape(bind_axis(step.collect, whole.device_axis), state.envs, state.learner)[1]
    settings = []
    for mode, period in dict.fromkeys(wanted):
        task = make(config.num_envs, grad_sync_mode=mode, grad_sync_period=period)
        # One device with an axis, so that the hooks of the task reduce over it.
        task.layout = PmapDevices(task.layout.devices, task.device_axis)
        learn = task.make_train_step(task.device_axis).learn
        reductions = sorted(count_reductions(learn, task.device_axis, state.learner, collected).items(), reverse=True)
        settings.append(Setting(mode, period, task.learner_info().syncs_per_iteration, reductions))
    return settings


def count_reductions(function: Callable[..., Any], axis_name: str, *args: PyTree) -> collections.Counter[int]:
    """The number of reductions over devices in a function, by the bytes that each device contributes to one.

    Counted in the traced function: once per iteration of a loop, and in every branch of a condition. Gathers and other
    collectives count as reductions. The compiler may combine some. `args` may be shapes.
    """
    traced = jax.make_jaxpr(function, axis_env=[(axis_name, 2)])(*args)
    return _count(traced.jaxpr, axis_name)


def _count(jaxpr: Any, axis_name: str) -> collections.Counter[int]:
    counts: collections.Counter[int] = collections.Counter()
    for eqn in jaxpr.eqns:
        axes = [eqn.params.get(name) for name in ("axes", "axis_name")]
        is_collective = any(x == axis_name or (isinstance(x, tuple) and axis_name in x) for x in axes)
        if is_collective and eqn.invars:  # `axis_index` sends nothing
            counts[sum(num_bytes(v.aval) for v in eqn.invars)] += 1
        turns = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for inner in inner_jaxprs(eqn):
            counts.update({size: turns * times for size, times in _count(inner, axis_name).items()})
    return counts


_Size = tuple[int, int]
"""Number of devices and number of envs."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One size, measured several times.

    Attributes:
        kind: `strong` or `weak`.
        env_steps_per_s: Env steps per second over all envs, one figure per repetition.
        efficiency: Speed per device, divided by the speed of one device alone in the same repetition.
        collective_share: Share of time in collectives and waiting for them, one figure per repetition.
    """

    kind: str
    num_devices: int
    num_envs: int
    env_steps_per_s: list[float]
    efficiency: list[float]
    collective_share: list[float]


class _Subject:
    """A task of one size, with its compiled train step, with and without collectives."""

    def __init__(self, task: DistributedRLTask[Any]) -> None:
        self.task, layout = task, task.layout
        start = task.initial_state()
        self.num_steps = task.config.env_steps_per_iteration
        self._runs = {"whole": self._compile(layout.place(start), layout.axis_name)}
        if layout.axis_name is not None:
            # The same work without collectives; devices run independently.
            self._runs["alone"] = self._compile(layout.place(start), None)

    def _compile(self, state: Any, axis_name: str | None) -> Callable[[], None]:
        train_step = self.task.make_train_step(axis_name)
        if axis_name is None and self.task.layout.num_devices > 1:
            alone = dataclasses.replace(train_step.algorithm, sync_gradients=lambda grads: grads)
            train_step = dataclasses.replace(train_step, algorithm=alone)
        step = self.task.layout.compile(train_step, state)
        held = [state]

        def run() -> None:
            held[0], metrics = step(held[0])
            jax.block_until_ready(metrics)

        return run

    def time(self, num_iterations: int) -> dict[str, float]:
        """Seconds per iteration, with collectives (`whole`) and without (`alone`)."""
        seconds = {}
        for name, run in self._runs.items():
            start_s = time.perf_counter()
            for _ in range(num_iterations):
                run()
            seconds[name] = (time.perf_counter() - start_s) / num_iterations
        return seconds


def measure(
    task_class: type[DistributedRLTask[Any]],
    config: DistributedRLConfig,
    counts: Sequence[int],
    *,
    repeats: int,
    iterations: int,
) -> list[Measurement]:
    """Times strong and weak scaling on numbers of devices, 1 among them.

    The option `num_envs` is over all devices for strong scaling, and per device for weak scaling.

    Raises:
        ConfigError: A size does not fit its number of devices.
    """
    sizes = {("strong", n): config.num_envs for n in counts} | {("weak", n): config.num_envs * n for n in counts}
    of_sizes = dict.fromkeys((count, num_envs) for (_, count), num_envs in sizes.items())
    tasks = {size: task_class(resized(config, *size)) for size in of_sizes}
    for task in tasks.values():  # check all before compiling the first
        task.check()
    subjects: dict[_Size, _Subject] = {}
    for (count, num_envs), task in tasks.items():
        print_line(f"Compiling {num_envs} environments on {count} device{'s' if count > 1 else ''} ...")
        subjects[count, num_envs] = _Subject(task)
    timed = _time_all(subjects, repeats, iterations)
    speeds = {
        size: [subjects[size].num_steps / seconds["whole"] for seconds in of_size] for size, of_size in timed.items()
    }
    alone = speeds[1, config.num_envs]
    return [
        Measurement(
            kind=kind,
            num_devices=count,
            num_envs=num_envs,
            env_steps_per_s=speeds[count, num_envs],
            efficiency=[x / count / one for x, one in zip(speeds[count, num_envs], alone, strict=True)],
            collective_share=[
                max(0.0, 1 - seconds.get("alone", seconds["whole"]) / seconds["whole"])
                for seconds in timed[count, num_envs]
            ],
        )
        for (kind, count), num_envs in sizes.items()
    ]


def _time_all(subjects: Mapping[_Size, _Subject], repeats: int, iterations: int) -> dict[_Size, list[dict[str, float]]]:
    """The results of `_Subject.time` by size, one per repetition."""
    for subject in subjects.values():  # the first iterations warm up
        subject.time(2)
    timed: dict[_Size, list[dict[str, float]]] = {size: [] for size in subjects}
    for repeat in range(repeats):
        print_line(f"Repetition {repeat + 1} of {repeats} ...")
        for size, subject in subjects.items():
            timed[size].append(subject.time(iterations))
    return timed


def resized(config: DistributedRLConfig, num_devices: int, num_envs: int) -> Any:
    """The options for another size. A batch size, if set, is scaled in proportion to `num_envs`."""
    changes: dict[str, Any] = {"num_devices": num_devices, "num_envs": num_envs}
    batch_size = getattr(config, "batch_size", None)
    if batch_size is not None:
        changes["batch_size"] = batch_size * num_envs // config.num_envs
    return dataclasses.replace(config, **changes)


def describe_devices(devices: Any, num_devices: int) -> str:
    """A description of the measured devices, with a caveat for host devices of a CPU."""
    device = select_devices(devices, num_devices)[0]
    if device.platform != "cpu":
        return f"{num_devices} x {device.device_kind}"
    return (
        f"Host devices of one CPU with {num_cores()} cores, which they share: such figures prove that the program is "
        "right on several devices, not that it is fast."
    )


def table(measurements: Sequence[Measurement]) -> str:
    """The measurements as a Markdown table: medians, with the lowest and highest."""
    lines = [
        "| scaling | devices | environments | env steps/s | efficiency | time in collectives |",
        "|---|---|---|---|---|---|",
    ]
    for m in measurements:
        speed, efficiency = statistics.median(m.env_steps_per_s), spread(m.efficiency)
        share = spread(m.collective_share, ".0%") if m.num_devices > 1 else "-"
        lines.append(f"| {m.kind} | {m.num_devices} | {m.num_envs} | {speed:,.0f} | {efficiency} | {share} |")
    return "\n".join(lines)
