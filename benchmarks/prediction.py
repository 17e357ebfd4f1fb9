"""Predictions of `ksim.tools.scaling --predict` compared with measurements, on host devices and in two processes.

python -m benchmarks.prediction --repeats 3

Predictions are for devices that share nothing, so one device is measured in a process of a single core. Two processes
of one device each have their own core (`ksim.launch` divides the cores), which is the predicted case. Host devices of
one process run on as many cores, or on all c of them: n devices are predicted to be max(1, n / c) times as slow as one
on one core, which neglects that they also share a pool of threads, caches and memory.

The latency of the network is measured by the runs: gradients are averaged once before the first iteration, by
themselves (`time/sync_s`), and a reduction of theirs is taken to be all latency.

Each repetition measures one device, then runs every job in turn. Give `--module` and options to take another task.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ksim.host.machine import num_cores
from ksim.tools.prediction import Network, OneDevice, Prediction, Size, predict, read_one_device
from ksim.tools.measure import spread

ROOT = Path(__file__).parents[1]
JOBS = {"1 device": (1, 1), "2 devices": (1, 2), "4 devices": (1, 4), "2 processes": (2, 1)}
"""Numbers of processes, and of host devices in each."""
WARM_UP = 5
"""Iterations of a job that are not counted."""


def run(command: list[str], directory: str, *, num_devices: int, most_cores: int) -> None:
    """Runs a Python program with so many host devices in each of its processes, on at most so many cores."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}", "PYTHONPATH": str(ROOT)}
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:most_cores])  # inherited by what is started
    try:
        environment = os.environ | flags
        subprocess.run([sys.executable, *command], cwd=directory, env=environment, check=True, capture_output=True)
    finally:
        os.sched_setaffinity(0, all_cores)


def one_device(module: str, options: list[str]) -> OneDevice:
    """One device on one core, as the tool measures it."""
    with tempfile.TemporaryDirectory() as directory:
        network = ["--latency-us", "0", "--bandwidth-gbytes-per-s", "1"]
        command = ["-m", "ksim.tools.scaling", module, *options, "--predict", *network, "--iterations", "5"]
        run(command, directory, num_devices=1, most_cores=1)
        return read_one_device(json.loads((Path(directory) / "scaling.json").read_text())["one_device"])


def job(module: str, options: list[str], num_processes: int, num_devices: int, num_iterations: int) -> dict[str, float]:
    """Median metrics of a job over its iterations but the first ones."""
    with tempfile.TemporaryDirectory() as directory:
        launcher = ["-m", "ksim.launch", "--nproc-per-node", str(num_processes)] if num_processes > 1 else []
        quiet = ["eval_at_end=false", "video=false", "plots=false", "tensorboard=false"]
        length = [f"max_iterations={num_iterations + WARM_UP}", "max_env_steps=null", "run_dir=run"]
        command = [*launcher, "-m", module, *options, *length, *quiet]
        run(command, directory, num_devices=num_devices, most_cores=num_processes * num_devices)
        lines = (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()[WARM_UP:]
    records = [json.loads(line) for line in lines]
    names = ("time/iteration_s", "time/rollout_s", "time/update_s", "time/sync_s")
    return {name: statistics.median(r[name] for r in records) for name in names if name in records[0]}


def predicted(one: OneDevice, sync_s: float, num_processes: int, num_devices: int) -> Prediction:
    """The iteration of a job: strong scaling, in the task's own setting.

    Args:
        one: Times of one device on one core.
        sync_s: Seconds of one average of the gradients in the job.
        num_processes: Processes, each with cores of its own.
        num_devices: Host devices of each, which share them.
    """
    count = num_processes * num_devices
    slowdown = max(1.0, count / num_cores())
    slower = lambda times: [slowdown * x for x in times]
    sizes = [Size(size.num_envs, slower(size.rollout_s), slower(size.update_s)) for size in one.sizes]
    network = Network(latency_s=0.0, bytes_per_s=float("inf"))
    if count > 1:
        steps = Network(latency_s=1.0, bytes_per_s=float("inf")).reduction_s(0, count)
        network = dataclasses.replace(network, latency_s=sync_s / steps)
    return predict(dataclasses.replace(one, sizes=sizes, settings=one.settings[:1]), network, (count,))[0]


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="examples.walking_distributed")
    parser.add_argument("--options", nargs="*", default=["num_envs=1024", "engine=mujoco"], metavar="KEY=VALUE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20, help="iterations of a job that are counted")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    args = parser.parse_args()
    found: dict[str, list[tuple[Prediction, float, float]]] = {name: [] for name in args.jobs}
    for _ in range(args.repeats):
        one = one_device(args.module, args.options)
        for name in args.jobs:
            metrics = job(args.module, args.options, *JOBS[name], args.iterations)
            sync_s = metrics.get("time/sync_s", 0.0) / one.settings[0].syncs
            prediction, measured_s = predicted(one, sync_s, *JOBS[name]), metrics["time/iteration_s"]
            found[name].append((prediction, measured_s, sync_s))
            print(
                f"{name}: {1e3 * prediction.iteration_s:.1f} ms predicted, {1e3 * measured_s:.1f} ms", file=sys.stderr
            )
    print("| | predicted, ms | of it reductions | measured, ms | predicted / measured | one average, ms |")
    print("|---|---|---|---|---|---|")
    for name, rows in found.items():
        ratios = [prediction.iteration_s / measured_s for prediction, measured_s, _ in rows]
        figures: list[Any] = [
            1e3 * statistics.median(values)
            for values in zip(*((p.iteration_s, p.reduction_s, s, sync_s) for p, s, sync_s in rows), strict=True)
        ]
        iteration, reductions, measured, sync = (f"{x:.1f}" for x in figures)
        print(f"| {name} | {iteration} | {reductions} | {measured} | {spread(ratios)} | {sync} |", flush=True)


if __name__ == "__main__":
    main()
