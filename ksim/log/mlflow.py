"""MLflow."""

from ksim.host.extras import import_extra
from ksim.log.logger import AbstractLogger

_ID = "mlflow_id"
"""The file of a run's directory with the id of its MLflow run."""
_MOST_PARAMS = 100
"""What MLflow takes at once."""


class MlflowLogger(AbstractLogger):
    """Logs to MLflow over iterations; needs the extra `mlflow`. A resumed run goes on in the same MLflow run.

    Without a server, give a directory: `MlflowLogger("mlruns")`.
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str | None = None, **tags: str) -> None:
        """Makes the logger.

        Args:
            tracking_uri: The server's address, or a local directory; by default what MLFLOW_TRACKING_URI says.
            experiment: The experiment, made if there is none of that name; by default the task's name.
            tags: Tags of the run.

        Raises:
            ConfigError: MLflow is not installed.
        """
        self._mlflow = import_extra("mlflow", "mlflow", "MlflowLogger")
        self._tracking_uri, self._experiment, self._tags = tracking_uri, experiment, tags
