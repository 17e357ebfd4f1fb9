"""Rewards on posture, effort and smoothness."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.checks import ranged, required
from ksim.errors import ConfigError
from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import ChangeOfVelocity, Context
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
        return rotate_inverse(jnp.array([0.0, 0.0, 1.0]), context.base.orientation)[2]


class BaseTilt(AbstractReward):
    """Squared sine of the base's tilt from the vertical."""

    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        gravity_3 = rotate_inverse(jnp.array([0.0, 0.0, -1.0]), context.base.orientation)
        return jnp.sum(jnp.square(gravity_3[:2]))


class BaseRoll(AbstractReward):
    """Squared roll error of the base, in rad^2, from `target`, in rad to the right."""

    target: float = 0.0
    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        roll, _ = roll_pitch_of(context.base.orientation)
        return jnp.square(roll - self.target)


class BasePitch(AbstractReward):
    """Squared pitch error of the base, in rad^2, from `target`, in rad nose down."""

    target: float = 0.0
    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        _, pitch = roll_pitch_of(context.base.orientation)
        return jnp.square(pitch - self.target)


class BaseHeightError(AbstractReward):
    """Squared error, in m^2, of the base's height above the ground from `target`, in m."""

    target: float
    scale: float = -10.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.square(context.height_above_ground(context.base.position) - self.target)


class VerticalVelocity(AbstractReward):
    """Squared vertical velocity of the base, in (m/s)^2."""

    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.square(context.base.lin_vel_world[2])


class RollPitchRate(AbstractReward):
    """Squared angular velocity of the base about its own x and y axes, in (rad/s)^2."""

    scale: float = -0.05

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.base.ang_vel_body[:2]))


class _Acceleration(ChangeOfVelocity, AbstractReward):
    """A squared acceleration over the last control step; 0 at a reset."""

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.memory[1]))


class BaseLinearAcceleration(_Acceleration):
    """Squared linear acceleration of the base over the last control step, in (m/s^2)^2."""

    scale: float = -1e-3

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return context.base.lin_vel_world


class BaseAngularAcceleration(_Acceleration):
    """Squared change of the base's angular velocity in its own frame over the last control step, in (rad/s^2)^2."""

    scale: float = -1e-4

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return context.base.ang_vel_body


class JointDeviation(AbstractReward):
    """Sum of the distances of joints from the default pose, in rad. `joints`: names, default all."""

    joints: tuple[str, ...] | None = None
    scale: float = -0.1

    def __call__(self, context: Context) -> Float[Array, ""]:
        places = context.model.names.joint_qpos(self.joints)
        return jnp.sum(jnp.abs(context.physics.qpos[places] - context.model.default_qpos[places]))


class ActionRate(AbstractReward):
    """Squared change of the action since the last step, summed over its components."""

    scale: float = -0.01

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.action - context.previous_action))


class _ActionDifference(AbstractReward):
    """A squared difference of the action of some order. The memory is the differences up to that order."""

    order: ClassVar[int]

    def init(self, context: Context) -> tuple[Array, ...]:
        return (jnp.zeros_like(context.action),) * self.order

    def update(self, context: Context) -> tuple[Array, ...]:
        differences = [context.action - context.previous_action]
        for before in context.memory[:-1]:
            differences.append(differences[-1] - before)
        return tuple(differences)

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.memory[-1]))


class ActionAcceleration(_ActionDifference):
    """Squared second difference of the action, summed over its components."""

    order = 2
    scale: float = -0.005


class ActionJerk(_ActionDifference):
    """Squared third difference of the action, summed over its components."""

    order = 3
    scale: float = -0.002


class JointAcceleration(_Acceleration):
    """Squared accelerations of joints over the last control step, in (rad/s^2)^2, summed. `joints`: default all."""

    joints: tuple[str, ...] | None = None
    scale: float = -1e-7

    def velocity(self, context: Context) -> Float[Array, " j"]:
        return context.physics.qvel[context.model.names.joint_qvel(self.joints)]


class MechanicalPower(AbstractReward):
    """Absolute mechanical power of all actuators, |force * velocity|, in W, summed."""

    needs = ("actuator_force",)
    scale: float = -1e-4

    def __call__(self, context: Context) -> Float[Array, ""]:
        return _power(context)


class CostOfTransport(AbstractReward):
    """Cost of transport, dimensionless: absolute mechanical power / (weight * horizontal speed).

    The weight is the compiled weight of the base and everything attached to it. min_speed: lower bound of the speed, in
    m/s.
    """

    needs = ("actuator_force",)
    min_speed: float = ranged(0.2, above=0.0)
    scale: float = -0.05

    def __call__(self, context: Context) -> Float[Array, ""]:
        mj_model, names = context.model.mj_model, context.model.names
        weight = mj_model.body_subtreemass[names.base_body()] * np.linalg.norm(mj_model.opt.gravity)
        speed = jnp.linalg.norm(context.base.lin_vel_world[:2])
        return _power(context) / (weight * jnp.maximum(speed, self.min_speed))


class TorqueEffort(AbstractReward):
    """Squared forces of all actuators, in (N m)^2, summed."""

    needs = ("actuator_force",)
    scale: float = -1e-5

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.derived("actuator_force")))


class TorqueLimits(AbstractReward):
    """Excess of actuator forces over `soft_fraction` of their force ranges, as fractions of these, summed.

    Actuators without a force range do not count; at least one must have a range.
    """

    needs = ("actuator_force",)
    soft_fraction: float = ranged(0.8, least=0.0, most=1.0)
    scale: float = -0.5

    def __call__(self, context: Context) -> Float[Array, ""]:
        mj_model = context.model.mj_model
        limited = np.flatnonzero(mj_model.actuator_forcelimited)
        if not limited.size:
            raise ConfigError("TorqueLimits needs an actuator with a force range. Give one in the MJCF file.")
        force_u = _magnitudes(context)[limited]
        low_u, high_u = mj_model.actuator_forcerange[limited].T
        over_u = jnp.maximum(force_u - self.soft_fraction * high_u, 0.0)
        over_u += jnp.maximum(self.soft_fraction * low_u - force_u, 0.0)
        return jnp.sum(over_u / ((high_u - low_u) / 2))


class JointVelocityEffort(AbstractReward):
    """Squared velocities of joints, in (rad/s)^2, summed. `joints`: names, default all."""

    joints: tuple[str, ...] | None = None
    scale: float = -1e-3

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.physics.qvel[context.model.names.joint_qvel(self.joints)]))


class JointVelocityLimits(AbstractReward):
    """Excess of joint speeds, in rad/s, over `soft_fraction` of `max_vel`, summed.

    max_vel: maximum speed of the joints, in rad/s. joints: names, default all.
    """

    max_vel: float = required(above=0.0)
    joints: tuple[str, ...] | None = None
    soft_fraction: float = ranged(0.9, above=0.0, most=1.0)
    scale: float = -0.1

    def __call__(self, context: Context) -> Float[Array, ""]:
        speed_j = jnp.abs(context.physics.qvel[context.model.names.joint_qvel(self.joints)])
        return jnp.sum(jnp.maximum(speed_j - self.soft_fraction * self.max_vel, 0.0))


class JointLimits(AbstractReward):
    """Distance of joints, in rad, outside the inner `soft_fraction` of their ranges, summed."""

    joints: tuple[str, ...] | None = None
    soft_fraction: float = ranged(0.9, above=0.0, most=1.0)
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


def _magnitudes(context: Context) -> Float[Array, " u"]:
    """The force of each actuator. For an actuator with several outputs, their norm, which its force range bounds."""
    force_o, mj_model = context.derived("actuator_force"), context.model.mj_model
    outputs = [
        slice(start, start + n) for start, n in zip(mj_model.actuator_outadr, mj_model.actuator_outnum, strict=True)
    ]
    return jnp.stack([force_o[o][0] if o.stop - o.start == 1 else jnp.linalg.norm(force_o[o]) for o in outputs])


def _power(context: Context) -> Float[Array, ""]:
    names = context.model.names
    # An actuator moves gear times as fast as its joint.
    gear_u = context.model.mj_model.actuator_gear[:, 0]
    velocity_u = gear_u * context.physics.qvel[names.joint_qvel(names.actuator_joints())]
    return jnp.sum(jnp.abs(context.derived("actuator_force") * velocity_u))
