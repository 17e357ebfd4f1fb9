"""Rewards (used with negative scales) for effort and roughness."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import Context


class ActionRate(AbstractReward):
    """Squared change of the action since the last step, summed over its components."""

    scale: float = -0.01

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.action - context.previous_action))


class TorqueEffort(AbstractReward):
    """Squared forces of all actuators, in (N m)^2, summed."""

    needs = ("actuator_force",)
    scale: float = -1e-5

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.derived("actuator_force")))


class JointVelocityEffort(AbstractReward):
    """Squared velocities of joints, in (rad/s)^2, summed. `joints`: names, default all."""

    joints: tuple[str, ...] | None = None
    scale: float = -1e-3

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.physics.qvel[context.model.names.joint_qvel(self.joints)]))


class JointLimits(AbstractReward):
    """How far joints are, in rad, outside the inner `soft_fraction` of their ranges, summed."""

    joints: tuple[str, ...] | None = None
    soft_fraction: float = 0.9
    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        names = context.model.names
        low, high = names.joint_range(self.joints).T
        margin = (high - low) * (1 - self.soft_fraction) / 2
        position_j = context.physics.qpos[names.joint_qpos(self.joints)]
        over_j = jnp.maximum(position_j - (high - margin), 0.0) + jnp.maximum((low + margin) - position_j, 0.0)
        # A joint without limits has an infinite range, and inf - inf is not a number.
        return jnp.sum(jnp.where(jnp.isfinite(margin), over_j, 0.0))
