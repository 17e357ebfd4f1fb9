"""Velocity commands."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.mdp.commands.base import AbstractCommand
from ksim.mdp.term import Context

Range = tuple[float, float]


class VelocityCommand(AbstractCommand):
    """Forward and leftward velocity, in m/s, and yaw rate, in rad/s, in the robot's level heading frame.

    Drawn uniformly from the ranges, anew every `resample_s` seconds (a range); with probability `standing_fraction`
    the robot is asked to stand.
    """

    forward: Range = (0.0, 1.0)
    leftward: Range = (-0.3, 0.3)
    yaw_rate: Range = (-0.5, 0.5)
    resample_s: Range = (4.0, 8.0)
    standing_fraction: float = 0.1

    def init(self, context: Context) -> tuple[Array, Array]:
        return self._draw(context.key)

    def update(self, context: Context) -> tuple[Array, Array]:
        command_3, seconds_left = context.memory
        seconds_left = seconds_left - context.dt
        drawn_3, drawn_seconds = self._draw(context.key)
        is_over = seconds_left <= 0
        return jnp.where(is_over, drawn_3, command_3), jnp.where(is_over, drawn_seconds, seconds_left)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.memory[0]

    def _draw(self, key: PRNGKeyArray) -> tuple[Array, Array]:
        low, high = jnp.array([self.forward, self.leftward, self.yaw_rate, self.resample_s, (0.0, 1.0)]).T
        drawn_5 = jax.random.uniform(key, (5,), minval=low, maxval=high)
        is_standing = drawn_5[4] < self.standing_fraction
        return jnp.where(is_standing, 0.0, drawn_5[:3]), drawn_5[3]
