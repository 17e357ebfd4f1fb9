"""What a run did, for the program that ran it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ksim.log.records import read_evaluations, read_metrics
from ksim.task.commands import command


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What `task.run()` did. What the run wrote is read from its directory when it is first asked for.

    Attributes:
        exit_code: 0; 75 if `max_runtime` stopped the run, to be resumed; 128 + n if signal n stopped it.
        run_dir: The run's directory; in other run modes, of the run whose checkpoint was read.
        checkpoint: The checkpoint that was read; None in `run_mode=train`.
        evaluation: What `run_mode=eval` found, as in evaluation.json; None in other run modes.
    """

    exit_code: int
    run_dir: Path
    checkpoint: Path | None = None
    evaluation: Mapping[str, Any] | None = None

    @functools.cached_property
    def metrics(self) -> dict[str, Float[np.ndarray, " iterations"] | Int[np.ndarray, " iterations"]]:
        """The lines of metrics.jsonl as columns, one row per iteration, those before the run was resumed included.

        NaN where a line has null or no such metric. Empty in other run modes than train, and without a `JsonlLogger`.

        Raises:
            OSError: The file cannot be read.
        """
        rows = [] if self.checkpoint is not None else read_metrics(self.run_dir)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _column([row.get(name) for row in rows]) for name in names}

    @functools.cached_property
    def evaluations(self) -> Sequence[Mapping[str, Any]]:
        """The lines of evaluations.jsonl, in their order; in `run_mode=eval`, its evaluation alone.

        Raises:
            OSError: The file cannot be read.
        """
        if self.evaluation is not None:
            return [self.evaluation]
        return [] if self.checkpoint is not None else read_evaluations(self.run_dir)

    @functools.cached_property
    def policy(self) -> Any:
        """The deterministic policy of the run's newest checkpoint, or of the one that was read: a `ksim.Policy`.

        Raises:
            ConfigError: There is no checkpoint, or `ksim.load_policy` needs the task's class for it.
        """
        return command("load_policy")(self.checkpoint or self.run_dir)


def _column(values: Sequence[float | None]) -> np.ndarray:
    if all(isinstance(value, int) for value in values):
        return np.asarray(values, np.int64)
    return np.asarray([np.nan if value is None else value for value in values], float)
