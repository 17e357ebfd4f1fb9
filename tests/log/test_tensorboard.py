"""A run's events as TensorBoard reads them."""

import json
import math
import re
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
    "survival": {"mean": 0.9, "low": 0.8, "high": 1.0},
    "length": {"mean": 50.0, "low": None, "high": None},  # of one episode
}
GAP = {"mean": -0.1, "low": -0.2, "high": 0.0}
CONFIG = {"num_envs": 16, "learning_rate": 1e-3, "plots": True, "actor_sizes": [8, 8], "std": None, "engine": "mjx"}
SHAPING = [name for name in CONFIG if name != "plots"]
TRAINING = METRICS | {
    "episode/return_max": 3.0,
    "episode/terminated_fraction": 0.5,
    "error/velocity/lin_vel_m_s": 0.4,
    "reward/alive": 1.0,
    "time/env_steps_per_s": 1000.0,
    "time/update_s": 0.1,
}


def log_run(run_dir, *, part=0, **changes):
    """Logs one iteration and one evaluation, of the part of a run that begins after so many iterations."""
    logger, step = ksim.TensorBoardLogger(), 32 * (part + 1)
    start = {"is_resumed": part > 0, "iteration": part, "env_steps": 32 * part}
    options = {"config": CONFIG | changes, "hyperparameters": SHAPING, "changed": list(changes)}
    logger.open(RunInfo(run_dir=run_dir, task_name="dog", **options, **start))
    logger.log(TRAINING | {"episode/return": 2.0 + part}, part + 1, step)
    record = {"figures": FIGURES, "return_gap": GAP, "iteration": part + 1, "env_steps": step}
    logger.log_evaluation(RECORD | record)
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
    for name, parts, changes in (("one", (0, 1), {}), ("two", (0,), {"learning_rate": 1e-4, "actor_sizes": [8]})):
        (tmp_path / name).mkdir()
        for part in parts:
            log_run(tmp_path / name, part=part, **changes)
    return events.EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()


def tags(multiplexer, plugin):
    return set(multiplexer.PluginRunToTagToContent(plugin)["one"])


def test_first_two_groups_are_errors_survival_return_and_speed_and_the_last_the_histograms_and_pictures(multiplexer):
    all_tags = sorted(tag for plugin in ("scalars", "images", "histograms") for tag in tags(multiplexer, plugin))
    groups = list(dict.fromkeys(tag.split("/")[0] for tag in all_tags))
    # TensorBoard sorts groups by name and opens the first two.
    assert groups[:2] == ["1 evaluation", "2 training"]
    assert groups[-2:] == ["values in the recorded episode", "videos and plots"]
    assert {tag for tag in all_tags if tag.startswith(("1 ", "2 "))} == {
        *("1 evaluation/error/velocity/yaw_rate_rad_s", "1 evaluation/return", "1 evaluation/survival"),
        *("2 training/episode/return", "2 training/episode/terminated_fraction"),
        *("2 training/error/velocity/lin_vel_m_s", "2 training/time/env_steps_per_s"),
    }
    # All others keep their names, and each is in one group only.
    assert {"eval/length", "eval/return_gap", "episode/return_max", "reward/alive", "time/update_s"} <= set(all_tags)
    assert not {"eval/return", "episode/return", "error/velocity/lin_vel_m_s"} & set(all_tags)


def test_intervals_are_a_chart_for_each_figure_and_a_group_of_tags_of_their_own(multiplexer):
    scalars = tags(multiplexer, "scalars")
    plugin = pytest.importorskip("tensorboard.plugins.custom_scalar.custom_scalars_plugin")
    layout = json.loads(plugin_of(plugin.CustomScalarsPlugin, multiplexer).layout_impl(request(), ""))
    categories = {category["title"]: category["chart"] for category in layout["category"]}
    charts = {chart["title"]: chart["margin"]["series"] for chart in categories["evaluation, 95 % confidence"]}
    # Shown from the last to the first. The length has no interval.
    assert list(charts) == ["return_gap", "return", "survival", "error/velocity/yaw_rate_rad_s"]
    assert charts["return"] == [
        {"value": "1 evaluation/return", "lower": "eval_interval/return_low", "upper": "eval_interval/return_high"}
    ]
    assert {tag for series in charts.values() for tag in series[0].values()} <= scalars
    lines = {chart["title"]: chart["multiline"]["tag"] for chart in categories["training"]}
    assert lines["return in training and evaluation"] == ["2 training/episode/return", "1 evaluation/return"]
    expressions = [expression for each in lines.values() for expression in each]
    assert [x for x in expressions if not any(re.match(x, tag) for tag in scalars)] == []


def request():
    return pytest.importorskip("tensorboard.context").RequestContext()


def plugin_of(plugin, multiplexer):
    """A plugin of TensorBoard over what it has read."""
    base = pytest.importorskip("tensorboard.plugins.base_plugin")
    provider = pytest.importorskip("tensorboard.backend.event_processing.data_provider")
    context = base.TBContext(data_provider=provider.MultiplexerDataProvider(multiplexer, ""))
    return plugin(context)


def experiment_of(multiplexer):
    """The options by run, and the columns of the HParams tab, as TensorBoard makes them from its data."""
    backend = pytest.importorskip("tensorboard.plugins.hparams.backend_context")
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    context = plugin_of(backend.Context, multiplexer)
    content = context.hparams_metadata(request(), "")
    starts = {
        run: metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG]).hparams
        for run, tags in content.items()
    }
    options = {
        run: {name: getattr(x, x.WhichOneof("kind")) for name, x in start.items()} for run, start in starts.items()
    }
    found = context.hparams_from_data_provider(request(), "", None)
    return options, context.experiment_from_metadata(request(), "", True, content, found)


def test_options_are_hyperparameters_led_by_the_changed_ones_and_by_those_that_differ_between_the_runs(multiplexer):
    options, experiment = experiment_of(multiplexer)
    shown = {name: CONFIG[name] for name in SHAPING} | {"actor_sizes": "[8, 8]", "std": "null"}
    assert options["one"] == shown | {"Changed options": "none"}
    changed = "learning_rate=0.0001, actor_sizes=[8]"
    assert options["two"] == shown | {"learning_rate": 1e-4, "actor_sizes": "[8]", "Changed options": changed}
    columns = [(x.name, x.differs) for x in experiment.hparam_infos]
    assert columns == [
        *(("Changed options", True), ("actor_sizes", True), ("learning_rate", True)),
        *(("engine", False), ("num_envs", False), ("std", False)),
    ]


def test_options_of_one_run_are_led_by_the_changed_ones(tmp_path):
    pytest.importorskip("tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_multiplexer")
    log_run(tmp_path, learning_rate=1e-4)
    _, experiment = experiment_of(events.EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload())
    assert experiment.hparam_infos[0].name == "Changed options"


def test_runs_are_compared_by_what_the_first_groups_show(multiplexer):
    _, experiment = experiment_of(multiplexer)
    # TensorBoard shows the first five.
    assert [x.name.tag for x in experiment.metric_infos][:5] == [
        *("1 evaluation/error/velocity/yaw_rate_rad_s", "1 evaluation/return", "1 evaluation/survival"),
        *("2 training/episode/return", "2 training/episode/terminated_fraction"),
    ]


def test_videos_and_plots_are_images_and_actions_histograms(multiplexer, tmp_path):
    assert tags(multiplexer, "images") == {"videos and plots/video", "videos and plots/gait"}
    video = multiplexer.Tensors("one", "videos and plots/video")
    assert [x.step for x in video] == [32, 64]
    width, height, gif = video[0].tensor_proto.string_val
    assert (width, height) == (b"8", b"6")
    assert gif == (tmp_path / "one" / "video.gif").read_bytes()
    # Knees have only NaN.
    assert tags(multiplexer, "histograms") == {"values in the recorded episode/action/hip"}
    util = pytest.importorskip("tensorboard.util.tensor_util")
    left, right, count = util.make_ndarray(
        multiplexer.Tensors("one", *tags(multiplexer, "histograms"))[0].tensor_proto
    ).T
    assert count.sum() == 4
    assert (left.min(), right.max()) == (-1.0, 3.0)


def test_resumed_run_is_one_run_whose_void_events_are_gone(multiplexer, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_multiplexer")
    log_run(tmp_path / "one", part=1)  # once more, from the checkpoint after the first iteration
    again = events.EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    util = pytest.importorskip("tensorboard.util.tensor_util")
    values = [
        (x.step, float(util.make_ndarray(x.tensor_proto))) for x in again.Tensors("one", "2 training/episode/return")
    ]
    assert values == [(32, 2.0), (64, 3.0)]
    assert tags(again, "hparams") == tags(multiplexer, "hparams")


def test_command_that_opens_it_is_quoted_and_installs_it_where_it_is_not(tmp_path, monkeypatch):
    logger = ksim.TensorBoardLogger()
    logger.open(RunInfo(run_dir=tmp_path / "my runs", task_name="dog", config={}))
    command = f"tensorboard --logdir {shlex.quote(str(tmp_path / 'my runs'))}"
    for found, expected in ((None, f"pip install tensorboard && {command}"), (object(), command)):
        monkeypatch.setattr("importlib.util.find_spec", lambda _, found=found: found)
        assert logger.dashboards() == {"TensorBoard": expected}
