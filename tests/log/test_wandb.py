"""The record of Weights & Biases of a run without a network."""

import glob
import json

import numpy as np
import pytest
from PIL import Image

import ksim
from ksim.log.logger import RunInfo
from tests.log.test_logger import METRICS, RECORD

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # of wandb's own
BLOCK = 2**15


def records_of(path):
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    content, place, data = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        data += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield proto.Record.FromString(data)
            data = b""


def log_evaluation(logger, run_dir, iteration):
    """Logs an evaluation with all that belongs to it, and two checkpoints."""
    logger.log_evaluation(RECORD | {"iteration": iteration})
    (run_dir / "video.mp4").write_bytes(b"a video")
    Image.new("RGB", (4, 4)).save(run_dir / "gait.png")
    files = {"video.mp4": run_dir / "video.mp4", "gait.png": run_dir / "gait.png", "video.gif": run_dir / "none.gif"}
    logger.log_files(files, iteration, 64)
    logger.log_samples({"action/hip": np.array([0.0, 0.0, 1.0, np.nan])}, iteration, 64)
    for saved in (iteration - 1, iteration):
        path = run_dir / "checkpoints" / str(saved)
        path.mkdir(parents=True)
        (path / "document.json").write_text(str(saved))
        logger.log_checkpoint(path, saved)


def test_offline_run_has_the_options_and_what_was_logged_and_is_resumed_under_its_id(tmp_path):
    wandb = pytest.importorskip("wandb")
    ids, dashboards = [], []
    for iteration in (0, 2):
        logger = ksim.WandbLogger(mode="offline", tags=["mine"])
        info = RunInfo(
            run_dir=tmp_path, task_name="dog", config={"num_envs": 16}, is_resumed=iteration > 0, iteration=iteration
        )
        logger.open(info)
        logger.log(METRICS, iteration + 1, 32)
        logger.log(METRICS | {"rollout/reward": 0.75}, iteration + 2, 64)
        log_evaluation(logger, tmp_path, iteration + 2)
        dashboards.append(logger.dashboards()["Weights & Biases"])
        logger.close()
        ids.append((tmp_path / "wandb_id").read_text())
    wandb.teardown()  # its process may still be writing
    assert ids[0] == ids[1]
    # One command for all parts.
    command, pattern = dashboards[1].rsplit(" ", 1)
    assert (dashboards[0], command) == (dashboards[1], "wandb sync")
    assert len(glob.glob(pattern)) == 2
    runs, steps, artifacts = [], {}, []
    for path in sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records_of(path):
            if record.HasField("run"):
                runs.append(record.run)
            if record.HasField("request") and record.request.HasField("log_artifact"):
                artifacts.append(record.request.log_artifact.artifact)
            if record.HasField("artifact"):
                artifacts.append(record.artifact)
            logged = {x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in record.history.item}
            for name, value in logged.items():
                steps.setdefault(name, {})[logged["iteration"]] = value
    assert {(run.run_id, run.project, run.display_name, *run.tags) for run in runs} == {
        (ids[0], "dog", tmp_path.name, "mine")
    }
    options = {item.key: item.value_json for run in runs for item in run.config.update}
    assert options["num_envs"] == "16"
    assert steps["rollout/reward"] == {1: 0.5, 2: 0.75, 3: 0.5, 4: 0.75}
    assert steps["eval/return"] == {2: 1.0, 4: 1.0}
    assert "episode/return" not in steps  # it was not finite
    assert steps["eval/video/_type"] == {2: "video-file", 4: "video-file"}
    assert steps["eval/gait/_type"] == {2: "image-file", 4: "image-file"}
    videos = tmp_path.glob("wandb/offline-run-*/files/media/videos/eval/*.mp4")
    assert [path.read_bytes() for path in videos] == [b"a video"] * 2
    assert sum(steps["action/hip/values"][4]) == 3
    # The last checkpoint of each part, under one name.
    assert [(x.name, x.type, set(x.aliases)) for x in artifacts] == [
        (f"checkpoint-{ids[0]}", "model", {"latest", f"iteration_{iteration}"}) for iteration in (2, 4)
    ]
    assert [[x.path for x in artifact.manifest.contents] for artifact in artifacts] == [["document.json"]] * 2
