"""Weights & Biases."""

from collections.abc import Mapping
from typing import Any

from ksim.host.extras import import_extra
from ksim.host.files import whole_file
from ksim.log.logger import AbstractLogger, RunInfo, evaluation_scalars, finite, resumed_id

_ID = "wandb_id"
"""The file of a run's directory with the id of its W&B run."""


class WandbLogger(AbstractLogger):
    """Logs to Weights & Biases over iterations; needs the extra `wandb`. A resumed run continues in the same W&B run.

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
        self._run: Any = None

    def open(self, run: RunInfo) -> None:
        path = run.run_dir / _ID
        options = {"project": run.task_name, "name": run.run_dir.name, "dir": run.run_dir, "config": dict(run.config)}
        if run_id := resumed_id(run, path):
            options |= {"id": run_id, "resume": "allow"}
        self._run = self._wandb.init(**options | {k: x for k, x in self._options.items() if x is not None})
        # W&B's own steps only ever rise, and iterations after the last checkpoint are done again.
        self._run.define_metric("*", step_metric="iteration")
        with whole_file(path) as temporary:
            temporary.write_text(self._run.id)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._run.log(finite(metrics) | {"iteration": iteration})

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._run.log(evaluation_scalars(record) | {"iteration": record["iteration"]})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
