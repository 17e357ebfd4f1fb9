"""Saving checkpoints in the background of training."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import CHECKPOINTS, Arrays, find_best, remove_all_but, write_checkpoint
from ksim.checkpoint.run_dir import make_again
from ksim.checkpoint.snapshot import named_arrays
from ksim.errors import RunError
from ksim.host.terminal import Failures, print_warning
from ksim.task.rl import RLTask
from ksim.types import TrainState

logger = logging.getLogger(__name__)

_SLOW_S = 300.0
"""Seconds of writing from which a checkpoint is reported as slow."""


class Saver:
    """A writer of checkpoints in a separate thread, one at a time. Only process 0 has one.

    If a checkpoint cannot be written, training continues. The failure is reported and counted, and the next checkpoint
    is tried again.

    Attributes:
        newest: Iteration and path of the last written checkpoint, or of the one that the run was resumed from; None
            before the first.
        best: The iteration of the best policy so far by evaluation; None before the first evaluation.
    """

    def __init__(self, run_dir: Path, task: RLTask[Any], failures: Failures, constants: Arrays) -> None:
        """Writes nothing yet. Every checkpoint holds the arrays `constants` besides the state."""
        self._constants = constants
        self._directory, self._failures = run_dir / CHECKPOINTS, failures
        self._config, self._command = task.config, task.command
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ksim saver")
        self._running: Future[None] | None = None
        self._last_s = time.monotonic()
        self.best: int | None = None
        self._begun: int | None = None
        self._said_slow: int | None = None
        self._last_error: Exception | None = None
        self.newest: tuple[int, Path] | None = None

    def is_due(self, iteration: int) -> bool:
        """Whether to save this iteration: by number, by the clock, or as the best so far."""
        if self.best == iteration:
            return True
        by_iterations, by_seconds = self._config.save_every_n_iterations, self._config.save_every_n_seconds
        if by_iterations is not None and iteration % by_iterations == 0:
            return True
        # If writing takes longer than the interval, training does not wait for it.
        since_s = time.monotonic() - self._last_s
        if self._running is not None and not self._running.done():
            self._warn_if_slow(since_s)
            return False
        return by_seconds is not None and since_s >= by_seconds

    def save(self, iteration: int, state: TrainState, document: Mapping[str, Any]) -> None:
        """Starts to write a checkpoint, after waiting for the previous one.

        `state` holds host arrays, which must not change while they are written; `document` all other data, as for JSON.
        """
        self.wait()
        self._begun, self._last_s = iteration, time.monotonic()
        self._running = self._thread.submit(self._write, iteration, state, document)

    def wait(self) -> None:
        """Waits until no checkpoint is being written."""
        if self._running is not None:
            self._running.result()

    def close(self, iteration: int) -> None:
        """Waits for the last checkpoint; raises RunError if it could not be written."""
        self.wait()
        self._thread.shutdown()
        if iteration and (self.newest is None or self.newest[0] != iteration):
            left = "None was written before" if self.newest is None else f"The newest one is {self.newest[1]}"
            raise RunError(
                f"The last checkpoint, of iteration {iteration}, could not be saved: {self._last_error}. {left}."
            ) from self._last_error

    def _warn_if_slow(self, since_s: float) -> None:
        if since_s >= _SLOW_S and self._said_slow != self._begun:
            self._said_slow = self._begun
            print_warning(
                f"The checkpoint of iteration {self._begun} has been saving for {since_s:.0f} s. No "
                "other starts until it is done. Check the file system."
            )

    def _write(self, iteration: int, state: TrainState, document: Mapping[str, Any]) -> None:
        path = self._directory / str(iteration)
        try:
            make_again(self._config, self._command, self._directory.parent)
            write_checkpoint(path, {**named_arrays(state), **self._constants}, document)
            self.newest = (iteration, path)
            logger.info("Saved %s.", path)
        except Exception as error:  # noqa: BLE001 - a failed save is reported, and ends no run
            self._last_error = error
            self._failures.add("checkpoint", error)
        with self._failures.tolerate("removal of old checkpoints"):
            remove_all_but(self._directory, self._config.max_to_keep, find_best(self._directory.parent))
