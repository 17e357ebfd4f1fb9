"""Observations of the floating base."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import (
    base_ang_vel_body,
    base_ang_vel_world,
    base_lin_vel_world,
    base_orientation,
    base_position,
)
from ksim.physics.rotations import rotate_inverse


class ProjectedGravity(AbstractObservation):
    """Direction of gravity in the base's frame, a unit vector: (0, 0, -1) when upright."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        orientation = base_orientation(context.physics, context.model.names)
        return rotate_inverse(jnp.array([0.0, 0.0, -1.0]), orientation)


class BaseLinearVelocity(AbstractObservation):
    """Linear velocity of the base in its own frame, in m/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        names = context.model.names
        lin_vel_world_3 = base_lin_vel_world(context.physics, names)
        return rotate_inverse(lin_vel_world_3, base_orientation(context.physics, names))


class BaseAngularVelocity(AbstractObservation):
    """Angular velocity of the base in its own frame, in rad/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_body(context.physics, context.model.names)


class BaseHeight(AbstractObservation):
    """Height of the base above the ground under it, in m."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, ""]:
        return context.height_above_ground(base_position(context.physics, context.model.names))


class BasePosition(AbstractObservation):
    """Position of the base in the world, in m. For the critic only: no robot sensor measures it."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_position(context.physics, context.model.names)


class BaseOrientation(AbstractObservation):
    """Orientation of the base in the world, a unit quaternion (w, x, y, z) with w >= 0."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "4"]:
        orientation = base_orientation(context.physics, context.model.names)
        # q and -q are the same rotation; the policy should see one of them.
        return jnp.where(orientation[0] < 0, -orientation, orientation)


class BaseLinearVelocityWorld(AbstractObservation):
    """Linear velocity of the base in the world frame, in m/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_lin_vel_world(context.physics, context.model.names)


class BaseAngularVelocityWorld(AbstractObservation):
    """Angular velocity of the base in the world frame, in rad/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_world(context.physics, context.model.names)
