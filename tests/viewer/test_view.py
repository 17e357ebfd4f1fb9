import os
import signal

import glfw
import pytest

from ksim.cli import launch
from ksim.errors import ConfigError
from ksim.viewer.controls import CommandNumber
from ksim.viewer.native import Keyboard, NativeFrontend
from ksim.viewer.view import pick_viewer
from tests.support.checkpoints import save_learner
from tests.support.tasks import BipedConfig, BipedTask, PointMassConfig, PointMassTask, point_mass_task


class CommandedSession:
    """The part of a session that keys change: four numbers, and what was asked."""

    def __init__(self):
        self.numbers = [CommandNumber("c", i, str(i), (-1.0, 1.0)) for i in range(4)]
        self.values = [0, 0, 0, 0]
        self.paused = False
        self.asked = []

    def nudge(self, number, num_steps):
        self.values[number.index] += num_steps

    def set_to_start(self):
        self.values = [0, 0, 0, 0]

    def ask_reset(self):
        self.asked.append("reset")

    def ask_push(self):
        self.asked.append("push")


def press(keyboard, *keys):
    for key in keys:
        keyboard(key)


def test_arrow_and_digit_keys_change_the_commands_numbers():
    session = CommandedSession()
    keyboard = Keyboard(session)
    press(keyboard, glfw.KEY_UP, glfw.KEY_UP, glfw.KEY_DOWN)
    assert session.values == [1, 0, 0, 0]
    press(keyboard, glfw.KEY_7, glfw.KEY_RIGHT, glfw.KEY_RIGHT, glfw.KEY_LEFT)
    assert session.values == [1, 1, -1, 0]
    press(keyboard, glfw.KEY_9, glfw.KEY_9)
    assert session.values == [1, -1, -1, 0]
    press(keyboard, glfw.KEY_6)
    assert session.values == [0, 0, 0, 0]


def test_key_8_goes_through_the_numbers_by_threes():
    session = CommandedSession()
    keyboard = Keyboard(session)
    press(keyboard, glfw.KEY_8, glfw.KEY_UP, glfw.KEY_7, glfw.KEY_LEFT)
    assert session.values == [0, 0, 0, 1]
    press(keyboard, glfw.KEY_8, glfw.KEY_UP)
    assert session.values == [1, 0, 0, 1]


def test_space_pauses_backspace_resets_and_enter_pushes():
    session = CommandedSession()
    keyboard = Keyboard(session)
    press(keyboard, glfw.KEY_SPACE, glfw.KEY_BACKSPACE, glfw.KEY_ENTER, glfw.KEY_W)
    assert session.paused
    assert session.asked == ["reset", "push"]
    press(keyboard, glfw.KEY_SPACE)
    assert not session.paused


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "browser"),
        ("linux", {"DISPLAY": ":0"}, "native"),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, "native"),
        ("linux", {"DISPLAY": ""}, "browser"),
        ("darwin", {"DISPLAY": ":0"}, "browser"),
        ("win32", {}, "native"),
    ],
)
def test_auto_is_native_where_there_is_a_display(platform, variables, expected, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert pick_viewer("auto") == expected
    assert pick_viewer("browser") == "browser"
    assert pick_viewer("native") == "native"


def test_native_without_a_display_is_refused(monkeypatch):
    monkeypatch.setattr(glfw, "init", lambda: False)
    with pytest.raises(ConfigError, match="Choose viewer=browser"):
        NativeFrontend(CommandedSession())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run_mode=view"], "run_mode=view needs a policy. Add checkpoint=<run directory>."),
        (["run_mode=view", "checkpoint=nowhere"], "checkpoint ('nowhere') must be a run's directory with checkpoints"),
        (["viewer=window"], "viewer ('window') must be one of auto, native, browser."),
        (["viewer_port=0"], "viewer_port (0) must be from 1 to 65535."),
    ],
)
def test_view_of_what_cannot_be_seen_exits_with_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        launch(PointMassTask, PointMassConfig(), arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def run_dir(tmp_path):
    """A run directory with a checkpoint of the point mass that has learned nothing."""
    task = point_mass_task(num_devices=1, engine="mujoco")
    save_learner(task, tmp_path / "run", 1, task.initial_learner()[0])
    return tmp_path / "run"


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_view_without_viser_says_how_to_install_it(run_dir, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    task = point_mass_task(run_mode="view", checkpoint=str(run_dir), viewer="browser")
    with pytest.raises(ConfigError, match=r"pip install 'ksim-rl\[viewer\]'"):
        task.run()


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_view_of_an_environment_without_a_mujoco_model_is_refused(run_dir):
    task = point_mass_task(run_mode="view", checkpoint=str(run_dir), viewer="browser")
    with pytest.raises(ConfigError, match="The viewer needs a MuJoCo model to show, and PointMass has none"):
        task.run()


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_view_says_where_the_page_is_and_ends_with_ctrl_c(tmp_path, monkeypatch, capsys):
    task = BipedTask(BipedConfig(num_devices=1, engine="mujoco"))
    save_learner(task, tmp_path / "run", 1, task.initial_learner()[0])
    shown = []

    def interrupt_at_the_third_frame(self, real_time_factor):
        shown.append(self._session.episode_step)
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("ksim.viewer.browser.BrowserFrontend.show", interrupt_at_the_third_frame)
    config = BipedConfig(run_mode="view", checkpoint=str(tmp_path / "run"), viewer="browser", viewer_port=18280)
    assert BipedTask(config).run().exit_code == 128 + signal.SIGINT
    assert "Open http://127.0.0.1:18280 in a browser." in capsys.readouterr().out
    assert shown[:2] == [0, 1]  # later ones may be skipped on a slow machine
