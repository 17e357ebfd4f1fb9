"""Velocity commands."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.mdp.commands.base import AbstractDrawnCommand, Range
from ksim.mdp.term import Context
from ksim.physics.names import base_ang_vel_world, base_heading_velocity
from ksim.types import Metrics


class VelocityCommand(AbstractDrawnCommand):
    """Forward and leftward velocity, in m/s, and yaw rate, in rad/s, in the robot's level heading frame.

    Drawn uniformly from the ranges, anew every `resample_s` seconds (a range); with probability `standing_fraction`
    the robot is asked to stand.
    """

    forward: Range = (0.0, 1.0)
    leftward: Range = (-0.3, 0.3)
    yaw_rate: Range = (-0.5, 0.5)
    resample_s: Range = (4.0, 8.0)
    standing_fraction: float = 0.1

    def draw(self, key: PRNGKeyArray) -> Float[Array, "3"]:
        low, high = jnp.array([self.forward, self.leftward, self.yaw_rate, (0.0, 1.0)]).T
        drawn_4: Array = jax.random.uniform(key, (4,), minval=low, maxval=high)
        return jnp.where(drawn_4[3] < self.standing_fraction, 0.0, drawn_4[:3])

    def ranges(self) -> dict[str, Range]:
        return {"forward, m/s": self.forward, "leftward, m/s": self.leftward, "yaw rate, rad/s": self.yaw_rate}

    def errors(self, context: Context, command: Float[Array, "3"]) -> Metrics:
        names = context.model.names
        lin_vel_3 = base_heading_velocity(context.physics, names)
        yaw_rate = base_ang_vel_world(context.physics, names)[2]
        return {
            "lin_vel_m_s": jnp.linalg.norm(lin_vel_3[:2] - command[:2]),
            "yaw_rate_rad_s": jnp.abs(yaw_rate - command[2]),
        }
