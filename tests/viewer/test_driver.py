import pytest

from ksim.viewer.controls import CommandNumber
from ksim.viewer.frontend import Driver, deflected

HEIGHT = CommandNumber("height", 0, "height, m", (0.6, 0.8))
FORWARD = CommandNumber("velocity", 0, "forward, m/s", (-0.5, 1.0))
LEFTWARD = CommandNumber("velocity", 1, "leftward, m/s", (-0.3, 0.3))


class CommandedSession:
    """The part of a session that a driver changes."""

    velocity_command: str | None = "velocity"

    def __init__(self):
        self.numbers = [HEIGHT, FORWARD, LEFTWARD]
        self.calls = []
        self.paused = False

    def set(self, number, value):
        self.calls.append((number.label, value))

    def nudge(self, number, steps):
        self.calls.append((number.label, steps))

    def set_to_start(self):
        self.calls.append("zero")

    def ask_reset(self):
        self.calls.append("reset")

    def ask_push(self):
        self.calls.append("push")


def test_driver_steers_the_first_velocity_command():
    session = CommandedSession()
    driver = Driver(session)
    assert driver.numbers == [FORWARD, LEFTWARD]
    driver({"nudge": [0, 1]})
    driver({"axes": [1, -0.5, 1]})
    assert session.calls == [("forward, m/s", 1), ("forward, m/s", 1.0), ("leftward, m/s", -0.15)]


def test_driver_without_a_velocity_command_steers_the_first_numbers():
    session = CommandedSession()
    session.velocity_command = None
    assert Driver(session).numbers == [HEIGHT, FORWARD, LEFTWARD]


def test_buttons_reset_push_zero_and_pause():
    session = CommandedSession()
    driver = Driver(session)
    for name in ("reset", "push", "zero", "pause"):
        driver({"press": name})
    assert session.calls == ["reset", "push", "zero"]
    assert session.paused


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"nudge": [2, 1]},
        {"press": "quit"},
    ],
)
def test_unknown_message_changes_nothing(message):
    session = CommandedSession()
    Driver(session)(message)
    assert not session.calls
    assert not session.paused


@pytest.mark.parametrize(
    ("number", "x", "value"),
    [
        (FORWARD, 1.0, 1.0),
        (FORWARD, -1.0, -0.5),
        (FORWARD, 0.5, 0.5),
        (FORWARD, 0.0, 0.0),
        (HEIGHT, 0.0, 0.6),
        (HEIGHT, 1.0, 0.8),
        (CommandNumber("c", 0, "0", None), -0.7, -0.7),
    ],
)
def test_stick_goes_to_the_ends_of_the_range(number, x, value):
    assert deflected(number, x) == pytest.approx(value)
