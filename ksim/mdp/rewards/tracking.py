"""Rewards for doing what was commanded."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import Context
from ksim.physics.names import base_ang_vel_body, base_lin_vel_world, base_orientation
from ksim.physics.rotations import heading_frame, rotate


class TrackLinearVelocity(AbstractReward):
    """1 when the horizontal velocity meets the command, falling off as a Gaussian.

    The velocity is the base's, in the level frame that shares its heading; the command's first two components are
    its forward and leftward targets, in m/s. std: error, in m/s, at which the reward has dropped to exp(-1/2).
    """

    command: str
    std: float = 0.25
    scale: float = 1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        names = context.model.names
        orientation = base_orientation(context.physics, names)
        velocity_3 = heading_frame(orientation, base_lin_vel_world(context.physics, names))
        error = jnp.sum(jnp.square(velocity_3[:2] - context.command(self.command)[:2]))
        return jnp.exp(-error / (2 * self.std**2))


class TrackYawRate(AbstractReward):
    """1 when the yaw rate meets the command, falling off as a Gaussian.

    The command's third component is the yaw rate about the vertical, in rad/s. std: error, in rad/s, at which the
    reward has dropped to exp(-1/2).
    """

    command: str
    std: float = 0.25
    scale: float = 0.5

    def __call__(self, context: Context) -> Float[Array, ""]:
        names = context.model.names
        ang_vel_world_3 = rotate(base_ang_vel_body(context.physics, names), base_orientation(context.physics, names))
        error = jnp.square(ang_vel_world_3[2] - context.command(self.command)[2])
        return jnp.exp(-error / (2 * self.std**2))
