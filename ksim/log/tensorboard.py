"""TensorBoard events."""

from collections.abc import Mapping
from typing import Any

from ksim.log.logger import AbstractLogger, RunInfo, evaluation_scalars, finite


class TensorBoardLogger(AbstractLogger):
    """Writes TensorBoard events over environment steps. Metrics that are not finite are left out."""

    def open(self, run: RunInfo) -> None:
        from ksim.log.event_file import EventFile  # noqa: PLC0415 - tensorboardX is slow to import

        # A run that was stopped before its first checkpoint starts again: all its events are void.
        self._events = EventFile(run.run_dir, first_step=run.env_steps + 1 if run.is_resumed else 0)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._events.write(finite(metrics), env_steps)

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._events.write(evaluation_scalars(record), record["env_steps"])

    def close(self) -> None:
        self._events.close()
