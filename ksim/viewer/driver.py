"""Driving a robot by keys, buttons and sticks."""

from collections.abc import Mapping
from typing import Any

from ksim.viewer.manual import CommandNumber
from ksim.viewer.session import ViewSession

KEYS_HELP = "W S, A D, Q E: command · space: zero · R: reset · P: push · K: pause · or a gamepad"


class Driver:
    """Handler of messages from keyboards, gamepads and buttons; may be called from any thread.

    Attributes:
        numbers: The steered numbers, at most three: forward, leftward and yaw rate of the first velocity command;
            without one, the first three numbers of all commands.
    """

    def __init__(self, session: ViewSession) -> None:
        self._session = session
        name = session.velocity_command
        self.numbers = [number for number in session.numbers if name in (None, number.command)][:3]

    def __call__(self, message: Mapping[str, Any]) -> None:
        """Handles a message that has passed the gate; unknown indices and names have no effect.

        Args:
            message: `{"nudge": [index, steps]}` changes a number by steps. `{"axes": [a, b, c]}`, each from -1 to 1,
                sets all. `{"press": name}` is a button: zero, reset, push or pause.
        """
        match message:
            case {"nudge": [index, steps]} if index < len(self.numbers):
                self._session.nudge(self.numbers[index], steps)
            case {"axes": axes}:
                for number, x in zip(self.numbers, axes, strict=False):
                    self._session.set(number, deflected(number, float(x)))
            case {"press": "zero"}:
                self._session.set_to_start()
            case {"press": "reset"}:
                self._session.ask_reset()
            case {"press": "push"}:
                self._session.ask_push()
            case {"press": "pause"}:
                self._session.paused = not self._session.paused


def deflected(number: CommandNumber, x: float) -> float:
    """The value of a number for a stick's deflection, from -1 to 1: its range's end in that direction.

    Without a range, the deflection itself; 0, or the nearest value in the range, for a stick that is let go.
    """
    if number.range is None:
        return x
    low, high = number.range
    return number.clip(x * (high if x > 0 else -low))
