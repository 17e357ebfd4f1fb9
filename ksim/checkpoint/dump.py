"""Dumps for debugging non-finite numbers: the state before the iteration in which they appeared."""

import logging
import math
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import DUMPS, list_checkpoints, write_checkpoint
from ksim.checkpoint.snapshot import host_state, named_arrays, run_document
from ksim.config import as_argument
from ksim.host.terminal import print_warning
from ksim.parallel.multihost import is_main_process
from ksim.rollout.unroll import NON_FINITE
from ksim.task.rl import RLTask
from ksim.types import TrainState

logger = logging.getLogger(__name__)

MAX_DUMPS = 8
"""Most dumps in the directory of a run, however often the run is resumed."""
KINDS = {"policy/bad_updates": "non-finite updates, which were skipped", NON_FINITE: "non-finite environment steps"}
"""Metrics that count non-finite updates and steps, with the words for them in messages."""


class NanDump:
    """Dumps of the state before the first iteration with a non-finite update, and the first with a non-finite env step.

    A training step depends only on the state, so a replay repeats the failure: see `ksim.checkpoint.replay`.
    """

    def __init__(self, task: RLTask[Any], run_dir: Path) -> None:
        self._task, self._run_dir = task, run_dir
        self._seen: set[str] = set()
        self._last: Path | None = None

    def after_iteration(
        self, iteration: int, before: TrainState, record_before: dict[str, Any], metrics: dict[str, float]
    ) -> None:
        """Checks the metrics of an iteration if `dump_on_nan` is set, and writes a dump if needed.

        All processes must call this.

        Args:
            iteration: The number of the iteration, from 1.
            before: The placed state before the iteration.
            record_before: `Progress.record` before the iteration, so that a run can resume from the dump.
            metrics: Metrics of the iteration, the same in all processes.
        """
        if not self._task.config.dump_on_nan:
            return
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
                write_checkpoint(path, {**named_arrays(state), **self._task.kept_arrays()}, document)
                print_warning(
                    f"Iteration {iteration} had {what}. The state before it is saved; to replay it: "
                    f"run_mode=replay {as_argument('checkpoint', str(path))}"
                )
            self._last = path
        except Exception as error:
            logger.warning("The state before iteration %d cannot be dumped.", iteration, exc_info=error)

    def hint(self) -> str:
        """A sentence with the path of the dump, for the message of a failed run; empty without a dump."""
        return "" if self._last is None else f" The first such iteration can be replayed: {self._last}."
