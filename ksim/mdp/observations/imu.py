"""Observations of an inertial measurement unit: MuJoCo's sensors at a site, added to the model if missing.

Like all sensors, they describe the state before the last physics substep.
"""

import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import find_in_spec

_GYRO, _ACCELEROMETER = mujoco.mjtSensor.mjSENS_GYRO, mujoco.mjtSensor.mjSENS_ACCELEROMETER


class ImuGyro(AbstractObservation):
    """Angular velocity of a site in its own frame, in rad/s. `site`: position and orientation of the IMU."""

    site: str
    noise: AbstractNoise | None = None

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        _add_sensor(spec, self.site, _GYRO)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return _reading(context, self.site, _GYRO)


class ImuAccelerometer(AbstractObservation):
    """Accelerometer: acceleration minus gravity, in a site's frame, in m/s^2; 9.81 upwards at rest.

    site: position and orientation of the IMU.
    """

    site: str
    noise: AbstractNoise | None = None

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        _add_sensor(spec, self.site, _ACCELEROMETER)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return _reading(context, self.site, _ACCELEROMETER)


def _add_sensor(spec: mujoco.MjSpec, site: str, kind: mujoco.mjtSensor) -> None:
    find_in_spec(spec, "site", site)
    if not any(sensor.type == kind and sensor.objname == site for sensor in spec.sensors):
        word = kind.name.removeprefix("mjSENS_").lower()
        spec.add_sensor(name=f"ksim_{site}_{word}", type=kind, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)


def _reading(context: Context, site: str, kind: mujoco.mjtSensor) -> Float[Array, "3"]:
    model = context.model.mj_model
    # By its kind and place: the model's own sensor may have any name, or none.
    is_it = (model.sensor_type == int(kind)) & (model.sensor_objid == context.model.names.index("site", site))
    start = int(model.sensor_adr[np.flatnonzero(is_it)[0]])
    return context.derived("sensordata")[start : start + 3]
