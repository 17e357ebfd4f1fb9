"""The cost of watching a training run: its speed with a page open, in ratio to its speed with none.

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

from ksim.tools.measure import spread
from ksim.viewer.live import NAME
from ksim.viewer.frontend import free_port

PAGE = Path(__file__).with_name("viewer_page.py")
SKIPPED = 2
"""Iterations at the start of each phase that count for none: the page opens, or closes."""


@dataclass(frozen=True)
class Phase:
    """A phase of the training.

    Attributes:
        speed: Environment steps per second.
        cpu_speed: Environment steps per second of processor time of the training process.
        viewer: Processor time of the viewer's process, in ratio to that of the training.
    """

    speed: float
    cpu_speed: float
    viewer: float

    def __str__(self) -> str:
        return f"{self.speed:.0f} steps/s, {self.cpu_speed:.0f} per CPU second, viewer {self.viewer:.1%}"


class WatchedTask(HumanoidWalkingDistributedTask):
    """The walking humanoid, watched and not watched in turn; stops after some pairs of phases."""

    port = 0
    phase_s = 20.0
    num_pairs = 8
    phases: ClassVar[list[Phase]] = []
    """Without and with a page in turn; the last one is without."""
    _page: ClassVar[Any] = None
    _ends: ClassVar[list[tuple[float, float, float]]] = []

    def on_step_end(self, state: Any) -> None:
        """Ends the phase when it is over."""
        cls = type(self)
        if not cls._ends and cls._page is None and not is_served(self.port):
            return
        cls._ends.append((time.perf_counter(), time.process_time(), viewer_cpu_s()))
        if len(cls._ends) < SKIPPED + 4 or cls._ends[-1][0] - cls._ends[SKIPPED][0] < self.phase_s:
            return
        seconds, own_s, viewer_s = (last - first for first, last in zip(cls._ends[SKIPPED], cls._ends[-1], strict=True))
        steps = (len(cls._ends) - 1 - SKIPPED) * self.config.num_envs * self.config.rollout_length
        cls.phases.append(Phase(steps / seconds, steps / own_s, viewer_s / own_s))
        shown = ""
        if cls._page is None:
            pipe = subprocess.PIPE
            cls._page = subprocess.Popen([sys.executable, str(PAGE), str(self.port)], stdin=pipe, stdout=pipe)
        else:
            shown = cls._page.communicate(b"\n")[0].decode().strip()
            cls._page = None
        print(f"phase {len(cls.phases)}: {cls.phases[-1]} {shown}", flush=True)
        if len(cls.phases) == 2 * self.num_pairs + 1:
            raise KeyboardInterrupt
        cls._ends = [cls._ends[-1]]


def ratios(figures: Sequence[float]) -> list[float]:
    """Each phase with a page in ratio to the mean of those before and after it, so that drifts cancel."""
    return [2 * figures[i] / (figures[i - 1] + figures[i + 1]) for i in range(1, len(figures) - 1, 2)]


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
    phases = WatchedTask.phases
    for name, figures in (("speed", [x.speed for x in phases]), ("per CPU second", [x.cpu_speed for x in phases])):
        print(f"{name}: closed {spread(figures[::2], '.0f')}, open {spread(figures[1::2], '.0f')}", end="; ")
        print(f"ratio {spread(ratios(figures))}")
    print(f"viewer's processor time in ratio to the training's: {spread([x.viewer for x in phases[1::2]], '.1%')}")


if __name__ == "__main__":
    main()
