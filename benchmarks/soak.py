"""Growth of a long run: its memory, open files, threads and directory, measured from another process.

python -m benchmarks.soak --iterations 20000

Trains the point mass in a process of its own, evaluating and saving as often per iteration as a run of as many of the
walking humanoid's would, and prints a row at every tenth of the way. Linux only: it reads /proc.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HISTORY = ("metrics.jsonl", "evaluations.jsonl", "process_0.log", "events.out")
"""Files that grow by a line or a record per iteration, as they are meant to."""


def size_of(run_dir: Path) -> tuple[int, int]:
    """Bytes of the run's directory: its history, and all else."""
    history = rest = 0
    for directory, _, names in os.walk(run_dir):  # which passes over what is removed meanwhile
        for name in names:
            try:
                size = os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # of an old checkpoint
                continue
            if name.startswith(HISTORY):
                history += size
            else:
                rest += size
    return history, rest


def look_at(pid: int, run_dir: Path) -> dict[str, float]:
    """The resources that a process uses now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    history, rest = size_of(run_dir)
    return {
        "memory, MiB": int(status["VmRSS"].split()[0]) / 2**10,
        "open files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(status["Threads"]),
        "memory maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        "directory without history, KiB": rest / 2**10,
        "history per iteration, B": history,
    }


def main() -> int:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("options", nargs="*", help="options of the training")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = [sys.executable, "-m", "examples.point_mass", f"run_dir={run_dir}"]
        command += [f"max_iterations={args.iterations}", "num_envs=16", "rollout_length=8", "num_passes=1"]
        command += ["save_every_n_iterations=40", "save_every_n_seconds=null"]
        command += ["eval_every_n_iterations=200", "eval_num_envs=16", "eval_every_n_seconds=null", *args.options]
        start_s = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            marks = [round(args.iterations * i / 10) for i in range(1, 10)]
            metrics = run_dir / "metrics.jsonl"
            done, position, header = 0, 0, ""
            while process.poll() is None and marks:
                time.sleep(0.2)
                if not metrics.exists():
                    continue
                with metrics.open("rb") as file:
                    file.seek(position)
                    data = file.read()
                position += len(data)
                done += data.count(b"\n")
                if done >= marks[0]:
                    marks.pop(0)
                    found = look_at(process.pid, run_dir)
                    found["history per iteration, B"] /= done
                    if not header:
                        header = f"| iteration | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}"
                        print(header)
                    print(f"| {done:,} | {' | '.join(f'{x:,.0f}' for x in found.values())} |", flush=True)
            code = process.wait()
    print(f"{args.iterations:,} iterations in {time.monotonic() - start_s:,.0f} s, exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
