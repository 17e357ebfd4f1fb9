"""Observations of joints, IMUs and other sensors."""

from typing import ClassVar

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import find_in_spec


class JointPosition(AbstractObservation):
    """Positions of joints relative to the default pose, in rad (m for slides). `joints`: names, default all."""

    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Float[Array, " j"]:
        places = context.model.names.joint_qpos(self.joints)
        return context.physics.qpos[places] - context.model.default_qpos[places]


class JointVelocity(AbstractObservation):
    """Velocities of joints, in rad/s (m/s for slides). `joints`: names, default all."""

    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Float[Array, " j"]:
        return context.physics.qvel[context.model.names.joint_qvel(self.joints)]


class ActuatorForce(AbstractObservation):
    """Forces of all actuators, in N m (N for slides)."""

    needs = ("actuator_force",)

    def __call__(self, context: Context) -> Float[Array, " u"]:
        return context.derived("actuator_force")


class ActuatorControl(AbstractObservation):
    """Last controls of all actuators: a servo's target, in rad, or a motor's torque, in N m."""

    def __call__(self, context: Context) -> Float[Array, " u"]:
        return context.control


class JointTorque(AbstractObservation):
    """Torques that actuators exert on joints, in N m (forces in N on slides). `joints`: names, default all."""

    needs = ("qfrc_actuator",)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Float[Array, " j"]:
        return context.derived("qfrc_actuator")[context.model.names.joint_qvel(self.joints)]


class _Imu(AbstractObservation):
    """A sensor of an IMU at a site, added to the model if it has none there. `kind` is the sensor's type."""

    kind: ClassVar[mujoco.mjtSensor]
    site: str

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        find_in_spec(spec, "site", self.site)
        if not any(sensor.type == self.kind and sensor.objname == self.site for sensor in spec.sensors):
            name = f"ksim_{self.site}_{self.kind.name.removeprefix('mjSENS_').lower()}"
            spec.add_sensor(name=name, type=self.kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=self.site)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        model = context.model.mj_model
        # By its kind and place: the model's own sensor may have any name, or none.
        site = context.model.names.index("site", self.site)
        is_it = (model.sensor_type == int(self.kind)) & (model.sensor_objid == site)
        start = int(model.sensor_adr[np.flatnonzero(is_it)[0]])
        return context.derived("sensordata")[start : start + 3]


class ImuGyro(_Imu):
    """Angular velocity of a site in its own frame, in rad/s. `site`: position and orientation of the IMU."""

    kind = mujoco.mjtSensor.mjSENS_GYRO


class ImuAccelerometer(_Imu):
    """Accelerometer: acceleration minus gravity, in a site's frame, in m/s^2; 9.81 upwards at rest.

    site: position and orientation of the IMU.
    """

    kind = mujoco.mjtSensor.mjSENS_ACCELEROMETER


class SensorReading(AbstractObservation):
    """Readings of a named sensor, in its own unit and frame."""

    sensor: str

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.sensor(self.sensor)


class FootForce(AbstractObservation):
    """Contact force on each foot, in N. sensors: names of touch sensors, one per foot."""

    sensors: tuple[str, ...]

    def __call__(self, context: Context) -> Float[Array, " f"]:
        return context.sensors(self.sensors)


class FootAirTime(AbstractObservation):
    """Time that each foot has been in the air, in s; 0 in contact.

    sensors: names of touch sensors, one per foot. threshold: force, in N, above which a foot is in contact.
    """

    sensors: tuple[str, ...]
    threshold: float = 1.0

    def init(self, context: Context) -> Float[Array, " f"]:
        return jnp.zeros(len(self.sensors))

    def update(self, context: Context) -> Float[Array, " f"]:
        force_f = context.sensors(self.sensors)
        return jnp.where(force_f > self.threshold, 0.0, context.memory + context.dt)

    def __call__(self, context: Context) -> Float[Array, " f"]:
        return context.memory


class FootContact(AbstractObservation):
    """1 for each foot in contact, else 0.

    sensors: names of touch sensors, one per foot. threshold: force, in N, above which a foot is in contact.
    """

    sensors: tuple[str, ...]
    threshold: float = 1.0

    def __call__(self, context: Context) -> Float[Array, " f"]:
        force_f = context.sensors(self.sensors)
        return (force_f > self.threshold).astype(force_f.dtype)
