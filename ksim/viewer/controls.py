"""Keyboard and gamepad as commands."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.mdp.commands import AbstractCommand, Range
from ksim.mdp.term import Context
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.types import Metrics


class NumberInput:
    """A slider or a field of the page.

    viser writes a page's value into the handle, and calls `on_update` later, in a separate thread. Until then the
    viewer must not overwrite the value.
    """

    def __init__(self, handle: Any, get: Callable[[], float], take: Callable[[float], None]) -> None:
        """Makes an input of viser's handle, which holds the number. `take` is called with a page's number."""
        self.handle = handle
        self._get, self._take = get, take
        self._lock = threading.Lock()
        self._heard: float = handle.value
        self._shown = get()
        handle.on_update(self._on_update)

    def update(self) -> None:
        """Shows the number if the viewer has changed it."""
        with self._lock:
            number = self._get()
            if number != self._shown and self.handle.value == self._heard:
                self.handle.value = self._shown = number
                self._heard = self.handle.value

    def _on_update(self, event: Any) -> None:
        if event.client is None:  # what `update` has shown
            return
        with self._lock:
            self._heard = self.handle.value
            self._take(self._heard)
            self._shown = self._get()  # may be rounded to float32; the page need not show that


class ManualCommand(AbstractCommand):
    """A value in place of a task's command; created in every trace, with the value as an input."""

    command: AbstractCommand
    value: Float[Array, " n"]

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return self.value

    def errors(self, context: Context, command: Float[Array, " n"]) -> Metrics:
        return self.command.errors(context, command)


def with_manual_commands(env: MdpEnvironment, values: Mapping[str, Array]) -> MdpEnvironment:
    """The environment with these commands, for use inside the trace of their values; other commands stay."""
    manual = {name: ManualCommand(env.mdp.commands[name], value) for name, value in values.items()}
    return dataclasses.replace(env, mdp=dataclasses.replace(env.mdp, commands={**env.mdp.commands, **manual}))


@dataclasses.dataclass(frozen=True)
class CommandNumber:
    """One number of a command, set by the user.

    Attributes:
        label: Its description, with a unit if the command has ranges.
        range: The range that it is drawn from; None if the command has no ranges.
    """

    command: str
    index: int
    label: str
    range: Range | None

    @property
    def step(self) -> float:
        """The change that a key makes: a tenth of the range, or 0.1."""
        return (self.range[1] - self.range[0]) / 10 if self.range else 0.1

    def clip(self, value: float) -> float:
        """The nearest value in the range."""
        return min(max(value, self.range[0]), self.range[1]) if self.range else value


def command_numbers(
    commands: Mapping[str, AbstractCommand], drawn: Mapping[str, np.ndarray]
) -> tuple[list[CommandNumber], dict[str, np.ndarray]]:
    """Every number of every command that can be set, in order, and the initial values.

    A number starts at 0, or at the nearest end of its range. A command without ranges starts from the value in `drawn`,
    drawn as in training, since its numbers may mean anything.

    Raises:
        ConfigError: A command gives ranges for more or fewer numbers than it has.
    """
    numbers: list[CommandNumber] = []
    start: dict[str, np.ndarray] = {}
    settable = {name: command for name, command in commands.items() if not command.has_course}
    for name, command in settable.items():
        value_n, ranges = np.array(drawn[name], np.float32).reshape(-1), command.ranges()
        if ranges and len(ranges) != len(value_n):
            raise ConfigError(
                f"Command {name!r} must give the range of each of its {len(value_n)} numbers, or of none; "
                f"{type(command).__name__}.ranges gives {len(ranges)}."
            )
        if ranges:
            own = [CommandNumber(name, i, label, ranges[label]) for i, label in enumerate(ranges)]
            value_n = np.array([number.clip(0.0) for number in own], np.float32)
        else:
            own = [CommandNumber(name, i, str(i), None) for i in range(len(value_n))]
        numbers += own
        start[name] = value_n.reshape(np.shape(drawn[name]))
    return numbers, start
