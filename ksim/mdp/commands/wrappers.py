"""Commands that wrap another one."""

import mujoco
from jaxtyping import Array, Float, PyTree

from ksim.checks import check_range
from ksim.mdp.commands.base import AbstractCommand, Range
from ksim.mdp.term import Context
from ksim.types import Metrics


class ScaledByLevel(AbstractCommand):
    """Another command, scaled by a curriculum: by `start` at level 0, rising to 1 at level 1.

    For commands that are easiest at 0, such as a velocity. level: name of the curriculum.
    """

    command: AbstractCommand
    level: str
    start: float = 0.2

    def __check_init__(self) -> None:
        check_range(self, "start", least=0.0, most=1.0)

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.command.needs

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        self.command.edit_spec(spec)

    def init(self, context: Context) -> PyTree:
        return self.command.init(context)

    def update(self, context: Context) -> PyTree:
        return self.command.update(context)

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return self.command(context) * (self.start + (1 - self.start) * context.level(self.level))

    def ranges(self) -> dict[str, Range]:
        return self.command.ranges()

    def mirrored(self, command: Float[Array, " n"]) -> Float[Array, " n"] | None:
        return self.command.mirrored(command)

    def errors(self, context: Context, command: Float[Array, " n"]) -> Metrics:
        return self.command.errors(context, command)


def unscaled(command: AbstractCommand) -> AbstractCommand:
    """The command inside of all wrappers."""
    while isinstance(command, ScaledByLevel):
        command = command.command
    return command
