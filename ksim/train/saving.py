"""Saving a run's state."""

from typing import Any

from ksim.checkpoint.progress import Progress
from ksim.checkpoint.saver import Saver
from ksim.checkpoint.snapshot import host_state, run_document
from ksim.host.failures import Failures
from ksim.parallel.multihost import num_processes, wait_for_all
from ksim.parallel.replica_guard import ReplicasDivergedError
from ksim.task.rl import RLTask
from ksim.train.callbacks import CallbackError, Callbacks
from ksim.train.checks import TrainingDivergedError
from ksim.train.state import RunState
from ksim.train.timing import HostTimers
from ksim.train.watchdog import Watchdog


class Saving:
    """Saving of the state: all processes gather it together, or none does, and process 0 writes it.

    Attributes:
        saver: The writer of checkpoints; None in processes other than 0.
    """

    def __init__(
        self,
        task: RLTask[Any],
        state: RunState,
        progress: Progress,
        *,
        saved_iteration: int | None,
        callbacks: Callbacks,
        timers: HostTimers,
        watchdog: Watchdog,
        failures: Failures,
    ) -> None:
        """Stores the parts; there is no saver yet.

        Args:
            saved_iteration: The iteration whose state is in the run's directory already; None if none is.
            failures: Records failures to save while an error ends the run.
        """
        self._task, self._state, self._progress = task, state, progress
        self._callbacks, self._timers, self._watchdog, self._failures = callbacks, timers, watchdog, failures
        # All processes know this number; only process 0 has the saver.
        self._saved_iteration = saved_iteration
        self.saver: Saver | None = None

    def is_due(self) -> bool:
        """Whether a checkpoint is due; only process 0 knows."""
        return self.saver is not None and self.saver.is_due(self._progress.iteration)

    def save(self) -> None:
        """Starts to save the state after the last iteration, unless it is saved already. All processes must call this.

        The decision is the same in all processes, because gathering the state is collective.
        """
        progress, placed = self._progress, self._state.get()
        if progress.iteration in (0, self._saved_iteration):
            return
        self._callbacks.before_save()
        with self._timers.timed("saving"), self._watchdog.watching("saving"):
            state = host_state(self._task, placed)
            if self.saver is not None:
                document = run_document(
                    self._task,
                    iteration=progress.iteration,
                    progress=progress.record(),
                    last_episodes=progress.last_episodes,
                )
                self.saver.save(progress.iteration, state, document)
        # Not before: if an error interrupts the block above, the state is still unsaved.
        self._saved_iteration = progress.iteration

    def save_after(self, error: Exception) -> None:
        """Saves the last state, unless that needs other processes that may be gone.

        If the error ends all processes, the others wait for process 0 to write: once one has ended, a launcher gives
        the rest little time.
        """
        of_all = TrainingDivergedError, ReplicasDivergedError, CallbackError
        is_alike = num_processes() == 1 or isinstance(error, of_all)
        with self._failures.absorbed("saving after the error"):
            if self._state.placed is not None and is_alike:
                self.save()
            if self.saver is not None:
                with self._watchdog.watching("writing the last checkpoint"):
                    self.saver.wait()
                self._callbacks.after_save()
            self._callbacks.training_end(error)
            if is_alike:
                wait_for_all()

    def close(self) -> None:
        """Waits for the last checkpoint.

        Raises:
            RunError: It could not be written.
        """
        if self.saver is not None:
            with self._watchdog.watching("writing the last checkpoint"):
                self.saver.close(self._progress.iteration)
        self._callbacks.after_save()
