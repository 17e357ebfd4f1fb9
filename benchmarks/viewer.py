"""What watching a training run costs it: its speed with a page open, in ratio to its speed with none.

python -m benchmarks.viewer --pairs 8

Trains the walking humanoid with viewer_while_training=true, and opens and closes the page in turn, so that both phases
of a pair meet the same machine. The page is a client of the viewer's web socket in a process of its own, which receives
everything and draws nothing: a browser usually runs on another machine, and would draw on the training's cores here.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

from ksim.host.machine import num_cores
from ksim.tools.spread import spread
from ksim.viewer.address import free_port
from ksim.viewer.live import NAME

PAGE = Path(__file__).with_name("viewer_page.py")
SKIPPED = 2
"""Iterations at the start of each phase that count for none: the page opens, or closes."""


class WatchedTask(HumanoidWalkingDistributedTask):
    """The walking humanoid, watched and not watched in turn; stops after some pairs of phases."""

    port = 0
    phase_s = 20.0
    num_pairs = 8
    speeds: ClassVar[tuple[list[float], list[float]]] = ([], [])
    """Environment steps per second of the phases without and with a page."""
    _page: ClassVar[Any] = None
    _ends: ClassVar[list[float]] = []
    _cpu_s: ClassVar[float] = 0.0
    _opened_s: ClassVar[float] = 0.0

    def on_step_end(self, state: Any) -> None:
        """Ends the phase when it is over."""
        cls = type(self)
        if not cls._ends and cls._page is None and not is_served(self.port):
            return
        cls._ends.append(time.perf_counter())
        if len(cls._ends) < SKIPPED + 4 or cls._ends[-1] - cls._ends[SKIPPED] < self.phase_s:
            return
        elapsed_s, num_iterations = cls._ends[-1] - cls._ends[SKIPPED], len(cls._ends) - 1 - SKIPPED
        steps = num_iterations * self.config.num_envs * self.config.rollout_length
        self.speeds[cls._page is not None].append(steps / elapsed_s)
        if cls._page is None:
            cls._cpu_s, cls._opened_s = viewer_cpu_s(), time.perf_counter()
            cls._page = subprocess.Popen(
                [sys.executable, str(PAGE), str(self.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        else:
            shown = cls._page.communicate(b"\n")[0].decode().strip()
            cls._page = None
            share = (viewer_cpu_s() - cls._cpu_s) / (num_cores() * (time.perf_counter() - cls._opened_s))
            speeds = f"{self.speeds[0][-1]:.0f}, {self.speeds[1][-1]:.0f}"
            print(f"pair {len(self.speeds[1])}: {speeds}; viewer {share:.1%} of the cores, {shown}", flush=True)
            if len(self.speeds[1]) == self.num_pairs:
                raise KeyboardInterrupt
        cls._ends = [cls._ends[-1]]


def viewer_cpu_s() -> float:
    """Processor time of the viewer's process so far, on Linux."""
    viewer = next(process for process in multiprocessing.active_children() if process.name == NAME)
    after_name = Path(f"/proc/{viewer.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


def is_served(port: int) -> bool:
    """Whether the page can be opened."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    """Prints each pair, and the ratio of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--phase-s", type=float, default=20.0)
    args = parser.parse_args()
    WatchedTask.port, WatchedTask.phase_s, WatchedTask.num_pairs = (
        free_port("127.0.0.1", 8080),
        args.phase_s,
        args.pairs,
    )
    with tempfile.TemporaryDirectory() as run_dir:
        config = HumanoidWalkingDistributedConfig(
            num_envs=args.num_envs,
            num_devices=1,
            max_iterations=None,
            eval_at_end=False,
            eval_every_n_seconds=None,
            video=False,
            plots=False,
            console="plain",
            run_dir=run_dir,
            viewer_while_training=True,
            viewer_port=WatchedTask.port,
        )
        with contextlib.suppress(KeyboardInterrupt):
            WatchedTask(config).run()
    without, watched = WatchedTask.speeds
    ratios = [y / x for x, y in zip(without, watched, strict=False)]
    print(f"env steps/s without a page {spread(without)}, with one {spread(watched)}; ratio {spread(ratios)}")


if __name__ == "__main__":
    main()
