"""What commands have in common."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.mdp.term import Context, Term
from ksim.types import Metrics

Range = tuple[float, float]


class AbstractCommand(Term):
    """What the robot is asked to do, as a vector that may change during the episode."""

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, " n"]:
        """The command in force."""

    def ranges(self) -> dict[str, Range]:
        """The range of each of the command's numbers, by what it is (`forward, m/s`); nothing by default.

        Viewers make a slider of each.
        """
        return {}

    def errors(self, context: Context, command: Float[Array, " n"]) -> Metrics:
        """How far the robot is from what was asked, by name with a unit (`lin_vel_m_s`); nothing by default.

        They are logged as `error/<command>/<name>`, and evaluations report them.
        """
        return {}


class AbstractDrawnCommand(AbstractCommand):
    """A command that is drawn at the reset, and anew whenever it has been in force for its time.

    Attributes:
        resample_s: Range of seconds for which a command is in force, drawn uniformly.
    """

    resample_s: eqx.AbstractVar[Range]

    @abstractmethod
    def draw(self, key: PRNGKeyArray) -> Float[Array, " n"]:
        """A new command."""

    def init(self, context: Context) -> tuple[Array, Array]:
        return self._draw_with_time(context.key)

    def update(self, context: Context) -> tuple[Array, Array]:
        command, seconds_left = context.memory
        seconds_left = seconds_left - context.dt
        drawn, drawn_seconds = self._draw_with_time(context.key)
        # Within half a step, or rounding would put a whole number of steps one off.
        is_over = seconds_left < 0.5 * context.dt
        return jnp.where(is_over, drawn, command), jnp.where(is_over, drawn_seconds, seconds_left)

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.memory[0]

    def _draw_with_time(self, key: PRNGKeyArray) -> tuple[Array, Array]:
        command_key, time_key = jax.random.split(key)
        low, high = self.resample_s
        return self.draw(command_key), jax.random.uniform(time_key, minval=low, maxval=high)
