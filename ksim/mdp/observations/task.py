"""Observations of the task: what was asked, what was done, where in the gait."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context


class CommandValue(AbstractObservation):
    """The value of a command, in the command's own unit and frame."""

    command: str
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.command(self.command)


class LastAction(AbstractObservation):
    """The action taken last, before any scaling."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " a"]:
        return context.action


class TimeLeft(AbstractObservation):
    """Seconds until a time limit of `seconds`, so that a critic can tell a cut from a fall."""

    seconds: float = 20.0
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, ""]:
        return self.seconds - context.episode_step * context.dt


class PhaseClock(AbstractObservation):
    """Sine and cosine of a clock that turns once per `period_s` from the start of the episode."""

    period_s: float = 0.8
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "2"]:
        angle = 2 * jnp.pi * context.episode_step * context.dt / self.period_s
        return jnp.stack([jnp.sin(angle), jnp.cos(angle)])
