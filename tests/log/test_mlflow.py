"""MLflow's record of a run without a server."""

import shlex

import pytest

import ksim
from ksim.log.logger import RunInfo
from tests.log.test_logger import METRICS
from tests.log.test_wandb import log_evaluation

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # of MLflow's own


def test_local_run_has_the_options_and_what_was_logged_and_is_resumed_under_its_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it keeps artifacts
    mlflow = pytest.importorskip("mlflow")
    uri, ids = f"sqlite:///{tmp_path / 'mlflow.db'}", []
    for iteration, num_envs in ((0, 16), (2, 32)):
        logger = ksim.MlflowLogger(uri, tags={"robot": "mine"}, checkpoints="all" if iteration else "last")
        config = {"num_envs": num_envs, "task": "x" * 10_000} | {f"option_{i}": i for i in range(200)}
        logger.open(
            RunInfo(run_dir=tmp_path, task_name="dog", config=config, is_resumed=iteration > 0, iteration=iteration)
        )
        logger.log(METRICS | {f"device_{i}": 0.0 for i in range(1500)}, iteration + 1, 32)
        log_evaluation(logger, tmp_path, iteration + 2)
        assert logger.dashboards() == {"MLflow": f"mlflow ui --backend-store-uri {shlex.quote(uri)}"}
        logger.close()
        ids.append((tmp_path / "mlflow_id").read_text())
    assert ids[0] == ids[1]
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(ids[0])
    assert (run.info.run_name, run.info.status, run.data.tags["robot"]) == (tmp_path.name, "FINISHED", "mine")
    assert client.get_experiment_by_name("dog").experiment_id == run.info.experiment_id
    assert len(run.data.params) == 202
    assert run.data.params["num_envs"] == "16"  # MLflow changes no value
    history = lambda name: [(metric.step, metric.value) for metric in client.get_metric_history(ids[0], name)]
    assert history("rollout/reward") == [(1, 0.5), (3, 0.5)]
    assert history("eval/return_low") == [(2, 0.5), (4, 0.5)]
    assert history("device_1499") == [(1, 0.0), (3, 0.0)]
    assert "episode/return" not in run.data.metrics  # it was not finite
    artifacts = lambda path: [x.path.removeprefix(f"{path}/") for x in client.list_artifacts(ids[0], path)]
    assert artifacts("videos") == ["video.mp4"]
    assert artifacts("plots") == ["iteration_2", "iteration_4"]
    assert artifacts("plots/iteration_4") == ["gait.png"]
    assert artifacts("checkpoints") == ["2", "3", "4"]  # the last of the first part, all of the second
    assert (tmp_path / client.download_artifacts(ids[0], "checkpoints/3/document.json")).read_text() == "3"
