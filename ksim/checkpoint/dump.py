"""Evidence of numbers that are not finite: the state before the iteration in which they came up."""

import logging
import math
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import list_checkpoints, write_checkpoint
from ksim.checkpoint.snapshot import host_state, named_arrays, run_document
from ksim.host.terminal import print_warning
from ksim.parallel.multihost import is_main_process
from ksim.rollout.unroll import NOT_FINITE
from ksim.task.rl import RLTask
from ksim.types import TrainState

logger = logging.getLogger(__name__)

DUMPS = "dumps"
"""Where a run's directory holds them, each under the number of the iteration that it leads to."""
MAX_DUMPS = 8
"""Most dumps in the directory of a run, however often the run is resumed."""
KINDS = {"policy/bad_updates": "non-finite updates, which were skipped", NOT_FINITE: "non-finite environment steps"}
"""Metrics that count what was not finite, and what it was."""


class NanDump:
    """Dumps the state before the first iteration in which an update was not finite, and before the first with a step.

    A training step is a function of the state alone, so that a dump shows the same again: see `ksim.checkpoint.replay`.
    """

    def __init__(self, task: RLTask[Any], run_dir: Path) -> None:
        self._task, self._run_dir = task, run_dir
        self._seen: set[str] = set()
        self._last: Path | None = None

    def after_iteration(
        self, iteration: int, before: TrainState, record_before: dict[str, Any], metrics: dict[str, float]
    ) -> None:
        """Looks at the metrics of an iteration; to be called by all processes alike.

        Args:
            iteration: Its number, from 1.
            before: The placed state before it.
            record_before: What `Progress.record` said before it, so that a run can go on from the dump.
            metrics: What it reported, the same in all processes.
        """
        new = [name for name in KINDS if metrics.get(name) and name not in self._seen]
        self._seen.update(new)
        path = self._run_dir / DUMPS / str(iteration)
        if not new:
            return
        state = host_state(self._task, before)
        what = " and ".join(KINDS[name] for name in new)
        if not is_main_process():
            return
        figures = {name: x if math.isfinite(x) else None for name, x in metrics.items()}
        document = run_document(self._task, iteration=iteration - 1, progress=record_before, metrics=figures)
        try:
            if not path.exists():
                if len(list_checkpoints(path.parent)) >= MAX_DUMPS:
                    return
                write_checkpoint(path, named_arrays(state), document)
                print_warning(
                    f"Iteration {iteration} had {what}. The state before it is saved; to replay it: "
                    f"run_mode=replay checkpoint={path}"
                )
            self._last = path
        except Exception as error:
            logger.warning("The state before iteration %d cannot be dumped.", iteration, exc_info=error)

    def hint(self) -> str:
        """Where to look, for the message of a run that ends."""
        return "" if self._last is None else f" The first such iteration can be replayed: {self._last}."
