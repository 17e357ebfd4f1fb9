"""Seconds from the command to the end of the first iteration, by phase, and of `--help`.

python -m benchmarks.startup --engines mujoco mjx --repeats 3

With `--checkouts . ../other` runs of several checkouts of ksim take turns. Beside wall time stands the processor time
of all threads, which other programs of a busy machine change less.
"""

import argparse
import collections
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from ksim.tools.measure import spread

EXAMPLE = "examples.walking_distributed"
PHASES = ("import", "checks", "first states", "compile", "iteration", "total", "processor")
"""Seconds of wall time one after another, of all of it, and of processor time."""

Seconds = dict[str, list[float]]


def timed_lines(arguments: list[str], checkout: str, cache: str) -> Iterator[tuple[float, str]]:
    """Lines of standard output of a new Python process, with the seconds since its start; the last one is empty.

    Raises:
        RuntimeError: The process failed.
    """
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "PYTHONPATH": checkout}
    start_s = time.perf_counter()
    command = [sys.executable, "-u", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield time.perf_counter() - start_s, line
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} in {checkout} ended with exit code {process.returncode}.")
    yield time.perf_counter() - start_s, ""


def processor_s() -> float:
    """Processor time of all processes that have ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def start_up_s(arguments: list[str], checkout: str) -> dict[str, float]:
    """Seconds, total and of the processor, of a process whose output is ignored."""
    before_s = processor_s()
    *_, (total_s, _) = timed_lines(arguments, checkout, cache="")
    return {"total": total_s, "processor": processor_s() - before_s}


def first_iteration_s(engine: str, num_envs: int, checkout: str, cache: str) -> dict[str, float]:
    """Starts a training in a new process; returns seconds by phase, to the line of its first iteration."""
    importing_s = start_up_s(["-c", f"import {EXAMPLE}"], checkout)["total"]
    before_s, at_s, said = processor_s(), {}, {}
    with tempfile.TemporaryDirectory() as run_dir:
        options = [f"engine={engine}", f"num_envs={num_envs}", "max_iterations=1", f"run_dir={run_dir}/run"]
        options += ["num_devices=1", "eval_at_end=false", "plots=false"]
        for elapsed_s, line in timed_lines(["-m", EXAMPLE, *options], checkout, cache):
            for words in ("First states:", "Compiled in", "iteration 1/"):
                if line.startswith(words):
                    at_s[words] = elapsed_s
                    said[words] = line.removeprefix(words).split()[0]
    first_states_s = float(said["First states:"])
    return {
        "import": importing_s,
        "checks": at_s["First states:"] - first_states_s - importing_s,
        "first states": first_states_s,
        "compile": at_s["Compiled in"] - at_s["First states:"],
        "iteration": at_s["iteration 1/"] - at_s["Compiled in"],
        "total": at_s["iteration 1/"],
        "processor": processor_s() - before_s,
    }


def row(*names: str, seconds: Seconds) -> str:
    """A row of the table: names, then a cell for each phase."""
    cells = [spread(seconds[phase], ".1f") if phase in seconds else "" for phase in PHASES]
    return f"| {' | '.join([*names, *cells])} |"


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="*", default=["mujoco", "mjx"])
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checkouts", nargs="+", default=["."], help="directories of ksim to compare")
    args = parser.parse_args()
    checkouts = [os.path.abspath(path) for path in args.checkouts]
    heads = ("command", "checkout", *(f"{phase}, s" for phase in PHASES))
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    found: dict[tuple[str, str], Seconds] = collections.defaultdict(lambda: collections.defaultdict(list))
    for engine in [None, *args.engines]:
        for _ in range(args.repeats):
            for name, checkout in zip(args.checkouts, checkouts, strict=True):
                with tempfile.TemporaryDirectory() as cache:
                    for what, measured in measure(engine, args.num_envs, checkout, cache):
                        for phase, seconds in measured.items():
                            found[what, name][phase].append(seconds)
        for names, seconds in found.items():
            print(row(*names, seconds=seconds), flush=True)
        found.clear()


def measure(engine: str | None, num_envs: int, checkout: str, cache: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Seconds by phase of `--help`, or under an engine with an empty cache and then with what it has left."""
    if engine is None:
        yield "--help", start_up_s(["-m", EXAMPLE, "--help"], checkout)
        return
    for state in ("cold", "warm"):
        yield f"{engine}, {num_envs} envs, {state}", first_iteration_s(engine, num_envs, checkout, cache)


if __name__ == "__main__":
    main()
