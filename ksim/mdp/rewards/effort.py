"""Rewards (used with negative scales) for effort and roughness."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import Context


class ActionRate(AbstractReward):
    """Squared change of the action since the last step, summed over its components."""

    scale: float = -0.01

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.action - context.previous_action))


class ActionAcceleration(AbstractReward):
    """Squared second difference of the action, summed over its components."""

    scale: float = -0.005

    def init(self, context: Context) -> tuple[Array, Array]:
        return jnp.zeros_like(context.action), jnp.zeros_like(context.action)

    def update(self, context: Context) -> tuple[Array, Array]:
        change_before, _ = context.memory
        change = context.action - context.previous_action
        return change, change - change_before

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.memory[1]))


class JointAcceleration(AbstractReward):
    """Squared accelerations of joints over the last control step, in (rad/s^2)^2, summed. `joints`: default all."""

    joints: tuple[str, ...] | None = None
    scale: float = -1e-7

    def init(self, context: Context) -> tuple[Array, Array]:
        velocity_j = context.physics.qvel[context.model.names.joint_qvel(self.joints)]
        return velocity_j, jnp.zeros_like(velocity_j)

    def update(self, context: Context) -> tuple[Array, Array]:
        before_j, _ = context.memory
        velocity_j = context.physics.qvel[context.model.names.joint_qvel(self.joints)]
        return velocity_j, (velocity_j - before_j) / context.dt

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.memory[1]))


class MechanicalPower(AbstractReward):
    """Absolute mechanical power of all actuators, |force * velocity|, in W, summed."""

    needs = ("actuator_force",)
    scale: float = -1e-4

    def __call__(self, context: Context) -> Float[Array, ""]:
        names = context.model.names
        # An actuator moves gear times as fast as its joint.
        gear_u = context.model.mj_model.actuator_gear[:, 0]
        velocity_u = gear_u * context.physics.qvel[names.joint_qvel(names.actuator_joints())]
        return jnp.sum(jnp.abs(context.derived("actuator_force") * velocity_u))


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
        range_j2 = names.joint_range(self.joints)
        is_limited_j = np.all(np.isfinite(range_j2), axis=-1)
        low, high = np.where(np.expand_dims(is_limited_j, -1), range_j2, 0.0).T
        margin = (high - low) * (1 - self.soft_fraction) / 2
        position_j = context.physics.qpos[names.joint_qpos(self.joints)]
        over_j = jnp.maximum(position_j - (high - margin), 0.0) + jnp.maximum((low + margin) - position_j, 0.0)
        return jnp.sum(jnp.where(is_limited_j, over_j, 0.0))
