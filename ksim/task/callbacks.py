"""The hooks of a task that are called while it trains, and the record that they are given."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from xax.task.base import BaseConfig, BaseTask

from ksim.nn.actor_critic import AbstractActorCritic


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """Where training stands.

    Attributes:
        iteration: Iterations done, those before the run was resumed included.
        env_steps: Control steps done over all environments, likewise.
        elapsed_s: Seconds that these iterations took.
        iterations_left: Iterations to the limit; None without one.
        metrics: The last iteration's, as in its line of metrics.jsonl (NaN where that has null); empty before the first
            one of this process.
        run_dir: The run's directory.
        checkpoint: The newest checkpoint that has been written; None before there is one.
        ended_by: In `on_training_end`, the signal, `max_runtime` or the error that ended the run; None for its limit.
        read_model: Copies the policy and value function, on raw observations, to the host. Call it in the hook only:
            the next iteration changes what it reads. Raises RunError after a training step that failed half-way.
    """

    iteration: int
    env_steps: int
    elapsed_s: float
    iterations_left: int | None
    metrics: Mapping[str, float]
    run_dir: Path
    checkpoint: Path | None
    ended_by: str | None
    read_model: Callable[[], AbstractActorCritic] = field(repr=False, compare=False)


ConfigT = TypeVar("ConfigT", bound=BaseConfig)


class CallbackTask(BaseTask[ConfigT], Generic[ConfigT]):
    """xax's hooks, called by process 0 between the training's own work. Each does nothing by default.

    Training waits for them; `time/callbacks_s` is what they took. They cannot change it: a hook returns nothing, or, as
    xax's do, the record that it was given. An exception in one ends the run, with its state saved.
    """

    def on_training_start(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called once the run's directory and its first states are there, before the training step is compiled."""

    def on_step_start(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called before each iteration."""

    def on_step_end(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called after each iteration, when its metrics have been written."""

    def on_after_checkpoint_save(  # type: ignore[override]
        self, ckpt_path: Path, state: TrainingStatus
    ) -> TrainingStatus | None:
        """Called once a checkpoint is on the disk. It is written beside the training, which goes on meanwhile.

        Args:
            ckpt_path: The checkpoint; old ones are removed as `max_to_keep` says, so copy what you want to keep.
            state: Where training stood when it was saved.
        """

    def on_training_end(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called when a run that has begun ends, in whatever way: at its limit, by a signal or with an error."""

    def add_logger_handlers(self, logger: logging.Logger) -> None:
        """Adds handlers to ksim's logger, before the run's first record; they are removed when the run ends."""
