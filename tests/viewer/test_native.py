import glfw
import pytest

from ksim.errors import ConfigError
from ksim.viewer.controls import CommandNumber
from ksim.viewer.native import Keyboard, NativeFrontend
from tests.support.viewed import CommandedSession


@pytest.fixture
def session():
    return CommandedSession(*(CommandNumber("c", i, str(i), (-1.0, 1.0)) for i in range(4)))


@pytest.fixture
def press(session):
    keyboard = Keyboard(session)
    return lambda *names: [keyboard(getattr(glfw, f"KEY_{name}")) for name in names]


def test_arrow_and_digit_keys_change_the_commands_numbers(session, press):
    press("UP", "UP", "DOWN")
    assert session.values == [1, 0, 0, 0]
    press("7", "RIGHT", "RIGHT", "LEFT")
    assert session.values == [1, 1, -1, 0]
    press("9", "9")
    assert session.values == [1, -1, -1, 0]
    press("6")
    assert session.values == [0, 0, 0, 0]


def test_key_8_goes_through_the_numbers_by_threes(session, press):
    press("8", "UP", "7", "LEFT")
    assert session.values == [0, 0, 0, 1]
    press("8", "UP")
    assert session.values == [1, 0, 0, 1]


def test_space_pauses_backspace_resets_and_enter_pushes(session, press):
    press("SPACE", "BACKSPACE", "ENTER", "W")
    assert session.paused
    assert session.calls == ["reset", "push"]
    press("SPACE")
    assert not session.paused


def test_native_without_a_display_is_refused(session, monkeypatch):
    monkeypatch.setattr(glfw, "init", lambda: False)
    with pytest.raises(ConfigError, match="Choose viewer=browser"):
        NativeFrontend(session)
