"""Weights & Biases."""

from collections.abc import Mapping
from typing import Any

from ksim.host.extras import import_extra
from ksim.log.logger import AbstractLogger, RunInfo, evaluation_scalars, finite

_ID = "wandb_id"
"""The file of a run's directory with the id of its W&B run."""


class WandbLogger(AbstractLogger):
    """Logs to Weights & Biases over iterations; needs the extra `wandb`. A resumed run goes on in the same W&B run.

    Without a network, set WANDB_MODE=offline, or give `mode="offline"`; `wandb sync` uploads the run later.
    """

    def __init__(self, project: str | None = None, **options: Any) -> None:
        """Makes the logger.

        Args:
            project: The W&B project; by default the task's name.
            options: More of what `wandb.init` takes, such as `entity`, `name`, `tags` and `mode`.

        Raises:
            ConfigError: wandb is not installed.
        """
        self._wandb = import_extra("wandb", "wandb", "WandbLogger")
        self._options = {"project": project} | options

    def open(self, run: RunInfo) -> None:
        path = run.run_dir / _ID
        options = {"project": run.task_name, "name": run.run_dir.name, "dir": run.run_dir, "config": dict(run.config)}
        if run.is_resumed and path.exists():
            options |= {"id": path.read_text(), "resume": "allow"}
        self._run = self._wandb.init(**options | {k: x for k, x in self._options.items() if x is not None})
        path.write_text(self._run.id)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._run.log(finite(metrics), step=iteration)

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._run.log(evaluation_scalars(record), step=record["iteration"])

    def close(self) -> None:
        self._run.finish()
