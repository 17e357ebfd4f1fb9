"""What a run tells of its policy on the side: evaluations. None of it changes or ends the training."""

import collections
import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax

from ksim.nn.normalizer import NormalizedActorCritic
from ksim.ppo.train_step import static_leaves
from ksim.run.console import evaluation_line, print_line
from ksim.run.evaluator import Evaluator
from ksim.run.loggers import MetricsWriter
from ksim.run.signals import StopRequest
from ksim.types import LearnerState

if TYPE_CHECKING:
    from ksim.run.loop import Progress
    from ksim.task.rl import RLTask

logger = logging.getLogger(__name__)


class Reports:
    """Evaluates while a run trains, and when it has trained.

    Attributes:
        num_failures: How often each kind of report failed.
    """

    def __init__(self, task: "RLTask[Any]", run_dir: Path, *, writer: MetricsWriter, stop: StopRequest) -> None:
        self._task, self._run_dir, self._writer, self._stop = task, run_dir, writer, stop
        self._evaluator: Evaluator | None = None
        self._last_s = time.monotonic()
        self._last_iteration = 0
        self.num_failures: collections.Counter[str] = collections.Counter()

    def after_iteration(self, progress: "Progress", learner: LearnerState) -> None:
        """Evaluates if it is time to."""
        if self._is_due(progress.iteration):
            self._evaluate(progress, learner)

    def at_end(self, progress: "Progress", learner: LearnerState) -> None:
        """Evaluates what was learned, unless the run was asked to stop."""
        wanted = self._task.config.eval_at_end and jax.process_index() == 0
        if wanted and not self._should_stop() and self._last_iteration != progress.iteration:
            self._evaluate(progress, learner)

    def _is_due(self, iteration: int) -> bool:
        if jax.process_index() != 0 or self._should_stop():
            return False
        config = self._task.config
        by_iterations, by_seconds = config.eval_every_n_iterations, config.eval_every_n_seconds
        return (by_iterations is not None and iteration % by_iterations == 0) or (
            by_seconds is not None and time.monotonic() - self._last_s >= by_seconds
        )

    def _should_stop(self) -> bool:
        return self._stop.signal is not None

    def _evaluate(self, progress: "Progress", learner: LearnerState) -> None:
        with self._no_failure_ends_the_run("evaluation"):
            evaluator = self._evaluator or Evaluator(self._task)
            self._evaluator = evaluator
            evaluation = evaluator(self._model(learner), self._should_stop)
            if evaluation is not None:
                self._last_iteration = progress.iteration
                record = {"iteration": progress.iteration, "env_steps": progress.env_steps, **evaluation.record()}
                self._writer.write_evaluation(record)
                line = evaluation_line(progress.iteration, evaluation)
                print_line(line)
                logger.info(line)
        # From the end of one to the start of the next, or slow ones would follow one upon another.
        self._last_s = time.monotonic()

    def _model(self, learner: LearnerState) -> NormalizedActorCritic:
        static = static_leaves(self._task.initial_learner()[1])
        return NormalizedActorCritic(eqx.combine(learner.params, static), learner.normalizer)

    @contextlib.contextmanager
    def _no_failure_ends_the_run(self, kind: str) -> Iterator[None]:
        """Logs the first failure of its kind as a warning, and counts all."""
        try:
            yield
        except Exception as error:
            self.num_failures[kind] += 1
            if self.num_failures[kind] == 1:
                logger.warning("A failed %s does not end the run.", kind, exc_info=True)
                print_line(f"Warning: {kind} failed, the run goes on: {error}")
