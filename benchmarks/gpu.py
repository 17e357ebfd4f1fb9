"""The walking humanoid under MJX on one GPU: training and rollout beside the bare physics, compile time and memory.

python -m benchmarks.gpu --num-envs 1024 2048 4096 8192 16384 --repeats 5

`benchmarks/gpu.sh` runs this after the tests that need a GPU. Every number of environments is measured in a process of
its own, so that the peak of memory is its own, and what does not fit ends only that row. Programs are compiled anew.
The three speeds are those of `benchmarks.throughput`. MJX's other implementation, MuJoCo Warp (`impl="warp"`), is
measured where warp-lang is installed: the bare physics alone, since ksim's engine has no option for it.

`--platform cpu` tries the program itself on a CPU, with few and short rollouts.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

import jax
import jax.numpy as jnp
from benchmarks.throughput import make_bare
from benchmarks.timing import time_in_turn
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.tools.measure import spread

SIZES = {"gpu": [1024, 2048, 4096, 8192, 16384], "cpu": [8]}
OPTIONS: dict[str, dict[str, Any]] = {"gpu": {}, "cpu": {"rollout_length": 2, "num_passes": 1}}
HEADER = (
    "| MJX | envs | bare | rollout | training | rollout / bare | training / bare | compile, s | peak memory, MiB |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def measure(impl: str, num_envs: int, repeats: int, platform: str) -> dict[str, Any]:
    """Speeds, compile time and peak memory of one number of environments.

    Args:
        impl: MJX's implementation, `jax` or `warp`; of the latter, the bare physics alone.
        num_envs: Environments.
        repeats: Repetitions, each of all in turn.
        platform: `gpu` or `cpu`.
    """
    jax.config.update("jax_enable_compilation_cache", False)
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    device = jax.devices(platform)[0]
    config = HumanoidWalkingDistributedConfig(engine="mjx", num_envs=num_envs, num_devices=1)
    task = HumanoidWalkingDistributedTask(dataclasses.replace(config, **OPTIONS[platform]))
    task.check()
    num_steps = task.config.rollout_length
    state = task.layout.place(task.initial_state())
    assert isinstance(task.environment, MdpEnvironment)
    model, physics = task.environment.engine.model, state.envs.env_state.inner.physics
    start_s = time.perf_counter()
    if impl == "warp":
        bare = make_bare("mjx", model, physics, num_steps, impl=impl)
        bare()
        compile_s, peak_bytes = time.perf_counter() - start_s, peak_memory(device)
        subjects = {"bare": bare}
    else:
        step = task.make_train_step(task.layout.axis_name)
        train = task.layout.compile(step, state)
        compile_s = time.perf_counter() - start_s
        # Reduced to some numbers, or the compiler would drop what is not asked for.
        rollout = jax.jit(lambda s: jax.tree.map(jnp.sum, step.learner.collect(s, jax.random.key(0))[0].trajectory))
        held = [state]

        def training() -> None:
            held[0], metrics = train(held[0])
            jax.block_until_ready(metrics)

        for _ in range(3):  # to where the policy has made the states varied
            training()
        peak_bytes = peak_memory(device)  # before the bare physics, which carries all of MJX's Data
        bare = make_bare("mjx", model, held[0].envs.env_state.inner.physics, num_steps)
        subjects = {"bare": bare, "rollout": lambda: jax.block_until_ready(rollout(held[0])), "training": training}
    timed = time_in_turn(subjects, repeats)
    rates = {name: [num_envs * num_steps / x.wall for x in times] for name, times in timed.items()}
    return {"impl": impl, "num_envs": num_envs, "rates": rates, "compile_s": compile_s, "peak_bytes": peak_bytes}


def peak_memory(device: Any) -> int | None:
    """The most bytes of a device's memory that this process has used; None where it does not tell, as on a CPU."""
    stats = device.memory_stats()
    return None if stats is None else stats.get("peak_bytes_in_use")


def row(found: dict[str, Any]) -> str:
    """A row of the table."""
    rates = found["rates"]
    cells = [found["impl"], str(found["num_envs"])]
    cells += [
        f"{statistics.median(rates[name]):,.0f}" if name in rates else "-" for name in ("bare", "rollout", "training")
    ]
    for name in ("rollout", "training"):
        ratios = [x / y for x, y in zip(rates.get(name, []), rates["bare"], strict=False)]
        cells.append(spread(ratios) if ratios else "-")
    cells.append(f"{found['compile_s']:.1f}")
    cells.append("-" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**20:,.0f}")
    return f"| {' | '.join(cells)} |"


def in_a_process(impl: str, num_envs: int, repeats: int, platform: str) -> dict[str, Any] | str:
    """The result of `measure` in its own process; if that failed, the last line of its output."""
    arguments = ["--one", impl, "--num-envs", str(num_envs), "--repeats", str(repeats), "--platform", platform]
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


def machine(platform: str) -> str:
    """The machine and the versions of packages, as a sentence."""
    code = f"import jax; d = jax.devices({platform!r}); print(len(d), 'x', d[0].device_kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    device = done.stdout.strip() or f"no {platform}"
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "mujoco", "mujoco-mjx"))
    driver = ""
    if platform == "gpu":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            told = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
            driver = f", driver {told[0]}" if told else ""
        except FileNotFoundError:
            driver = ""
    return f"{device}{driver}, {len(os.sched_getaffinity(0))} cores, Python {sys.version.split()[0]}, {versions}."


def report(platform: str, sizes: Sequence[int], repeats: int, tests: str | None) -> tuple[str, bool]:
    """The section for docs/benchmarks.md, and whether all of it could be measured."""
    title = "On a GPU" if platform == "gpu" else "The GPU benchmark, tried on a CPU"
    lines = [f"### {title}", "", machine(platform), ""]
    lines += [f"Tests marked `gpu`: {tests.strip('= ')}.", ""] if tests else []
    lines += [HEADER]
    failures = []
    has_warp = importlib.util.find_spec("warp") is not None
    for impl in ("jax", *(("warp",) if has_warp and platform == "gpu" else ())):
        for num_envs in sizes:
            found = in_a_process(impl, num_envs, repeats, platform)
            if isinstance(found, str):
                failures.append(f"`{impl}` with {num_envs} environments failed: {found}")
            lines.append(f"| {impl} | {num_envs}{' | failed' + ' | -' * 6} |" if isinstance(found, str) else row(found))
            print(lines[-1], flush=True)
    lines += [
        "",
        "Control steps per second over all environments; ratios within a repetition, median (lowest-highest).",
    ]
    lines += ["*compile* lowers and compiles the training step; of `warp`, the first run of the bare physics."]
    if platform != "gpu":
        lines += ["MuJoCo Warp was not measured: it needs a GPU."]
    elif not has_warp:
        lines += ["MuJoCo Warp was not measured: warp-lang is not installed (`pip install 'mujoco-mjx[warp]'`)."]
    return "\n".join([*lines, *failures]) + "\n", not failures


def main() -> int:
    """Prints and writes the report; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--num-envs", nargs="+", type=int, help="default: 1024 to 16384; on a CPU 8")
    parser.add_argument("--repeats", type=int, help="default: 5; on a CPU 1")
    parser.add_argument("--out", type=Path, default=Path("gpu.md"), help="file to write the report to")
    parser.add_argument("--tests", help="the outcome of the tests, for the report")
    parser.add_argument("--one", choices=["jax", "warp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = args.num_envs or SIZES[args.platform]
    repeats = args.repeats or (5 if args.platform == "gpu" else 1)
    if args.one:
        print(json.dumps(measure(args.one, sizes[0], repeats, args.platform)))
        return 0
    text, is_whole = report(args.platform, sizes, repeats, args.tests)
    args.out.write_text(text)
    print(f"\n{text}\nWrote {args.out}.")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
