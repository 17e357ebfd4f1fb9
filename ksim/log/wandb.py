"""The Weights & Biases logger."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ksim.host.files import write_whole
from ksim.host.machine import import_extra
from ksim.log.logger import AbstractLogger, CheckpointUploads, RunInfo, evaluation_scalars, finite, resumed_id

_ID = "wandb_id"
"""File in a run's directory with the id of its W&B run."""


class WandbLogger(AbstractLogger):
    """Logs to Weights & Biases over iterations; needs the extra `wandb`. A resumed run continues in the same W&B run.

    Videos, plots and histograms of actions are logged as well; checkpoints are artifacts. Without a network, set
    WANDB_MODE=offline or pass `mode="offline"`; `wandb sync` uploads the run later.
    """

    def __init__(self, project: str | None = None, *, checkpoints: str = "last", **options: Any) -> None:
        """Makes the logger.

        Args:
            project: The W&B project; by default the task's name.
            checkpoints: Checkpoints to upload as artifacts: `last` (at the end of the run), `all` or `none`.
            options: Further arguments of `wandb.init`, such as `entity`, `name`, `tags` and `mode`.

        Raises:
            ConfigError: wandb is not installed, or `checkpoints` is something else.
        """
        self._uploads = CheckpointUploads(checkpoints, self._upload)
        self._wandb = import_extra("wandb", "wandb", "WandbLogger")
        self._options = {"project": project} | options
        self._run: Any = None

    def open(self, run: RunInfo) -> None:
        path = run.run_dir / _ID
        options = {"project": run.task_name, "name": run.run_dir.name, "dir": run.run_dir, "config": dict(run.config)}
        if run_id := resumed_id(run, path):
            options |= {"id": run_id, "resume": "allow"}
        self._run = self._wandb.init(**options | {k: x for k, x in self._options.items() if x is not None})
        # W&B's own steps can only increase, but a resumed run repeats the iterations after its last checkpoint.
        self._run.define_metric("*", step_metric="iteration")
        write_whole(path, self._run.id)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._run.log(finite(metrics) | {"iteration": iteration})

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._run.log(evaluation_scalars(record) | {"iteration": record["iteration"]})

    def log_files(self, files: Mapping[str, Path], iteration: int, env_steps: int) -> None:
        media = {}
        for name, path in files.items():
            key = f"eval/{Path(name).stem}"
            if path.suffix == ".mp4":
                media[key] = self._wandb.Video(str(path), format="mp4")
            elif path.suffix == ".png":
                media[key] = self._wandb.Image(str(path))
        if media:
            self._run.log(media | {"iteration": iteration})

    def log_samples(self, samples: Mapping[str, np.ndarray], iteration: int, env_steps: int) -> None:
        histograms = {name: self._wandb.Histogram(x[np.isfinite(x)]) for name, x in samples.items()}
        self._run.log(histograms | {"iteration": iteration})

    def log_checkpoint(self, path: Path, iteration: int) -> None:
        self._uploads.add(path, iteration)

    def dashboards(self) -> Mapping[str, str]:
        if self._run.offline:
            # Matches all parts of a resumed run.
            parts = Path(self._run.sync_dir).with_name(f"offline-run-*-{self._run.id}")
            return {"Weights & Biases": f"wandb sync {shlex.quote(str(parts.parent))}/{parts.name}"}
        return {"Weights & Biases": self._run.url} if self._run.url else {}

    def close(self) -> None:
        if self._run is None:
            return
        try:
            self._uploads.finish()
        finally:
            self._run.finish()

    def _upload(self, path: Path, iteration: int) -> None:
        metadata = {"iteration": iteration}
        artifact = self._wandb.Artifact(f"checkpoint-{self._run.id}", type="model", metadata=metadata)
        # Copied, because the directory may be removed before W&B has uploaded it.
        artifact.add_dir(str(path), policy="mutable")
        self._run.log_artifact(artifact, aliases=["latest", f"iteration_{iteration}"])
