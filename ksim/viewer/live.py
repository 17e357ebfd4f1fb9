"""The live viewer of the newest policy during training, as seen by the training process.

A separate process with a low priority steps and shows the policy (`ksim.viewer.live_worker`). Training only polls for
its requests, and then writes the arrays of the newest policy to a file.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ksim.host.terminal import Failures, print_line
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.policy.load import without_caches
from ksim.task.rl import RLTask
from ksim.viewer.frontend import check_viser, free_port
from ksim.viewer.live_feed import FAILED, READY, WANTED, write_policy
from ksim.viewer.session import shown_of

NAME = "ksim-viewer"
"""The name of the process."""
RESTART_EVERY_S = 60.0
"""Shortest time between two starts of the process, each of which takes processor time from the training."""
_STOP_S = 5.0


def check_live_viewer(task: RLTask[Any]) -> None:
    """Checks that the viewer can be served while a task trains.

    Raises:
        ConfigError: viser is missing, the address is not of this machine, another viewer was requested, or the
            environment shows no model.
    """
    config = task.config
    if not config.viewer_while_training:
        return
    check_viser()
    shown_of(task.eval_environment)
    free_port(config.viewer_host, config.viewer_port)


def is_viewer_process() -> bool:
    """Whether this is the viewer's process, which may import the program but must not train."""
    return multiprocessing.current_process().name == NAME


class LiveViewer:
    """Starts the viewer's process, and sends it the newest policy on request. Its failures do not end the run.

    As a context manager, it keeps the process for the block. A process that dies after it served a page is restarted.
    """

    def __init__(self, task: RLTask[Any], failures: Failures, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts nothing yet. Another process must be able to import the task's class."""
        self._task, self._failures, self._clock = task, failures, clock
        self._stack = contextlib.ExitStack()
        self._process: Any = None
        self._receiver: Any = None
        self._policy_path = Path()
        self._started_s, self._was_ready, self._is_due = 0.0, False, False

    def __enter__(self) -> "LiveViewer":
        with self._failures.tolerate("viewer"):
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ksim-viewer-"))
            self._policy_path = Path(directory, "policy.npz")
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join(_STOP_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join(_STOP_S)
        self._stack.close()

    def after_iteration(self, iteration: int, read_model: Callable[[], AbstractActorCritic]) -> None:
        """Writes the newest policy if requested, prints the process's messages, and restarts a process that died."""
        with self._failures.tolerate("viewer"):
            if self._is_due and self._clock() >= self._started_s + RESTART_EVERY_S:
                self._start()
            if self._process is not None and self._read():
                write_policy(self._policy_path, iteration, read_model())

    def _start(self) -> None:
        self._started_s, self._was_ready, self._is_due = self._clock(), False, False
        self._policy_path.unlink(missing_ok=True)  # requested by the previous process
        # A fork would inherit this process's locks; a spawned process imports the program again.
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._stack.callback(self._receiver.close)
        self._stack.callback(sender.close)  # closed below once the process has it, or here if it does not start
        on_cpu = self._task.layout.platform == "cpu"
        arguments = (without_caches(self._task), on_cpu, str(self._policy_path), sender)
        process = context.Process(target=_serve, args=arguments, name=NAME, daemon=True)
        with _environment_of_worker():
            process.start()
        sender.close()
        self._process = process

    def _read(self) -> bool:
        """Reads the process's messages, or its end; returns whether it requests a policy."""
        is_wanted = False
        try:
            while self._receiver.poll():
                kind, text = self._receiver.recv()
                if kind == READY:
                    self._was_ready = True
                    print_line(f"Viewer: open {text} in a browser.")
                elif kind == FAILED:
                    self._failures.add("viewer", RuntimeError(text))
                is_wanted |= kind == WANTED
        except (EOFError, OSError):
            exit_code, self._process = self._process.exitcode, None
            self._receiver.close()
            # A process that never became ready would fail again.
            self._is_due = self._was_ready
            after = "; it is started again" if self._is_due else ""
            self._failures.add("viewer", RuntimeError(f"its process has ended (exit code {exit_code}){after}"))
            return False
        return is_wanted


def _serve(*arguments: Any) -> None:
    """The process's entry point. It is in this module because a module that is run cannot be imported by its name."""
    from ksim.viewer.live_worker import serve  # noqa: PLC0415 - imports viser

    serve(*arguments)


@contextlib.contextmanager
def _environment_of_worker() -> Iterator[None]:
    """The environment in which the process starts: on the CPU, as the device of training may have no room."""
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        del os.environ["JAX_PLATFORMS"]
        if before is not None:
            os.environ["JAX_PLATFORMS"] = before
