"""When a run's state is saved, and what of it."""

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
    """Saves the state: all processes gather it together or not at all, and process 0 writes it.

    Attributes:
        saver: What writes checkpoints; of process 0 alone.
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
        """Makes what has no saver yet.

        Args:
            task: The task.
            state: Holds the state.
            progress: Where the run stands.
            saved_iteration: The iteration whose state is in the run's directory already; None where there is none.
            callbacks: Told of checkpoints.
            timers: Told how long training waits.
            watchdog: Watches it.
            failures: Told of what fails while an error ends the run.
        """
        self._task, self._state, self._progress = task, state, progress
        self._callbacks, self._timers, self._watchdog, self._failures = callbacks, timers, watchdog, failures
        # Known to all processes, unlike what the saver has written.
        self._saved_iteration = saved_iteration
        self.saver: Saver | None = None

    def is_due(self) -> bool:
        """Whether a checkpoint is due; only process 0 knows."""
        return self.saver is not None and self.saver.is_due(self._progress.iteration)

    def save(self) -> None:
        """Starts to save the state after the last iteration, if that was not done; to be called by all processes alike.

        What decides is the same in all of them: gathering the state is collective.
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
        # Not before: where an error ended it half-way, the state is still to be saved.
        self._saved_iteration = progress.iteration

    def save_after(self, error: Exception) -> None:
        """Saves the last state where there is one, unless other processes would have to help and may not be there.

        Where the error ends all of them, they wait for process 0 to write: a launcher gives it little time once one
        has ended.
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
