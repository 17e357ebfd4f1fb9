"""The hooks that a task calls during training, and their argument."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from xax.task.base import BaseConfig, BaseTask

from ksim.nn.actor_critic import AbstractActorCritic


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """Progress of training, passed to the callbacks.

    Attributes:
        iteration: Iterations done, including those before the run was resumed.
        env_steps: Steps of all environments in these iterations; each repetition of an action counts.
        elapsed_s: Seconds that these iterations took.
        iterations_left: Iterations to the limit; None without one.
        metrics: Metrics of the last iteration, as in its line of metrics.jsonl (NaN for null); empty before the first
            iteration of this process.
        run_dir: The run's directory.
        checkpoint: The newest written checkpoint; None if there is none.
        ended_by: In `on_training_end`, the signal, `max_runtime` or the error that ended the run; None if the run
            reached its limit.
        read_model: Copies the policy and value function, on raw observations, to the host. Call it only in the hook:
            the next iteration changes the arrays. Raises RunError if a training step failed half-way.
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
    """Callbacks, named as in xax, called by process 0 during training. Each does nothing by default.

    Training waits for them; `time/callbacks_s` is the time they take. They cannot change training: a hook returns
    None or, as in xax, its argument. An exception in a hook ends the run after its state is saved.
    """

    def on_training_start(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called once the run directory and the initial states exist, before the training step compiles."""

    def on_step_start(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called before each iteration."""

    def on_step_end(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called after each iteration, once its metrics are written."""

    def on_after_checkpoint_save(  # type: ignore[override]
        self, ckpt_path: Path, state: TrainingStatus
    ) -> TrainingStatus | None:
        """Called once a checkpoint is on disk. Training continues while it is written.

        Args:
            ckpt_path: The checkpoint. `max_to_keep` limits how many are kept, so copy those that you need later.
            state: The status of training when it was saved.
        """

    def on_training_end(self, state: TrainingStatus) -> TrainingStatus | None:  # type: ignore[override]
        """Called when a run that has begun ends: at its limit, on a signal or with an error."""

    def add_logger_handlers(self, logger: logging.Logger) -> None:
        """Adds handlers to ksim's logger before the first record; ksim removes them when the run ends."""
