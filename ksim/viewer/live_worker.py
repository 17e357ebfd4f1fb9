"""The process that shows the policy of a training run: a session and a page, at a low priority."""

import contextlib
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax

from ksim.host.machine import num_cores
from ksim.host.signals import StopRequest
from ksim.policy.load import policy_context, task_on_one_device
from ksim.task.rl import RLTask
from ksim.viewer.browser import BrowserFrontend
from ksim.viewer.frontend import Budget, run_session
from ksim.viewer.live_feed import FAILED, READY, WANTED, read_policy
from ksim.viewer.page import Page
from ksim.viewer.session import ViewSession, shown_of

ASK_EVERY_S = 2.0
"""Shortest time between two policies."""
CPU_SHARE = 0.02
"""Largest processor time of the process, as a share of the training's: see `earned_s`."""
NICE = 13
"""Added to the niceness of the training: Linux then gives the process 5 % of the weight of the training."""
_IDLE_S = 0.1


def serve(task: RLTask[Any], on_cpu: bool, policy_path: str, sender: Any) -> None:
    """Serves the page until the training process ends.

    That process writes policies to `policy_path`, and is at the other end of the pipe `sender`.
    """
    # The training process handles Ctrl-C: it saves, and then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with jax.default_matmul_precision(task.config.matmul_precision):
            _serve(task, on_cpu, Path(policy_path), sender)
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # the training has ended
    except Exception as error:
        with contextlib.suppress(OSError):
            sender.send((FAILED, f"{type(error).__name__}: {error}"))
        raise


def _serve(task: RLTask[Any], on_cpu: bool, policy_path: Path, sender: Any) -> None:
    config, context = task.config, policy_context(task_on_one_device(task))
    shown = shown_of(context.env)
    page = Page(shown.model, config.viewer_num_envs, host=config.viewer_host, port=config.viewer_port)
    model = context.task.policy_of(context.task.initial_learner().state)
    session = ViewSession(
        context.env, model, seed=config.seed, num_envs=config.viewer_num_envs, axis_name=task.device_axis
    )
    frontend = BrowserFrontend(session, page)
    frontend.note = "untrained policy"
    feed = PolicyFeed(session, frontend, policy_path, sender)
    lower_priority()  # not earlier: if training uses all cores, the page would take many minutes
    sender.send((READY, page.url))
    earned = functools.partial(earned_s, os.getppid() if on_cpu else None)
    with closing(frontend):
        run_session(session, frontend, StopRequest(), before_step=feed.wait, budget=Budget(earned))


class PolicyFeed:
    """A feed of the newest policies to a session; it waits while no page is open."""

    def __init__(
        self,
        session: ViewSession,
        frontend: BrowserFrontend,
        policy_path: Path,
        sender: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._frontend = session, frontend
        self._policy_path, self._sender, self._clock = policy_path, sender, clock
        self._is_asked = False
        self._next_ask_s = 0.0

    def wait(self) -> None:
        """Returns when a page is open; loads a new policy, and requests the next."""
        self._check_parent()
        while not self._frontend.is_watched:
            time.sleep(_IDLE_S)
            self._check_parent()
        now_s = self._clock()
        if self._is_asked and self._policy_path.exists():
            iteration, self._session.model = read_policy(self._policy_path, self._session.model)
            self._policy_path.unlink()
            self._frontend.note = f"policy of iteration {iteration}"
            self._is_asked, self._next_ask_s = False, now_s + ASK_EVERY_S
        if not self._is_asked and now_s >= self._next_ask_s:
            self._sender.send((WANTED, ""))
            self._is_asked = True

    def _check_parent(self) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise BrokenPipeError("The training process has ended.")


def earned_s(training_pid: int | None) -> float:
    """Processor time that the viewer may have used by now, in s: a share of that of the training process.

    If `training_pid` is None, because training runs on another device and leaves the cores free, or if its time is
    unknown, it is a share of the time of all cores.
    """
    stat = Path(f"/proc/{training_pid}/stat")
    if training_pid is not None and stat.exists():
        after_name = stat.read_text().rpartition(")")[2].split()
        return CPU_SHARE * sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")
    return CPU_SHARE * num_cores() * time.monotonic()


def lower_priority() -> None:
    """Lowers this process's priority: of a core that it shares with the training, it gets 5 % on Linux."""
    threads = Path("/proc/self/task")
    if threads.is_dir():  # Linux has a niceness per thread, which new threads inherit
        for thread in threads.iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                number = int(thread.name)
                os.setpriority(os.PRIO_PROCESS, number, os.getpriority(os.PRIO_PROCESS, number) + NICE)
    elif hasattr(os, "nice"):
        os.nice(NICE)
