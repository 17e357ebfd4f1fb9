"""Seconds from the command to the end of the first iteration, with a cold and with a warm compilation cache.

python -m benchmarks.startup --engines mujoco mjx --repeats 3
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time


def first_iteration_s(engine: str, num_envs: int, cache: str) -> float:
    """Starts a training in a process of its own and waits for the line of its first iteration."""
    with tempfile.TemporaryDirectory() as run_dir:
        command = [sys.executable, "-u", "-m", "examples.walking_distributed"]
        options = [f"engine={engine}", f"num_envs={num_envs}", "max_iterations=1", f"run_dir={run_dir}"]
        options += ["eval_at_end=false", "plots=false"]
        start_s = time.perf_counter()
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            elapsed_s = None
            for line in process.stdout:
                if line.startswith("iteration 1/"):
                    elapsed_s = time.perf_counter() - start_s
        if elapsed_s is None:
            raise RuntimeError(f"The training under {engine} ended without an iteration.")
        return elapsed_s


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["mujoco", "mjx"])
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print("| engine | envs | cold cache | warm cache |\n|---|---|---|---|")
    for engine in args.engines:
        seconds: dict[str, list[float]] = {"cold": [], "warm": []}
        for _ in range(args.repeats):
            with tempfile.TemporaryDirectory() as cache:
                for durations in seconds.values():
                    durations.append(first_iteration_s(engine, args.num_envs, cache))
        cells = [f"{statistics.median(s):.1f} s ({min(s):.1f}-{max(s):.1f})" for s in seconds.values()]
        print(f"| {engine} | {args.num_envs} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
