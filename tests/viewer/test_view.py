import json
import os
import signal
import threading
from types import SimpleNamespace

import equinox as eqx
import jax
import pytest
from websockets.sync.client import connect

from ksim.checkpoint.options import make_config
from ksim.checkpoint.run_dir import locked
from ksim.cli import launch
from ksim.errors import ConfigError
from ksim.policy.load import load_task_policy
from ksim.viewer.view import LOOK_EVERY_S, NewestPolicy, pick_viewer
from tests.support.checkpoints import save_learner
from tests.support.processes import exit_code
from tests.support.tasks import BipedConfig, BipedTask, PointMassConfig, PointMassTask, point_mass_task


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "browser"), ("linux", {"DISPLAY": ":0"}, "native"),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, "native"), ("linux", {"DISPLAY": ""}, "browser"),
        ("darwin", {"DISPLAY": ":0"}, "browser"), ("win32", {}, "native"),
    ],
)  # fmt: skip
def test_auto_is_native_where_there_is_a_display(platform, variables, expected, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, variables[name]) if name in variables else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", platform)
    assert pick_viewer("auto") == expected
    assert pick_viewer("browser") == "browser"
    assert pick_viewer("native") == "native"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run_mode=view"], "run_mode=view needs a policy. Add checkpoint=<run directory>."),
        (
            ["run_mode=view", "checkpoint=nowhere"],
            "checkpoint ('nowhere') does not exist. It must be a run's",
        ),
        (["viewer=window"], "viewer ('window') must be one of auto, native, browser."),
        (["viewer_port=0"], "viewer_port (0) must be from 1 to 65535."),
    ],
)
def test_view_of_what_cannot_be_seen_exits_with_2(arguments, words, capsys):
    assert exit_code(launch, PointMassTask, PointMassConfig(), arguments) == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def run_dir(tmp_path):
    """A run directory with a checkpoint of the point mass that has learned nothing."""
    task = point_mass_task(num_devices=1, engine="mujoco")
    save_learner(task, tmp_path / "run", 1, task.initial_learner().state)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("hides_viser", "words"),
    [
        (False, "The viewer needs a MuJoCo model to show, and PointMass has none"),
        (True, r"pip install 'ksim-rl\[viewer\]'"),
    ],
)
def test_view_without_a_mujoco_model_or_viser_is_refused(run_dir, hides_viser, words, monkeypatch):
    if hides_viser:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    task = point_mass_task(run_mode="view", checkpoint=str(run_dir), viewer="browser")
    with pytest.raises(ConfigError, match=words):
        task.run()


def test_view_says_where_the_page_is_and_ends_with_ctrl_c(tmp_path, monkeypatch, capsys):
    task = BipedTask(BipedConfig(num_devices=1, engine="mujoco"))
    save_learner(task, tmp_path / "run", 1, task.initial_learner().state)
    shown = []

    def interrupt_at_the_third_frame(self, real_time_factor):
        shown.append(self._session.episode_step)
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    rested = []

    def load(*args):
        # The page is there before the policy, and shows the robot in its first pose.
        with connect("ws://127.0.0.1:18280/ksim/controls") as page:
            rested.append(json.loads(page.recv(timeout=10)))
        return load_task_policy(*args)

    monkeypatch.setattr("ksim.viewer.view.load_task_policy", load)
    monkeypatch.setattr("ksim.viewer.browser.BrowserFrontend.show", interrupt_at_the_third_frame)
    config = BipedConfig(run_mode="view", checkpoint=str(tmp_path / "run"), viewer="browser", viewer_port=18280)
    assert BipedTask(config).run().exit_code == 0
    output = capsys.readouterr().out
    assert "Open http://127.0.0.1:18280 in a browser." in output
    assert output.endswith("Showing the policy of iteration 1.\n")
    assert [state["mode"] for state in rested] == ["preparing"]
    assert shown[:2] == [0, 1]  # later ones may be skipped on a slow machine


def test_newer_checkpoint_of_a_run_in_progress_is_shown_and_a_damaged_one_is_not(tmp_path):
    task = BipedTask(BipedConfig(num_devices=1, engine="mujoco"))
    learner, run_dir = task.initial_learner().state, tmp_path / "run"
    save_learner(task, run_dir, 1, learner)
    viewing = BipedTask(BipedConfig(run_mode="view", checkpoint=str(run_dir), num_devices=1, engine="mujoco"))
    path, context, model = load_task_policy(viewing)
    session, frontend, now = SimpleNamespace(model=model), SimpleNamespace(note=""), [0.0]
    feed = NewestPolicy(context, path, session, frontend, clock=lambda: now[0])
    trained = eqx.tree_at(lambda learner: learner.params, learner, jax.tree.map(lambda x: x + 1, learner.params))
    save_learner(task, run_dir, 2, trained)
    feed.update()
    assert frontend.note == "policy of iteration 1"  # not yet: it looks every LOOK_EVERY_S
    now[0] = LOOK_EVERY_S
    feed.update()
    assert (frontend.note, feed.path.name) == ("policy of iteration 2", "2")
    assert not eqx.tree_equal(session.model, model)

    newest = session.model
    save_learner(task, run_dir, 3, learner)
    (run_dir / "checkpoints" / "3" / "document.json").write_text("{")
    now[0] *= 2
    feed.update()
    assert frontend.note.startswith("policy of iteration 2, as the newest cannot be read: ")
    assert session.model is newest


def test_view_of_a_run_in_progress_waits_for_its_first_checkpoint(tmp_path, capsys):
    task = BipedTask(BipedConfig(num_devices=1, engine="mujoco"))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").touch()
    argv = ["run_mode=view", f"checkpoint={run_dir}"]
    with pytest.raises(ConfigError, match="must be a run's directory with checkpoints"):  # nobody trains there
        make_config(BipedConfig(), argv, "biped_task")
    with locked(run_dir):
        save = threading.Timer(1.0, save_learner, (task, run_dir, 1, task.initial_learner().state))
        save.start()
        assert make_config(BipedConfig(), argv, "biped_task").engine == "mujoco"  # an option of the run
        save.join()
    assert f"The run {run_dir} has no checkpoint yet." in " ".join(capsys.readouterr().out.split())
