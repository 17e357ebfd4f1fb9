"""Observations of joints and their actuators."""

from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context


class JointPosition(AbstractObservation):
    """Positions of joints relative to the default pose, in rad (m for slides). `joints`: names, default all."""

    joints: tuple[str, ...] | None = None
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " j"]:
        places = context.model.names.joint_qpos(self.joints)
        return context.physics.qpos[places] - context.model.default_qpos[places]


class JointVelocity(AbstractObservation):
    """Velocities of joints, in rad/s (m/s for slides). `joints`: names, default all."""

    joints: tuple[str, ...] | None = None
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " j"]:
        return context.physics.qvel[context.model.names.joint_qvel(self.joints)]


class ActuatorForce(AbstractObservation):
    """Forces of all actuators, in N m (N for slides)."""

    needs = ("actuator_force",)
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " u"]:
        return context.derived("actuator_force")


class ActuatorControl(AbstractObservation):
    """Last controls of all actuators: a servo's target, in rad, or a motor's torque, in N m."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " u"]:
        return context.control


class JointTorque(AbstractObservation):
    """Torques that actuators exert on joints, in N m (forces in N on slides). `joints`: names, default all."""

    needs = ("qfrc_actuator",)
    joints: tuple[str, ...] | None = None
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " j"]:
        return context.derived("qfrc_actuator")[context.model.names.joint_qvel(self.joints)]
