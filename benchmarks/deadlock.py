"""Whether XLA's thread pool deadlocks, and how fast it is, by its size: many short runs, each in a process of its own.

python -m benchmarks.deadlock --pythons .venv/bin/python --pools rule default 2 32 --repeats 20 --out soak.jsonl

Runs take turns over all combinations, so that all share what else the machine does. Each appends a line to the file;
started again, the command continues there, and with `--repeats 0` it only prints the tables. A pool is a number of
threads (`2d+1`: two per device and one more), `rule` (ksim's choice) or `default` (XLA's: one per core). Programs are
those of deadlock_programs.py and `walking`, a training of the walking humanoid with native MuJoCo. Linux only: it reads
/proc and calls taskset.

A run counts as deadlocked if for `--stall-s` seconds it has used no processor time and none of its threads has been
waiting for a core or a disk. So a busy machine is not mistaken for a deadlock.
"""

import argparse
import functools
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ksim.host.threads import thread_pool_size
from ksim.tools.measure import spread

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "benchmarks" / "deadlock_programs.py"
ENDS = ("done", "deadlock", "crash", "timeout")


class Cell(NamedTuple):
    """A combination of settings to run."""

    jaxlib: str
    program: str
    cores: int
    devices: int
    envs: int
    pool: str


def watch(process: subprocess.Popen[Any], *, stall_s: float, limit_s: float) -> str:
    """Waits for a process, ends it if it hangs, and returns which of `ENDS` it came to.

    Args:
        process: The process, whose own processes are not looked at.
        stall_s: Seconds without progress that count as a deadlock.
        limit_s: Seconds after which it is ended, whatever it does.
    """
    start_s = moved_s = time.monotonic()
    cpu_before = -1
    while process.poll() is None:
        time.sleep(0.1)
        now_s = time.monotonic()
        cpu, is_waiting = _activity(process.pid)
        if is_waiting or cpu > cpu_before:
            cpu_before, moved_s = cpu, now_s
        end = "deadlock" if now_s - moved_s > stall_s else "timeout" if now_s - start_s > limit_s else None
        if end is not None:
            process.kill()
            process.wait()
            return end
    return "done" if process.returncode == 0 else "crash"


def _activity(pid: int) -> tuple[int, bool]:
    """Processor time in clock ticks, and whether a thread runs or waits for a core or a disk."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # it has just ended, or a thread has
        return 0, True
    return int(fields[11]) + int(fields[12]), any(stat.rpartition(")")[2].split()[0] in "RD" for stat in stats)


def pool_size(cell: Cell) -> int:
    """Threads of the pool."""
    if cell.pool == "rule":
        return thread_pool_size(cell.jaxlib, cell.cores, cell.devices) or cell.cores
    if cell.pool == "default":
        return cell.cores
    found = re.fullmatch(r"(?:(\d+)d\+?)?(\d*)", cell.pool)
    if found is None or not cell.pool:
        raise ValueError(f"Pool {cell.pool!r} must be rule, default, or a number as in 4, 2d or 2d+1.")
    return int(found[1] or 0) * cell.devices + int(found[2] or 0)


def run_cell(cell: Cell, python: str, cache: Path, *, seconds: float, stall_s: float) -> dict[str, Any]:
    """Runs the program once; returns its line of the file."""
    unset = ("XLA_FLAGS", "PJRT_NPROC", "KSIM_PJRT_NPROC", "NPROC", "JAX_NUM_CPU_DEVICES")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {"XLA_FLAGS": f"--xla_force_host_platform_device_count={cell.devices}", "PYTHONPATH": str(ROOT)}
    env["PJRT_NPROC"] = str(pool_size(cell))
    # XLA divides work among the pool's threads when it compiles, but JAX's cache does not tell pools apart.
    env["JAX_COMPILATION_CACHE_DIR"] = str(cache / f"{cell.cores}-{pool_size(cell)}")
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: cell.cores]))
    with tempfile.TemporaryDirectory() as directory, open(Path(directory) / "output", "w+") as output:
        if cell.program == "walking":
            program = ["-m", "examples.walking_distributed", "engine=mujoco", f"num_envs={cell.envs}", "run_dir=run"]
            program += ["max_iterations=20", "eval_at_end=false", "eval_every_n_seconds=null", "plots=false"]
        else:
            program = [str(PROGRAMS), cell.program, f"--devices={cell.devices}", f"--envs={cell.envs}"]
            program += [f"--seconds={seconds}"]
        command = ["taskset", "--cpu-list", cores, python, *program]
        start_s = time.monotonic()
        process = subprocess.Popen(command, env=env, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        end = watch(process, stall_s=stall_s, limit_s=600)
        line = cell._asdict() | {"threads": pool_size(cell), "end": end, "wall_s": round(time.monotonic() - start_s, 1)}
        if end == "done" and cell.program == "walking":
            iterations = map(json.loads, (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines())
            line["env_steps_per_s"] = statistics.median(x["time/env_steps_per_s"] for x in list(iterations)[5:])
        elif end == "done":
            output.seek(0)
            line |= json.loads(output.read().splitlines()[-1])
        elif end == "crash":
            output.seek(0)
            line["output"] = output.read()[-2000:]
    return line


def print_table(
    lines: list[dict[str, Any]], columns: Sequence[str], describe: Callable[[list[dict[str, Any]]], str]
) -> None:
    """Prints, as Markdown, a row for each combination of the columns, with what describes the runs of each pool."""
    pools = list(dict.fromkeys(line["pool"] for line in lines))
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        rows[tuple(line[name] for name in columns)].append(line)
    print(f"\n| {' | '.join((*columns, *pools))} |\n|{'---|' * (len(columns) + len(pools))}")
    for row, found in sorted(rows.items()):
        cells = [describe([line for line in found if line["pool"] == pool]) for pool in pools]
        print(f"| {' | '.join((*map(str, row), *cells))} |")


def describe_ends(lines: list[dict[str, Any]]) -> str:
    """Deadlocks of all runs, and what else went wrong."""
    ends = [line["end"] for line in lines]
    others = [f"{ends.count(end)} {end}" for end in ENDS[2:] if end in ends]
    return ", ".join([f"{ends.count('deadlock')}/{len(ends)}", *others]) if ends else ""


def describe_figure(name: str, factor: float, lines: list[dict[str, Any]]) -> str:
    """Median, lowest and highest of a figure that runs came to."""
    values = [factor * line[name] for line in lines if name in line]
    return spread(values, ".1f") if values else ""


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="one per JAX version")
    parser.add_argument("--programs", nargs="+", default=["factorize_2", "mjx"])
    parser.add_argument("--cores", nargs="+", type=int, default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--envs", nargs="+", type=int, default=[64, 256, 1024], help="over all devices")
    parser.add_argument("--pools", nargs="+", default=["rule", "default"])
    parser.add_argument("--repeats", type=int, default=10, help="runs of each combination")
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps in a run, after compiling")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run starts later")
    parser.add_argument("--stall-s", type=float, default=8.0)
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "ksim-deadlock", help="compiled programs"
    )
    parser.add_argument("--out", type=Path, default=Path("deadlock.jsonl"))
    args = parser.parse_args()
    end_s = time.monotonic() + 60 * args.minutes
    ask = "from importlib.metadata import version; print(version('jaxlib'))"
    pythons = [os.path.abspath(python) for python in args.pythons]  # runs have directories of their own
    versions = {subprocess.check_output([python, "-c", ask], text=True).strip(): python for python in pythons}
    sizes = (args.programs, args.cores, args.devices, args.envs, args.pools)
    cells = list(itertools.starmap(Cell, itertools.product(versions, *sizes)))
    args.out.touch()
    lines = [json.loads(line) for line in args.out.read_text().splitlines()]
    for repeat, cell in itertools.product(range(args.repeats), cells):
        if time.monotonic() > end_s:
            break
        if sum(all(line[name] == value for name, value in cell._asdict().items()) for line in lines) > repeat:
            continue
        python = versions[cell.jaxlib]
        lines.append(run_cell(cell, python, args.cache, seconds=args.seconds, stall_s=args.stall_s))
        with args.out.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    print("Deadlocks of runs, over all numbers of environments")
    print_table(lines, ("jaxlib", "program", "cores", "devices"), describe_ends)
    by_envs = ("jaxlib", "program", "cores", "devices", "envs")
    print("\nThousand environment steps per second, median (lowest-highest)")
    print_table(lines, by_envs, functools.partial(describe_figure, "env_steps_per_s", 1e-3))
    print("\nMicroseconds of processor time per environment step, over all threads, likewise")
    print_table(lines, by_envs, functools.partial(describe_figure, "cpu_s_per_env_step", 1e6))


if __name__ == "__main__":
    main()
