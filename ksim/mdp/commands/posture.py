"""Commands of where to face and how high to stand."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.mdp.commands.base import AbstractDrawnCommand, Range
from ksim.mdp.term import Context
from ksim.physics.names import base_orientation, base_position
from ksim.physics.rotations import wrap_angle, yaw_of
from ksim.types import Metrics


class HeadingCommand(AbstractDrawnCommand):
    """Heading in the world, in rad: 0 along the x axis. Drawn uniformly, anew every `resample_s` seconds (a range)."""

    heading: Range = (-math.pi, math.pi)
    resample_s: Range = (4.0, 8.0)

    def draw(self, key: PRNGKeyArray) -> Float[Array, "1"]:
        return jax.random.uniform(key, (1,), minval=self.heading[0], maxval=self.heading[1])

    def ranges(self) -> dict[str, Range]:
        return {"heading, rad": self.heading}

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        yaw = yaw_of(base_orientation(context.physics, context.model.names))
        return {"heading_rad": jnp.abs(wrap_angle(yaw - command[0]))}


class HeightCommand(AbstractDrawnCommand):
    """Height of the base above the ground, in m. Drawn uniformly, anew every `resample_s` seconds (a range)."""

    height: Range
    resample_s: Range = (4.0, 8.0)

    def draw(self, key: PRNGKeyArray) -> Float[Array, "1"]:
        return jax.random.uniform(key, (1,), minval=self.height[0], maxval=self.height[1])

    def ranges(self) -> dict[str, Range]:
        return {"height, m": self.height}

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        height = context.height_above_ground(base_position(context.physics, context.model.names))
        return {"height_m": jnp.abs(height - command[0])}
