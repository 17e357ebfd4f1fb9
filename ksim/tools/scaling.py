"""Speed-up of training with devices: environment steps per second on 1, 2, 4, ... of them, measured or predicted.

python -m ksim.tools.scaling examples.walking_distributed num_envs=4096 --devices 1 2 4 8 --out scaling

Strong scaling divides the same number of envs among more devices; weak scaling keeps the number per device. Efficiency
is the speed per device, divided by the speed of one device alone. All sizes are run in turn, several times, in one
process. The share of time in collectives is measured by running the same step without them. It includes communication
and waiting for the slowest device.

python -m ksim.tools.scaling examples.walking_distributed num_envs=4096 --predict --latency-us 20 \
    --bandwidth-gbytes-per-s 25 --out predicted
python -m ksim.tools.scaling predicted.json --predict --latency-us 5 --bandwidth-gbytes-per-s 200 --out faster

With --predict it measures one device, or reads the measurement of an earlier prediction, and predicts iterations on 1
to 1,024 devices connected by a network: see `ksim.tools.prediction`.

Writes a table (FILE.md), the figures (FILE.json) and a plot (FILE.png).
"""

import argparse
import dataclasses
import importlib
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ksim.checks import check_positive, check_rule
from ksim.errors import ConfigError, near_misses
from ksim.host.files import write_whole
from ksim.host.machine import num_cores
from ksim.host.terminal import print_line
from ksim.parallel.devices import make_host_devices, select_devices
from ksim.parallel.job import find_job
from ksim.preflight.memory import format_bytes
from ksim.task.distributed import DistributedRLConfig, DistributedRLTask
from ksim.task.overrides import parse_overrides
from ksim.tools import exit_code_of, make_parser, prediction
from ksim.tools.measure import Measurement, describe_devices, measure, measure_one_device, resized, table


def find_task(module_name: str, name: str | None) -> type[DistributedRLTask[Any]]:
    """The distributed task of a module: the task of the given name, or the only one.

    Raises:
        ConfigError: The module or the task does not exist, or there is no name and not exactly one task.
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
    """The numbers of devices to measure: the requested ones and 1, or by default all powers of two, and all devices.

    Raises:
        ConfigError: A number is not positive, or larger than the number of available devices.
    """
    if asked is not None:
        check_rule(f"--devices ({min(asked)})", min(asked) >= 1, "positive numbers of devices")
        select_devices(devices, max(asked))
        return sorted({1, *asked})
    make_host_devices(num_cores())
    available = len(select_devices(devices, None))
    return sorted({2**i for i in range(available.bit_length()) if 2**i <= available} | {available})


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser("scaling", __doc__)
    parser.add_argument(
        "module", metavar="MODULE", help="module of the task, as in examples.walking_distributed; or see --predict"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--task", metavar="NAME", help="class of the task, where the module has several")
    parser.add_argument("--devices", nargs="+", type=int, metavar="N", help="numbers of devices; default 1, 2, 4, ...")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions; figures are medians")
    parser.add_argument("--iterations", type=int, default=3, help="training iterations of each size per repetition")
    parser.add_argument("--out", type=Path, default=Path("scaling"), metavar="FILE", help="where to write, no suffix")
    parser.add_argument(
        "--predict",
        action="store_true",
        help="measure one device and predict; with FILE.json of an earlier prediction as MODULE, predict from that",
    )
    parser.add_argument("--latency-us", type=float, metavar="X", help="of the network, in microseconds per message")
    parser.add_argument("--bandwidth-gbytes-per-s", type=float, metavar="X", help="of each device to the network")
    parser.add_argument("--all-reduce", choices=prediction.ALGORITHMS, help="how devices reduce; default tree")
    return parser


@exit_code_of
def main(argv: Sequence[str] | None = None) -> None:
    """Measures or predicts scaling and writes the report."""
    options = _make_parser().parse_intermixed_args(argv)
    warnings.filterwarnings("ignore", message="Only 1 device detected")
    check_positive("--repeats", options.repeats)
    check_positive("--iterations", options.iterations)
    if find_job() is not None:
        raise ConfigError("ksim.tools.scaling runs in one process. Start it without a launcher.")
    if any(x.startswith("num_devices=") for x in options.overrides):
        raise ConfigError("num_devices is set by the measurement. Leave it out and use --devices.")
    network = _network(options)
    if network is not None:
        _predict(options, network)
        return
    task_class, config = _task(options)
    counts = pick_counts(options.devices, config.devices)
    measurements = measure(task_class, config, counts, repeats=options.repeats, iterations=options.iterations)
    _report(options.out, describe_devices(config.devices, max(counts)), measurements)


def _task(options: argparse.Namespace) -> tuple[type[DistributedRLTask[Any]], DistributedRLConfig]:
    task_class = find_task(options.module, options.task)
    config = parse_overrides(task_class.get_config_class()(), options.overrides)
    config.validate()
    return task_class, config


def _report(out: Path, described: str, measurements: Sequence[Measurement]) -> None:
    """Prints and writes the table, and writes the figures and the plot."""
    record = {"devices": described, "measurements": [dataclasses.asdict(m) for m in measurements]}
    _write(out, f"{described}\n\n{table(measurements)}\n", record)
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


def _network(options: argparse.Namespace) -> prediction.Network | None:
    """The network to predict for; None without --predict. Raises ConfigError if it is incomplete or invalid."""
    given = {"--latency-us": options.latency_us, "--bandwidth-gbytes-per-s": options.bandwidth_gbytes_per_s}
    if not options.predict:
        if {*given.values(), options.all_reduce} != {None} or options.module.endswith(".json"):
            raise ConfigError("A network and a FILE.json are for predictions. Add --predict.")
        return None
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ConfigError(f"--predict needs {' and '.join(missing)} as well: those of the network between devices.")
    check_positive("--latency-us", options.latency_us, allow_zero=True)
    check_positive("--bandwidth-gbytes-per-s", options.bandwidth_gbytes_per_s)
    algorithm = options.all_reduce or "tree"
    return prediction.Network(1e-6 * options.latency_us, 1e9 * options.bandwidth_gbytes_per_s, algorithm)


def _predict(options: argparse.Namespace, network: prediction.Network) -> None:
    """Predicts from a file or from a new measurement. Prints and writes the report."""
    counts = sorted({1, *(options.devices or prediction.COUNTS)})
    check_rule(f"--devices ({counts[0]})", counts[0] >= 1, "positive numbers of devices")
    if options.module.endswith(".json"):
        if options.overrides:
            raise ConfigError(f"{options.module} is already measured. Leave out {' '.join(options.overrides)}.")
        one = _read(Path(options.module))
    else:
        task_class, config = _task(options)
        make = lambda num_envs, **changes: task_class(dataclasses.replace(resized(config, 1, num_envs), **changes))
        one = measure_one_device(make, config.num_envs, repeats=options.repeats, iterations=options.iterations)
    predictions = prediction.predict(one, network, counts)
    described = (
        f"Predicted from {one.task} with {one.num_envs} environments on one {one.device}: latency "
        f"{1e6 * network.latency_s:g} us, bandwidth {1e-9 * network.bytes_per_s:g} GB/s, all-reduce by a "
        f"{network.algorithm}, gradients of {format_bytes(one.gradient_bytes)}. Relative spread of rollouts "
        f"{one.relative_spread('rollout_s'):.1%}, of updates {one.relative_spread('update_s'):.1%}."
    )
    explained = (
        "Milliseconds of an iteration, and efficiency in brackets, for each grad_sync_mode and grad_sync_period:"
    )
    record = {
        "network": dataclasses.asdict(network),
        "one_device": dataclasses.asdict(one),
        "predictions": [{**dataclasses.asdict(p), "iteration_s": p.iteration_s} for p in predictions],
    }
    _write(options.out, f"{described}\n\n{explained}\n\n{prediction.table(predictions)}\n", record)
    from ksim.evaluate.plots import plot_efficiency  # noqa: PLC0415 - matplotlib is slow to import

    curves: dict[str, dict[str, list[tuple[int, float]]]] = {"strong": {}, "weak": {}}
    for p in predictions:
        curves[p.kind].setdefault(p.setting, []).append((p.num_devices, p.efficiency))
    plot_efficiency(curves, described, options.out.with_suffix(".png"))
    print_line(f"Wrote {options.out}.md, .json and .png.")


def _read(path: Path) -> prediction.OneDevice:
    """The measurement in the report of an earlier prediction; raises ConfigError if it holds no valid one."""
    try:
        return prediction.read_one_device(json.loads(path.read_text())["one_device"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} holds no measurement of one device ({reason}). Make one by --predict.") from error


def _write(out: Path, text: str, record: Mapping[str, Any]) -> None:
    """Prints and writes a report, and writes its figures."""
    print_line(text)
    write_whole(out.with_suffix(".md"), text)
    write_whole(out.with_suffix(".json"), json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
