"""The walking humanoid on one or several GPUs: training and rollout beside the bare physics, compile time and memory.

python -m benchmarks.gpu --engines mjx warp mujoco --num-envs 1024 4096 16384 --num-devices 1 8 --repeats 5

`benchmarks/gpu.sh` runs this after the tests that need a GPU. Every row is measured in a process of its own, so that
the peak of memory is its own, and what does not fit ends only that row. Programs are compiled anew. *bare* is ksim's
engine alone on one device, stepping the same batch under random controls; rollout and training are those of
`benchmarks.throughput`. Native MuJoCo steps on the cores of the machine, while the GPU learns.

`--platform cpu` tries the program itself on a CPU, with few and short rollouts.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

import jax
import jax.numpy as jnp
from benchmarks import PLAIN
from benchmarks.timing import time_in_turn
from ksim.physics.engine import AbstractEngine
from ksim.physics.warp import is_installed
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.tools.measure import spread
from ksim.types import PhysicsState

SIZES = {"gpu": [1024, 4096, 16384], "cpu": [8]}
ENGINES = {"gpu": ["mjx", "warp", "mujoco"], "cpu": ["mujoco"]}
"""Native MuJoCo alone where a CPU tries the program: MJX and MuJoCo Warp would compile for minutes."""
OPTIONS: dict[str, dict[str, Any]] = {"gpu": PLAIN, "cpu": PLAIN | {"rollout_length": 2, "num_passes": 1}}
COLUMNS = ("engine", "devices", "envs", "bare", "rollout", "training", "rollout / bare", "training / bare")
HEADER = f"| {' | '.join(COLUMNS)} | compile, s | peak memory, MiB |\n|{'---|' * (len(COLUMNS) + 2)}"


def make_bare(engine: AbstractEngine, physics: PhysicsState, num_steps: int) -> Callable[[], None]:
    """The engine alone, from the given states, for so many control steps under random controls."""
    num_envs, model = physics.qpos.shape[0], engine.model
    noise = 0.2 * jax.random.normal(jax.random.key(0), (num_steps, num_envs, model.mj_model.nu))
    controls = model.default_qpos[model.names.joint_qpos()] + noise
    step = jax.vmap(lambda state, ctrl: engine.substeps(state, ctrl, {}))
    run = jax.jit(lambda state: jax.lax.scan(lambda s, ctrl: (step(s, ctrl), None), state, controls)[0].qpos)
    return lambda: jax.block_until_ready(run(physics))


def measure(engine: str, num_envs: int, num_devices: int, repeats: int, platform: str) -> dict[str, Any]:
    """Speeds, compile time and peak memory of one row; the bare physics and the rollout only on one device.

    Args:
        engine: The physics engine.
        num_envs: Environments of all devices together.
        num_devices: Devices.
        repeats: Repetitions, each of all in turn.
        platform: `gpu` or `cpu`.
    """
    jax.config.update("jax_enable_compilation_cache", False)
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    config = HumanoidWalkingDistributedConfig(engine=engine, num_envs=num_envs, num_devices=num_devices)
    task = HumanoidWalkingDistributedTask(dataclasses.replace(config, **OPTIONS[platform]))
    task.check()
    num_steps = task.config.rollout_length
    start_s = time.perf_counter()
    state = task.layout.place(task.initial_state())
    step = task.make_train_step(task.layout.axis_name)
    train = task.layout.compile(step, state)
    compile_s = time.perf_counter() - start_s
    held = [state]

    def training() -> None:
        held[0], metrics = train(held[0])
        jax.block_until_ready(metrics)

    for _ in range(3):  # to where the policy has made the states varied
        training()
    peak_bytes = peak_memory(jax.local_devices(backend=platform)[0])
    subjects: dict[str, Callable[[], Any]] = {"training": training}
    if num_devices == 1:
        env = task.environment
        assert isinstance(env, MdpEnvironment)
        # Reduced to some numbers, or the compiler would drop what is not asked for.
        rollout = jax.jit(lambda s: jax.tree.map(jnp.sum, step.algorithm.collect(s, jax.random.key(0))[0].trajectory))
        # A copy, because training donates its state.
        physics = jax.tree.map(jnp.copy, held[0].envs.env_state.inner.physics)
        subjects["bare"] = make_bare(env.engine, physics, num_steps)
        subjects["rollout"] = lambda: jax.block_until_ready(rollout(held[0]))
    timed = time_in_turn(subjects, repeats)
    rates = {name: [num_envs * num_steps / x.wall for x in times] for name, times in timed.items()}
    row = {"engine": engine, "num_envs": num_envs, "num_devices": num_devices}
    return row | {"rates": rates, "compile_s": compile_s, "peak_bytes": peak_bytes}


def peak_memory(device: Any) -> int | None:
    """The most bytes of a device's memory that this process has used; None where it does not tell, as on a CPU."""
    stats = device.memory_stats()
    return None if stats is None else stats.get("peak_bytes_in_use")


def row(found: dict[str, Any]) -> str:
    """A row of the table."""
    rates = found["rates"]
    cells = [found["engine"], str(found["num_devices"]), str(found["num_envs"])]
    cells += [
        f"{statistics.median(rates[name]):,.0f}" if name in rates else "-" for name in ("bare", "rollout", "training")
    ]
    for name in ("rollout", "training"):
        ratios = [x / y for x, y in zip(rates.get(name, []), rates.get("bare", []), strict=False)]
        cells.append(spread(ratios) if ratios else "-")
    cells.append(f"{found['compile_s']:.1f}")
    cells.append("-" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**20:,.0f}")
    return f"| {' | '.join(cells)} |"


def in_a_process(engine: str, num_envs: int, num_devices: int, repeats: int, platform: str) -> dict[str, Any] | str:
    """The result of `measure` in its own process; if that failed, the last line of its output."""
    arguments = ["--one", "--engines", engine, "--num-envs", str(num_envs), "--num-devices", str(num_devices)]
    arguments += ["--repeats", str(repeats), "--platform", platform]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    lines = [line for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    return f"exit code {done.returncode}: {lines[-1][:200] if lines else 'no output'}"


def devices(platform: str) -> tuple[int, str]:
    """Number of devices and their kind, found by another process: this one leaves their memory to the rows."""
    code = f"import jax; d = jax.devices({platform!r}); print(len(d), d[0].device_kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    number, _, kind = done.stdout.strip().partition(" ")
    return (int(number), kind) if number.isdigit() else (0, f"no {platform}")


def machine(platform: str) -> str:
    """The machine and the versions of packages, as a sentence."""
    num_devices, kind = devices(platform)
    names = ("jax", "mujoco", "mujoco-mjx", *(["warp-lang"] if is_installed() else []))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    driver = ""
    if platform == "gpu":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            told = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
            driver = f", driver {told[0]}" if told else ""
        except FileNotFoundError:
            driver = ""
    num_cores, python = len(os.sched_getaffinity(0)), sys.version.split()[0]
    return f"{num_devices} x {kind}{driver}, {num_cores} cores, Python {python}, {versions}."


def report(options: argparse.Namespace) -> tuple[str, bool]:
    """The section for docs/benchmarks.md, and whether all of it could be measured."""
    platform = options.platform
    title = "On a GPU" if platform == "gpu" else "The GPU benchmark, tried on a CPU"
    lines = [f"### {title}", "", machine(platform), ""]
    lines += [f"Tests marked `gpu`: {options.tests.strip('= ')}.", ""] if options.tests else []
    lines += [HEADER]
    failures = []
    if "warp" in options.engines and not is_installed():
        failures.append("MuJoCo Warp was not measured: it is not installed (`pip install -e '.[warp]'`).")
    engines = [name for name in options.engines if name != "warp" or is_installed()]
    rows = [(engine, n, size) for engine in engines for n in options.num_devices for size in options.num_envs]
    for engine, num_devices, num_envs in rows:
        found = in_a_process(engine, num_envs * num_devices, num_devices, options.repeats, platform)
        if isinstance(found, str):
            failures.append(f"`{engine}` with {num_envs} environments on each of {num_devices} failed: {found}")
            lines.append(f"| {engine} | {num_devices} | {num_envs * num_devices} | failed{' | -' * 6} |")
        else:
            lines.append(row(found))
        print(lines[-1], flush=True)
    lines += [
        "",
        "Control steps per second over all environments; ratios within a repetition, median (lowest-highest).",
        "*compile* makes the first states, and lowers and compiles the training step.",
    ]
    return "\n".join([*lines, *failures]) + "\n", not failures


def main() -> int:
    """Prints and writes the report; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--engines", nargs="+", help="default: mjx warp mujoco; on a CPU mjx")
    parser.add_argument("--num-envs", nargs="+", type=int, help="of each device; default: 1024 4096 16384; on a CPU 8")
    parser.add_argument("--num-devices", nargs="+", type=int, help="default: 1, and all if there are more")
    parser.add_argument("--repeats", type=int, help="default: 5; on a CPU 1")
    parser.add_argument("--out", type=Path, default=Path("gpu.md"), help="file to write the report to")
    parser.add_argument("--tests", help="the outcome of the tests, for the report")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.engines = args.engines or ENGINES[args.platform]
    args.num_envs = args.num_envs or SIZES[args.platform]
    args.repeats = args.repeats or (5 if args.platform == "gpu" else 1)
    if args.one:
        sizes = args.num_envs[0], args.num_devices[0]
        print(json.dumps(measure(args.engines[0], *sizes, args.repeats, args.platform)))
        return 0
    args.num_devices = args.num_devices or sorted({1, max(1, devices(args.platform)[0])})
    text, is_whole = report(args)
    args.out.write_text(text)
    print(f"\n{text}\nWrote {args.out}.")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
