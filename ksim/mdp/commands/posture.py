"""Commands for heading, height and tilt of the base."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.checks import check_range
from ksim.mdp.commands.base import AbstractDrawnCommand, Range
from ksim.mdp.term import Context
from ksim.physics.names import base_orientation, base_position
from ksim.physics.rotations import roll_pitch_of, wrap_angle, yaw_of
from ksim.types import Metrics


class HeadingCommand(AbstractDrawnCommand):
    """Heading in the world, in rad: 0 along the x axis. Drawn uniformly every `resample_s` seconds (a range)."""

    heading: Range = (-math.pi, math.pi)
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        check_range(self, "heading")

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, "1"]:
        return jax.random.uniform(key, (1,), minval=self.heading[0], maxval=self.heading[1])

    def ranges(self) -> dict[str, Range]:
        return {"heading, rad": self.heading}

    def mirrored(self, command: Float[Array, "1"]) -> Float[Array, "1"]:
        return -command

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        yaw = yaw_of(base_orientation(context.physics, context.model.names))
        return {"heading_rad": jnp.abs(wrap_angle(yaw - command[0]))}


class HeightCommand(AbstractDrawnCommand):
    """Height of the base above the ground, in m. Drawn uniformly every `resample_s` seconds (a range)."""

    height: Range
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        check_range(self, "height")

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, "1"]:
        return jax.random.uniform(key, (1,), minval=self.height[0], maxval=self.height[1])

    def ranges(self) -> dict[str, Range]:
        return {"height, m": self.height}

    def mirrored(self, command: Float[Array, "1"]) -> Float[Array, "1"]:
        return command

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        height = context.height_above_ground(base_position(context.physics, context.model.names))
        return {"height_m": jnp.abs(height - command[0])}


class RollPitchCommand(AbstractDrawnCommand):
    """Roll (to the right) and pitch (nose down) of the base, in rad.

    Drawn uniformly from the ranges every `resample_s` seconds (a range).
    """

    roll: Range = (-0.2, 0.2)
    pitch: Range = (-0.2, 0.2)
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        check_range(self, "roll")
        check_range(self, "pitch")

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, "2"]:
        low, high = jnp.array([self.roll, self.pitch]).T
        return jax.random.uniform(key, (2,), minval=low, maxval=high)

    def ranges(self) -> dict[str, Range]:
        return {"roll, rad": self.roll, "pitch, rad": self.pitch}

    def mirrored(self, command: Float[Array, "2"]) -> Float[Array, "2"]:
        return command * jnp.array([-1.0, 1.0])

    def errors(self, context: Context, command: Float[Array, "2"]) -> Metrics:
        roll, pitch = roll_pitch_of(base_orientation(context.physics, context.model.names))
        return {"roll_rad": jnp.abs(roll - command[0]), "pitch_rad": jnp.abs(pitch - command[1])}
