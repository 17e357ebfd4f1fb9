"""The MLflow logger."""

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ksim.host.files import write_whole
from ksim.host.machine import import_extra
from ksim.log.logger import AbstractLogger, CheckpointUploads, RunInfo, evaluation_scalars, finite, resumed_id

_ID = "mlflow_id"
"""File in a run's directory with the id of its MLflow run."""
_MOST_AT_ONCE = {"metrics": 1000, "params": 100}
_LONGEST_PARAM = 6000


class MlflowLogger(AbstractLogger):
    """Logs to MLflow over iterations; needs the extra `mlflow`. A resumed run continues in the same MLflow run.

    Videos, plots and checkpoints are artifacts. Without a server, pass a local database:
    `MlflowLogger("sqlite:///mlflow.db")`. Its artifacts are in `mlruns/` of the directory where the run was started.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        checkpoints: str = "last",
    ) -> None:
        """Makes the logger.

        Args:
            tracking_uri: The server's address, or a database; by default the value of MLFLOW_TRACKING_URI.
            experiment: The experiment, created if it does not exist; by default the task's name.
            name: The run's name; by default the name of the run's directory.
            checkpoints: Checkpoints to upload as artifacts: `last` (at the end of the run), `all` or `none`.

        Raises:
            ConfigError: MLflow is not installed, or `checkpoints` is something else.
        """
        self._uploads = CheckpointUploads(checkpoints, self._upload)
        self._client_class = import_extra("mlflow", "mlflow", "MlflowLogger").MlflowClient
        self._entities = import_extra("mlflow.entities", "mlflow", "MlflowLogger")
        self._tracking_uri, self._experiment, self._name, self._tags = tracking_uri, experiment, name, tags
        self._id: str | None = None

    def open(self, run: RunInfo) -> None:
        self._client, path = self._client_class(tracking_uri=self._tracking_uri), run.run_dir / _ID
        if run_id := resumed_id(run, path):
            self._id = run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        name = self._experiment or run.task_name
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        name, tags = self._name or run.run_dir.name, dict(self._tags or {})
        run_id = self._client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
        self._id = run_id
        write_whole(path, run_id)
        # Only once: MLflow does not accept another value later.
        self._log("params", [self._entities.Param(k, str(x)[:_LONGEST_PARAM]) for k, x in run.config.items()])

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._log_scalars(finite(metrics), iteration)

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._log_scalars(evaluation_scalars(record), record["iteration"])

    def log_files(self, files: Mapping[str, Path], iteration: int, env_steps: int) -> None:
        for path in files.values():
            if path.suffix == ".mp4":  # its name has the iteration
                self._client.log_artifact(self._id, str(path), "videos")
            elif path.suffix == ".png":
                self._client.log_artifact(self._id, str(path), f"plots/iteration_{iteration}")

    def log_checkpoint(self, path: Path, iteration: int) -> None:
        self._uploads.add(path, iteration)

    def dashboards(self) -> Mapping[str, str]:
        uri = self._client.tracking_uri
        if uri.startswith("sqlite:"):
            return {"MLflow": f"mlflow ui --backend-store-uri {shlex.quote(uri)}"}
        if uri.startswith("http") and "@" not in uri:  # never a password
            experiment_id = self._client.get_run(self._id).info.experiment_id
            return {"MLflow": f"{uri.rstrip('/')}/#/experiments/{experiment_id}/runs/{self._id}"}
        return {}

    def close(self) -> None:
        if self._id is None:
            return
        try:
            self._uploads.finish()
        finally:
            self._client.set_terminated(self._id)

    def _upload(self, path: Path, iteration: int) -> None:
        self._client.log_artifacts(self._id, str(path), f"checkpoints/{iteration}")

    def _log_scalars(self, values: Mapping[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        self._log("metrics", [self._entities.Metric(name, x, now_ms, step) for name, x in values.items()])

    def _log(self, kind: str, entities: list[Any]) -> None:
        most = _MOST_AT_ONCE[kind]
        for start in range(0, len(entities), most):
            self._client.log_batch(self._id, **{kind: entities[start : start + most]})
