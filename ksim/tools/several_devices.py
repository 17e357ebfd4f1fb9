"""Times of a task on several numbers of devices: strong and weak scaling, and the share of time in collectives."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ksim.host.machine import num_cores
from ksim.host.terminal import print_line
from ksim.parallel.devices import select_devices
from ksim.task.distributed_rl import DistributedRLConfig, DistributedRLTask
from ksim.tools.spread import spread

_Size = tuple[int, int]
"""Number of devices and number of envs."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One size, measured several times.

    Attributes:
        kind: `strong` or `weak`.
        num_envs: Number of envs over all devices.
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
            alone = dataclasses.replace(train_step.learner, sync_gradients=lambda grads: grads)
            train_step = dataclasses.replace(train_step, learner=alone)
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
    """Times strong and weak scaling.

    Args:
        config: The task's options; `num_envs` over all devices for strong scaling, per device for weak scaling.
        counts: Numbers of devices, including 1.
        repeats: Repetitions, each of all sizes in turn.
        iterations: Training iterations per size and repetition.

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
    timed = _timed(subjects, repeats, iterations)
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


def _timed(subjects: Mapping[_Size, _Subject], repeats: int, iterations: int) -> dict[_Size, list[dict[str, float]]]:
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
    """A description of the measured devices, with a caveat for host devices of a CPU.

    Args:
        devices: The option `devices`.
        num_devices: The largest number of devices that was measured.
    """
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
