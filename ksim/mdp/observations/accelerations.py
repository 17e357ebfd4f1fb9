"""Observations of accelerations: the change of a velocity over the last control step; 0 at a reset."""

from abc import abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import base_ang_vel_body, base_ang_vel_world, base_lin_vel_world, base_orientation
from ksim.physics.rotations import rotate_inverse


class _Acceleration(AbstractObservation):
    """An acceleration, from the velocities of the last two control steps."""

    @abstractmethod
    def velocity(self, context: Context) -> Float[Array, " n"]:
        """The velocity to differentiate."""

    def init(self, context: Context) -> tuple[Array, Array]:
        velocity_n = self.velocity(context)
        return velocity_n, jnp.zeros_like(velocity_n)

    def update(self, context: Context) -> tuple[Array, Array]:
        before_n, _ = context.memory
        velocity_n = self.velocity(context)
        return velocity_n, (velocity_n - before_n) / context.dt


class BaseLinearAcceleration(_Acceleration):
    """Linear acceleration of the base in its own frame over the last control step, in m/s^2, without gravity."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_lin_vel_world(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return rotate_inverse(context.memory[1], base_orientation(context.physics, context.model.names))


class BaseLinearAccelerationWorld(_Acceleration):
    """Linear acceleration of the base in the world frame over the last control step, in m/s^2, without gravity."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_lin_vel_world(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.memory[1]


class BaseAngularAcceleration(_Acceleration):
    """Angular acceleration of the base in its own frame over the last control step, in rad/s^2."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_body(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.memory[1]


class BaseAngularAccelerationWorld(_Acceleration):
    """Angular acceleration of the base in the world frame over the last control step, in rad/s^2."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_world(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.memory[1]


class JointAcceleration(_Acceleration):
    """Accelerations of joints over the last control step, in rad/s^2 (m/s^2 for slides). `joints`: default all."""

    joints: tuple[str, ...] | None = None
    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, " j"]:
        return context.physics.qvel[context.model.names.joint_qvel(self.joints)]

    def __call__(self, context: Context) -> Float[Array, " j"]:
        return context.memory[1]
