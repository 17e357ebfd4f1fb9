"""The base classes of commands."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ksim.checks import check_range
from ksim.mdp.term import Context, Term
from ksim.types import Metrics

Range = tuple[float, float]


class AbstractCommand(Term):
    """A vector that tells the robot what to do. It may change during the episode.

    Attributes:
        has_course: Whether the command runs its own course to the end of an episode, such as a motion. Viewers set the
            numbers of others, and start again where an episode with a course is truncated.
    """

    has_course: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, " n"]:
        """The command in force."""

    def ranges(self) -> dict[str, Range]:
        """The range of each number of the command, by a label (`forward, m/s`); empty by default.

        Viewers show a slider for each.
        """
        return {}

    def mirrored(self, command: Float[Array, " n"]) -> Float[Array, " n"] | None:
        """The command that asks a mirrored robot for the mirrored motion; None, the default, where it is not known."""
        return None

    def groups(self) -> tuple[str, ...]:
        """Kinds of episodes that evaluations also report apart, such as the clips of a motion; none by default."""
        return ()

    def group(self, command: Float[Array, " n"]) -> Int[Array, ""]:
        """The kind of the episode, as an index into `groups`; it stays the same during an episode."""
        return jnp.int32(0)

    def shown_pose(self, command: Float[Array, " n"]) -> Float[Array, " q"] | None:
        """Generalized positions that the command asks for, which videos show as a ghost; None, the default: none."""
        return None

    def errors(self, context: Context, command: Float[Array, " n"]) -> Metrics:
        """The errors of the robot, by name with a unit (`lin_vel_m_s`); empty by default.

        They are logged as `error/<command>/<name>`, and evaluations report them.
        """
        return {}


class AbstractDrawnCommand(AbstractCommand):
    """A command drawn at the reset, and again each time its duration is over.

    Attributes:
        resample_s: Range of the duration of a command, in seconds, drawn uniformly.
    """

    resample_s: eqx.AbstractVar[Range]

    def __check_init__(self) -> None:
        check_range(self, "resample_s", least=0.0)

    @abstractmethod
    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, " d"]:
        """Draws the next command."""

    def follow(
        self, drawn: Float[Array, " d"], before: Float[Array, " n"] | None, context: Context
    ) -> Float[Array, " n"]:
        """The command in force, from what was drawn and from the one `before` (None at a reset); by default `drawn`."""
        return drawn

    def init(self, context: Context) -> PyTree:
        drawn, seconds_left = self._draw_with_time(context)
        return self.follow(drawn, None, context), seconds_left, drawn

    def update(self, context: Context) -> PyTree:
        before, seconds_left, drawn = context.memory
        seconds_left = seconds_left - context.dt
        new, new_seconds = self._draw_with_time(context)
        # Within half a step, or rounding would put a whole number of steps one off.
        is_over = seconds_left < 0.5 * context.dt
        drawn, seconds_left = jnp.where(is_over, new, drawn), jnp.where(is_over, new_seconds, seconds_left)
        return self.follow(drawn, before, context), seconds_left, drawn

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.memory[0]

    def _draw_with_time(self, context: Context) -> tuple[Array, Array]:
        command_key, time_key = jax.random.split(context.key)
        low, high = self.resample_s
        return self.draw(command_key, context), jax.random.uniform(time_key, minval=low, maxval=high)
