"""A run's events as TensorBoard reads them."""

import json
import math
import shlex

import numpy as np
import pytest
from PIL import Image

import ksim
from ksim.log.logger import RunInfo
from tests.log.test_logger import METRICS, RECORD

FIGURES = {
    "return": {"mean": 1.0, "low": 0.5, "high": 1.5},
    "error/velocity/yaw_rate_rad_s": {"mean": 0.2, "low": 0.1, "high": 0.3},
    "length": {"mean": 50.0, "low": None, "high": None},  # of one episode
}
CONFIG = {"num_envs": 16, "learning_rate": 1e-3, "plots": True, "actor_sizes": [8, 8], "std": None, "engine": "mjx"}
SHAPING = [name for name in CONFIG if name != "plots"]


def log_run(run_dir, *, part=0):
    """Logs one iteration and one evaluation, of the part of a run that begins after so many iterations."""
    logger, step = ksim.TensorBoardLogger(), 32 * (part + 1)
    start = {"is_resumed": part > 0, "iteration": part, "env_steps": 32 * part}
    logger.open(RunInfo(run_dir=run_dir, task_name="dog", config=CONFIG, hyperparameters=SHAPING, **start))
    logger.log(METRICS | {"episode/return": 2.0 + part}, part + 1, step)
    logger.log_evaluation(RECORD | {"figures": FIGURES, "iteration": part + 1, "env_steps": step})
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "green", "blue")]
    frames[0].save(run_dir / "video.gif", save_all=True, append_images=frames[1:])
    frames[0].save(run_dir / "gait.png")
    (run_dir / "video.mp4").write_bytes(b"not for TensorBoard")
    files = {name: run_dir / name for name in ("video.mp4", "video.gif", "gait.png")}
    logger.log_files(files, part + 1, step)
    actions = np.array([-1.0, 0.0, 0.0, math.nan, 3.0], np.float32)
    logger.log_samples({"action/hip": actions, "action/knee": np.full(3, math.nan)}, part + 1, step)
    logger.close()


@pytest.fixture
def multiplexer(tmp_path):
    """TensorBoard's data of two runs, one of which was resumed after its first iteration."""
    pytest.importorskip("tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_multiplexer")
    for name, parts in (("one", (0, 1)), ("two", (0,))):
        (tmp_path / name).mkdir()
        for part in parts:
            log_run(tmp_path / name, part=part)
    return events.EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()


def tags(multiplexer, plugin):
    return set(multiplexer.PluginRunToTagToContent(plugin)["one"])


def test_intervals_are_a_chart_for_each_figure_and_a_group_of_tags_of_their_own(multiplexer):
    scalars = tags(multiplexer, "scalars")
    in_eval = {"eval/return", "eval/length", "eval/error/velocity/yaw_rate_rad_s"}
    assert {tag for tag in scalars if tag.startswith("eval/")} == in_eval
    plugin = pytest.importorskip("tensorboard.plugins.custom_scalar.custom_scalars_plugin")
    layout = json.loads(plugin_of(plugin.CustomScalarsPlugin, multiplexer).layout_impl(request(), ""))
    categories = {category["title"]: category["chart"] for category in layout["category"]}
    charts = {chart["title"]: chart["margin"]["series"] for chart in categories["evaluation, 95 % confidence"]}
    assert list(charts) == ["return", "error/velocity/yaw_rate_rad_s"]
    assert charts["return"] == [
        {"value": "eval/return", "lower": "eval_interval/return_low", "upper": "eval_interval/return_high"}
    ]
    assert {tag for series in charts.values() for tag in series[0].values()} <= scalars
    lines = {chart["title"]: chart["multiline"]["tag"] for chart in categories["training"]}
    assert lines["return in training and evaluation"] == ["episode/return", "eval/return"]


def request():
    return pytest.importorskip("tensorboard.context").RequestContext()


def plugin_of(plugin, multiplexer):
    """A plugin of TensorBoard over what it has read."""
    base = pytest.importorskip("tensorboard.plugins.base_plugin")
    provider = pytest.importorskip("tensorboard.backend.event_processing.data_provider")
    context = base.TBContext(data_provider=provider.MultiplexerDataProvider(multiplexer, ""))
    return plugin(context)


def test_options_are_hyperparameters_and_runs_are_compared_by_their_last_evaluation(multiplexer):
    backend = pytest.importorskip("tensorboard.plugins.hparams.backend_context")
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    context = plugin_of(backend.Context, multiplexer)
    content = context.hparams_metadata(request(), "")
    assert set(content) == {"one", "two"}
    start = metadata.parse_session_start_info_plugin_data(content["one"][metadata.SESSION_START_INFO_TAG])
    options = {name: getattr(x, x.WhichOneof("kind")) for name, x in start.hparams.items()}
    assert options == {name: CONFIG[name] for name in SHAPING} | {"actor_sizes": "[8, 8]", "std": "null"}
    experiment = metadata.parse_experiment_plugin_data(content["one"][metadata.EXPERIMENT_TAG])
    assert {x.name for x in experiment.hparam_infos} == set(SHAPING)
    assert "eval/return" in {x.name.tag for x in experiment.metric_infos}


def test_videos_and_plots_are_images_and_actions_histograms(multiplexer, tmp_path):
    assert tags(multiplexer, "images") == {"eval/video", "eval/gait"}
    video = multiplexer.Tensors("one", "eval/video")
    assert [x.step for x in video] == [32, 64]
    width, height, gif = video[0].tensor_proto.string_val
    assert (width, height) == (b"8", b"6")
    assert gif == (tmp_path / "one" / "video.gif").read_bytes()
    # Knees have only NaN.
    assert tags(multiplexer, "histograms") == {"action/hip"}
    util = pytest.importorskip("tensorboard.util.tensor_util")
    left, right, count = util.make_ndarray(multiplexer.Tensors("one", "action/hip")[0].tensor_proto).T
    assert count.sum() == 4
    assert (left.min(), right.max()) == (-1.0, 3.0)


def test_resumed_run_is_one_run_whose_void_events_are_gone(multiplexer, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_multiplexer")
    log_run(tmp_path / "one", part=1)  # once more, from the checkpoint after the first iteration
    again = events.EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    util = pytest.importorskip("tensorboard.util.tensor_util")
    values = [(x.step, float(util.make_ndarray(x.tensor_proto))) for x in again.Tensors("one", "episode/return")]
    assert values == [(32, 2.0), (64, 3.0)]
    assert tags(again, "hparams") == tags(multiplexer, "hparams")


def test_command_that_opens_it_is_quoted_and_installs_it_where_it_is_not(tmp_path, monkeypatch):
    logger = ksim.TensorBoardLogger()
    logger.open(RunInfo(run_dir=tmp_path / "my runs", task_name="dog", config={}))
    command = f"tensorboard --logdir {shlex.quote(str(tmp_path / 'my runs'))}"
    for found, expected in ((None, f"pip install tensorboard && {command}"), (object(), command)):
        monkeypatch.setattr("importlib.util.find_spec", lambda _, found=found: found)
        assert logger.dashboards() == {"TensorBoard": expected}
