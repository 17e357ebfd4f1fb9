"""How training speeds up with devices: environment steps per second on 1, 2, 4, ... of them.

python -m ksim.tools.scaling examples.walking_distributed num_envs=4096 --devices 1 2 4 8 --out scaling

Strong scaling divides the same environments among more devices; weak scaling gives every device as many. Efficiency is
the speed per device over that of one device. All sizes are run in turn, again and again, in one process. The share of
time in collectives is found by running the same step without them: it is what communication and waiting for the slowest
device cost together.

Writes a table (FILE.md), the figures (FILE.json) and a plot (FILE.png).
"""

import argparse
import dataclasses
import importlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from ksim.checks import check_positive, check_rule
from ksim.errors import ConfigError, near_misses
from ksim.host.files import whole_file
from ksim.host.machine import num_cores
from ksim.host.terminal import print_line
from ksim.parallel.devices import make_host_devices, select_devices
from ksim.parallel.job import find_job
from ksim.task.distributed_rl import DistributedRLConfig, DistributedRLTask
from ksim.task.overrides import parse_overrides

_Size = tuple[int, int]
"""Numbers of devices and of environments."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One size, measured several times.

    Attributes:
        kind: `strong` or `weak`.
        num_devices: Devices.
        num_envs: Environments over all devices.
        env_steps_per_s: Control steps per second over all environments, one figure per repetition.
        efficiency: Speed per device over that of one device in the same repetition.
        collective_share: Share of the time that collectives and waiting for them take, likewise.
    """

    kind: str
    num_devices: int
    num_envs: int
    env_steps_per_s: list[float]
    efficiency: list[float]
    collective_share: list[float]


class _Subject:
    """A task of one size, with its step as it is and without collectives."""

    def __init__(self, task: DistributedRLTask[Any]) -> None:
        self.task, layout = task, task.layout
        start = task.initial_state()
        self.num_steps = task.config.num_envs * task.config.rollout_length
        self._runs = {"whole": self._compile(layout.place(start), layout.axis_name)}
        if layout.axis_name is not None:
            # Devices go their own ways in it, over the same work.
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
        """Seconds per iteration, as it is (`whole`) and without collectives (`alone`)."""
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
        task_class: The task.
        config: Its options; `num_envs` over all devices for strong scaling, of each device for weak scaling.
        counts: Numbers of devices, with 1 among them.
        repeats: Repetitions, each of all sizes in turn.
        iterations: Training iterations of one size in one repetition.

    Raises:
        ConfigError: A size does not fit its number of devices.
    """
    sizes = {("strong", n): config.num_envs for n in counts} | {("weak", n): config.num_envs * n for n in counts}
    of_sizes = dict.fromkeys((count, num_envs) for (_, count), num_envs in sizes.items())
    tasks = {size: task_class(_resized(config, *size)) for size in of_sizes}
    for task in tasks.values():  # all, before the first is compiled
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
    """What `_Subject.time` says of each size in each repetition."""
    for subject in subjects.values():  # the first iterations warm up
        subject.time(2)
    timed: dict[_Size, list[dict[str, float]]] = {size: [] for size in subjects}
    for repeat in range(repeats):
        print_line(f"Repetition {repeat + 1} of {repeats} ...")
        for size, subject in subjects.items():
            timed[size].append(subject.time(iterations))
    return timed


def _resized(config: DistributedRLConfig, num_devices: int, num_envs: int) -> Any:
    changes: dict[str, Any] = {"num_devices": num_devices, "num_envs": num_envs}
    batch_size = getattr(config, "batch_size", None)
    if batch_size is not None:
        changes["batch_size"] = batch_size * num_envs // config.num_envs
    return dataclasses.replace(config, **changes)


def describe_devices(devices: Any, num_devices: int) -> str:
    """What the figures were taken on, and what they are worth there.

    Args:
        devices: The option of that name.
        num_devices: The largest number of them.
    """
    device = select_devices(devices, num_devices)[0]
    if device.platform != "cpu":
        return f"{num_devices} x {device.device_kind}"
    return (
        f"Host devices of one CPU with {num_cores()} cores, which they share: such figures prove that the program is "
        "right on several devices, not that it is fast."
    )


def table(measurements: Sequence[Measurement]) -> str:
    """The measurements as Markdown: medians, with the lowest and highest."""
    lines = [
        "| scaling | devices | environments | env steps/s | efficiency | time in collectives |",
        "|---|---|---|---|---|---|",
    ]
    for m in measurements:
        speed, efficiency = statistics.median(m.env_steps_per_s), _spread(m.efficiency, ".2f")
        share = _spread(m.collective_share, ".0%") if m.num_devices > 1 else "-"
        lines.append(f"| {m.kind} | {m.num_devices} | {m.num_envs} | {speed:,.0f} | {efficiency} | {share} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def find_task(module_name: str, name: str | None) -> type[DistributedRLTask[Any]]:
    """The distributed task of a module, or that of the given name.

    Raises:
        ConfigError: There is no such module, or not one such task in it.
    """
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"There is no module {module_name!r} ({error}). Give one as in `python -m MODULE`."
        ) from error
    tasks = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, DistributedRLTask) and value.__module__ == module.__name__
    }
    if name is not None and name not in tasks:
        raise ConfigError(f"{module_name} has no distributed task {name!r}. {near_misses(name, tasks)}")
    if name is None and len(tasks) != 1:
        raise ConfigError(
            f"{module_name} must hold one DistributedRLTask, but holds {', '.join(tasks) or 'none'}. Choose by --task."
        )
    return tasks[name if name is not None else next(iter(tasks))]


def pick_counts(asked: Sequence[int] | None, devices: Any) -> list[int]:
    """Numbers of devices to measure: those asked for, or the powers of two up to all there are, and all there are.

    Raises:
        ConfigError: One is not positive, or more than there are.
    """
    if asked is not None:
        check_rule(f"--devices ({min(asked)})", min(asked) >= 1, "positive numbers of devices")
        select_devices(devices, max(asked))
        return sorted({1, *asked})
    make_host_devices(num_cores())
    available = len(select_devices(devices, None))
    return sorted({2**i for i in range(available.bit_length()) if 2**i <= available} | {available})


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ksim.tools.scaling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", metavar="MODULE", help="module of the task, as in examples.walking_distributed")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--task", metavar="NAME", help="class of the task, where the module has several")
    parser.add_argument("--devices", nargs="+", type=int, metavar="N", help="numbers of devices; default 1, 2, 4, ...")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions; figures are medians")
    parser.add_argument("--iterations", type=int, default=3, help="training iterations of each size per repetition")
    parser.add_argument("--out", type=Path, default=Path("scaling"), metavar="FILE", help="where to write, no suffix")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Does what the module says; returns the exit code, 2 for input that cannot work."""
    options = _make_parser().parse_intermixed_args(argv)
    warnings.filterwarnings("ignore", message="Only 1 device detected")
    try:
        check_positive("--repeats", options.repeats)
        check_positive("--iterations", options.iterations)
        if find_job() is not None:
            raise ConfigError("ksim.tools.scaling runs in one process. Start it without a launcher.")
        if any(x.startswith("num_devices=") for x in options.overrides):
            raise ConfigError("num_devices is set by the measurement. Leave it out and use --devices.")
        task_class = find_task(options.module, options.task)
        config = parse_overrides(task_class.get_config_class()(), options.overrides)
        config.validate()
        counts = pick_counts(options.devices, config.devices)
        measurements = measure(task_class, config, counts, repeats=options.repeats, iterations=options.iterations)
    except ConfigError as error:
        print_line(f"Error: {error}")
        return 2
    _write(options.out, describe_devices(config.devices, max(counts)), measurements)
    return 0


def _write(out: Path, described: str, measurements: Sequence[Measurement]) -> None:
    """Prints the table, and writes it, the figures and the plot."""
    text = f"{described}\n\n{table(measurements)}\n"
    print_line(text)
    with whole_file(out.with_suffix(".md")) as temporary:
        temporary.write_text(text)
    with whole_file(out.with_suffix(".json")) as temporary:
        record = {"devices": described, "measurements": [dataclasses.asdict(m) for m in measurements]}
        temporary.write_text(json.dumps(record, indent=1) + "\n")
    from ksim.evaluate.plots import plot_scaling  # noqa: PLC0415 - matplotlib is slow to import

    curves = {
        kind: [
            (m.num_devices, (m.env_steps_per_s, m.efficiency, m.collective_share))
            for m in measurements
            if m.kind == kind
        ]
        for kind in ("strong", "weak")
    }
    plot_scaling(curves, described, out.with_suffix(".png"))
    print_line(f"Wrote {out}.md, .json and .png.")


if __name__ == "__main__":
    sys.exit(main())
