"""Rewards for staying upright and for posture."""

from abc import abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import Context
from ksim.physics.names import base_ang_vel_body, base_lin_vel_world, base_orientation, base_position
from ksim.physics.rotations import roll_pitch_of, rotate_inverse


class Alive(AbstractReward):
    """1 in every step that does not end the episode in a fall."""

    scale: float = 1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        return 1.0 - context.terminated


class TerminationPenalty(AbstractReward):
    """1 in the step that ends the episode in a fall. Like every reward, it counts for one control step."""

    scale: float = -100.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        return context.terminated.astype(jnp.float32)


class Upright(AbstractReward):
    """Cosine of the base's tilt from the vertical: 1 upright, 0 lying, -1 upside down."""

    scale: float = 0.5

    def __call__(self, context: Context) -> Float[Array, ""]:
        orientation = base_orientation(context.physics, context.model.names)
        return rotate_inverse(jnp.array([0.0, 0.0, 1.0]), orientation)[2]


class BaseTilt(AbstractReward):
    """Squared sine of the base's tilt from the vertical."""

    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        orientation = base_orientation(context.physics, context.model.names)
        gravity_3 = rotate_inverse(jnp.array([0.0, 0.0, -1.0]), orientation)
        return jnp.sum(jnp.square(gravity_3[:2]))


class BaseRoll(AbstractReward):
    """Squared roll error of the base, in rad^2, from `target`, in rad to the right."""

    target: float = 0.0
    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        roll, _ = roll_pitch_of(base_orientation(context.physics, context.model.names))
        return jnp.square(roll - self.target)


class BasePitch(AbstractReward):
    """Squared pitch error of the base, in rad^2, from `target`, in rad nose down."""

    target: float = 0.0
    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        _, pitch = roll_pitch_of(base_orientation(context.physics, context.model.names))
        return jnp.square(pitch - self.target)


class BaseHeightError(AbstractReward):
    """Squared error, in m^2, of the base's height above the ground from `target`, in m."""

    target: float
    scale: float = -10.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        height = context.height_above_ground(base_position(context.physics, context.model.names))
        return jnp.square(height - self.target)


class VerticalVelocity(AbstractReward):
    """Squared vertical velocity of the base, in (m/s)^2."""

    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.square(base_lin_vel_world(context.physics, context.model.names)[2])


class RollPitchRate(AbstractReward):
    """Squared angular velocity of the base about its own x and y axes, in (rad/s)^2."""

    scale: float = -0.05

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(base_ang_vel_body(context.physics, context.model.names)[:2]))


class _BaseAcceleration(AbstractReward):
    """Squared change per second of a velocity of the base over the last control step; 0 at a reset."""

    @abstractmethod
    def velocity(self, context: Context) -> Float[Array, "3"]:
        """The velocity to differentiate."""

    def init(self, context: Context) -> tuple[Array, Array]:
        velocity_3 = self.velocity(context)
        return velocity_3, jnp.zeros_like(velocity_3)

    def update(self, context: Context) -> tuple[Array, Array]:
        before_3, _ = context.memory
        velocity_3 = self.velocity(context)
        return velocity_3, (velocity_3 - before_3) / context.dt

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.memory[1]))


class BaseLinearAcceleration(_BaseAcceleration):
    """Squared linear acceleration of the base over the last control step, in (m/s^2)^2."""

    scale: float = -1e-3

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_lin_vel_world(context.physics, context.model.names)


class BaseAngularAcceleration(_BaseAcceleration):
    """Squared change of the base's angular velocity in its own frame over the last control step, in (rad/s^2)^2."""

    scale: float = -1e-4

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_body(context.physics, context.model.names)


class JointDeviation(AbstractReward):
    """Sum of the distances of joints from the default pose, in rad. `joints`: names, default all."""

    joints: tuple[str, ...] | None = None
    scale: float = -0.1

    def __call__(self, context: Context) -> Float[Array, ""]:
        places = context.model.names.joint_qpos(self.joints)
        return jnp.sum(jnp.abs(context.physics.qpos[places] - context.model.default_qpos[places]))
