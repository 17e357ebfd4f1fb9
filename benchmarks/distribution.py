"""The cost of distribution: one process and device compared with several.

python -m benchmarks.distribution --repeats 7

Four comparisons on the walking humanoid, each interleaved within a repetition:

- one device: `DistributedPPOTask` on one device over `PPOTask`, in one process, the same options.
- layouts: two devices with `layout=shard_map` over the same with `layout=pmap`, in one process: wall time, and
  processor time of all threads, which other programs on the machine disturb less.
- processes: two processes of one device each over one process of two devices; each a job of its own, started in turn
  again and again, whose speed is the median over its iterations but the first five.
- all-reduce: one average of the gradients over two devices, beside one whole update step (a minibatch's loss, gradient,
  average and optimizer step).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from benchmarks import PLAIN
from benchmarks.timing import Seconds, interleaved, ratios, time_in_turn
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

import jax
from ksim.parallel.devices import make_host_devices
from ksim.tools.measure import spread
from ksim.train.timing import TracedStep, time_synchronisation

ROOT = Path(__file__).parents[1]


def describe(name: str, values: list[float], note: str) -> None:
    """Prints a row of the table."""
    print(f"| {name} | {spread(values, '.3f')} | {note} |", flush=True)


def steps(task: Any, num_iterations: int) -> Callable[[], None]:
    """Some iterations of a task, as a function to call again and again."""
    task.check()
    state = task.layout.place(task.initial_state())
    step = task.layout.compile(task.make_train_step(task.layout.axis_name), state)
    held = [state]

    def run() -> None:
        for _ in range(num_iterations):
            held[0], metrics = step(held[0])
            jax.block_until_ready(metrics)

    return run


def one_device(num_envs: int, repeats: int) -> list[float]:
    """Time of the distributed task on one device over that of the plain one."""
    options = PLAIN | {"num_envs": num_envs, "engine": "mujoco"}
    distributed = HumanoidWalkingDistributedTask(HumanoidWalkingDistributedConfig(num_devices=1, **options))
    runs = {
        "distributed": steps(distributed, 3),
        "plain": steps(HumanoidWalkingTask(HumanoidWalkingConfig(**options)), 3),
    }
    found = time_in_turn(runs, repeats)
    return ratios(found["distributed"], found["plain"])


def layouts(num_envs: int, engine: str, repeats: int) -> dict[str, list[float]]:
    """Time of iterations by shard_map over that of as many by pmap, on two devices, by clock."""
    options = PLAIN | {"num_envs": num_envs, "engine": engine, "num_devices": 2}
    make = lambda layout: HumanoidWalkingDistributedTask(HumanoidWalkingDistributedConfig(layout=layout, **options))
    found = time_in_turn({layout: steps(make(layout), 3) for layout in ("shard_map", "pmap")}, repeats)
    return {clock: ratios(found["shard_map"], found["pmap"], clock) for clock in Seconds._fields}


def job_speed(num_envs: int, num_processes: int, num_devices: int, num_iterations: int) -> float:
    """Median environment steps per second of a whole job, started by `ksim.launch`."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "ksim.launch", "--nproc-per-node", str(num_processes)]
        command += ["-m", "examples.walking_distributed", f"num_envs={num_envs}", f"max_iterations={num_iterations}"]
        command += [f"{name}={value}" for name, value in PLAIN.items()]
        command += ["run_dir=run", "eval_at_end=false", "video=false", "plots=false", "tensorboard=false"]
        subprocess.run(command, cwd=directory, env=os.environ | flags, check=True, capture_output=True)
        lines = (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["time/env_steps_per_s"] for line in lines[5:])


def all_reduce(num_envs: int, repeats: int) -> tuple[list[float], float]:
    """Time of one all-reduce of the gradients over one update step, on two devices; and its milliseconds."""
    task = HumanoidWalkingDistributedTask(
        HumanoidWalkingDistributedConfig(**PLAIN, num_devices=2, num_envs=num_envs, engine="mujoco")
    )
    task.check()
    state = task.layout.place(task.initial_state())
    hyper = task.hyperparameters()
    num_updates = hyper.num_batches * hyper.num_passes
    step = TracedStep(task.layout, task.make_train_step(task.layout.axis_name), state, donate=False).compile(state)
    step(state)  # warms up
    shares, milliseconds = [], []
    for _ in range(repeats):
        sync_s = time_synchronisation(task, state)
        assert sync_s is not None
        shares.append(sync_s / hyper.syncs_per_iteration / (step(state)[2][:, 1].min() / num_updates))
        milliseconds.append(1e3 * sync_s / hyper.syncs_per_iteration)
    return shares, statistics.median(milliseconds)


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--engine", choices=["mujoco", "mjx"], default="mujoco", help="of the layouts' comparison")
    parser.add_argument("--only", choices=["one-device", "layouts", "all-reduce", "processes"])
    args = parser.parse_args()
    make_host_devices(2)
    print("| comparison | ratio, median (lowest-highest) | |\n|---|---|---|")
    if args.only in (None, "one-device"):
        name = "time, DistributedPPOTask on 1 device over PPOTask"
        describe(name, one_device(args.num_envs, args.repeats), f"{args.num_envs} envs, 3 iterations each")
    if args.only in (None, "layouts"):
        note = f"2 host devices, {args.engine}, 3 iterations each"
        for clock, values in layouts(args.num_envs, args.engine, args.repeats).items():
            describe(f"{clock} time, shard_map over pmap", values, note)
    if args.only in (None, "all-reduce"):
        shares, milliseconds = all_reduce(args.num_envs, args.repeats)
        describe("time, one all-reduce over one update step", shares, f"2 host devices, {milliseconds:.2f} ms")
    if args.only in (None, "processes"):
        jobs = {
            "processes": lambda: job_speed(args.num_envs, 2, 1, 12),
            "devices": lambda: job_speed(args.num_envs, 1, 2, 12),
        }
        found = interleaved(jobs, args.repeats)
        of_devices = [x / y for x, y in zip(found["processes"], found["devices"], strict=True)]
        speeds = ", ".join(f"{name} {statistics.median(values):,.0f}" for name, values in found.items())
        describe("speed, 2 processes x 1 device over 1 process x 2 devices", of_devices, f"env steps/s: {speeds}")


if __name__ == "__main__":
    main()
