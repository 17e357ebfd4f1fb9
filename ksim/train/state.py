"""The training state of a run on its devices."""

from typing import Any

from ksim.errors import RunError
from ksim.parallel.placement import copy_of
from ksim.preflight.hooks import check_curricula
from ksim.task.rl import RLTask
from ksim.train.start import Start, started_state
from ksim.types import LearnerState, TrainState


class RunState:
    """The only reference to a run's state, so that donating it frees its memory.

    Attributes:
        placed: The state on the devices after the last iteration; None once it was donated, discarded or released.
    """

    def __init__(self, task: RLTask[Any], start: Start) -> None:
        """Builds the state that a run starts from, and places it on the devices.

        Raises:
            ConfigError: The checkpoint does not fit the task, or a curriculum goes by a metric that does not exist.
        """
        self._layout, self._keeps, self._is_over = task.layout, task.config.dump_on_nan, False
        state = started_state(task, start, task.initial_state())
        check_curricula(task, state)
        self.placed: TrainState | None = task.layout.place(state)

    def get(self) -> TrainState:
        """The state on the devices.

        Raises:
            RunError: A failed training step had already donated its memory, or the run is over.
        """
        if self._is_over:
            raise RunError("The run is over, and its state released. Load its policy with ksim.load_policy.")
        if self.placed is None:
            raise RunError("The training step that failed has taken the learner's memory; dump_on_nan=true keeps it.")
        return self.placed

    def take(self) -> TrainState:
        """The state for a training step, which donates its memory unless `dump_on_nan` is set.

        Raises:
            RunError: As `get`.
        """
        state = self.get()
        if not self._keeps:
            # If the step fails, its donated state cannot be saved.
            self.placed = None
        return state

    def learner(self) -> LearnerState:
        """A copy of the learner on the host.

        Raises:
            RunError: As `get`.
        """
        return copy_of(self._layout.first(self.get().learner))

    def release(self) -> None:
        """Frees the state's memory."""
        self.placed, self._is_over = None, True
