"""What Weights & Biases keeps of a run without a network."""

import json

import pytest

import ksim
from ksim.log.logger import RunInfo
from tests.log.test_loggers import METRICS, RECORD

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


def test_offline_run_has_the_options_and_what_was_logged_and_is_resumed_under_its_id(tmp_path):
    pytest.importorskip("wandb")
    ids = []
    for iteration in (0, 2):
        logger = ksim.WandbLogger(mode="offline", tags=["mine"])
        info = RunInfo(
            run_dir=tmp_path, task_name="dog", config={"num_envs": 16}, is_resumed=iteration > 0, iteration=iteration
        )
        logger.open(info)
        logger.log(METRICS, iteration + 1, 32)
        logger.log(METRICS | {"rollout/reward": 0.75}, iteration + 2, 64)
        logger.log_evaluation(RECORD | {"iteration": iteration + 2})
        logger.close()
        ids.append((tmp_path / "wandb_id").read_text())
    assert ids[0] == ids[1]
    runs, steps = [], {}
    for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb"):
        for record in records_of(path):
            if record.HasField("run"):
                runs.append(record.run)
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
