"""MLflow."""

import time
from collections.abc import Mapping
from typing import Any

from ksim.host.extras import import_extra
from ksim.host.files import whole_file
from ksim.log.logger import AbstractLogger, RunInfo, evaluation_scalars, finite, resumed_id

_ID = "mlflow_id"
"""The file of a run's directory with the id of its MLflow run."""
_MOST_AT_ONCE = {"metrics": 1000, "params": 100}
_LONGEST_PARAM = 6000


class MlflowLogger(AbstractLogger):
    """Logs to MLflow over iterations; needs the extra `mlflow`. A resumed run continues in the same MLflow run.

    Without a server, give a local database: `MlflowLogger("sqlite:///mlflow.db")`.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Makes the logger.

        Args:
            tracking_uri: The server's address, or a database; by default what MLFLOW_TRACKING_URI says.
            experiment: The experiment, made if there is none of that name; by default the task's name.
            name: The run's name; by default that of the run's directory.
            tags: Tags of the run.

        Raises:
            ConfigError: MLflow is not installed.
        """
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
        with whole_file(path) as temporary:
            temporary.write_text(run_id)
        # Once: MLflow takes no other value later.
        self._log("params", [self._entities.Param(k, str(x)[:_LONGEST_PARAM]) for k, x in run.config.items()])

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._log_scalars(finite(metrics), iteration)

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        self._log_scalars(evaluation_scalars(record), record["iteration"])

    def close(self) -> None:
        if self._id is not None:
            self._client.set_terminated(self._id)

    def _log_scalars(self, values: Mapping[str, float], step: int) -> None:
        now_ms = int(time.time() * 1000)
        self._log("metrics", [self._entities.Metric(name, x, now_ms, step) for name, x in values.items()])

    def _log(self, kind: str, entities: list[Any]) -> None:
        most = _MOST_AT_ONCE[kind]
        for start in range(0, len(entities), most):
            self._client.log_batch(self._id, **{kind: entities[start : start + most]})
