"""Mirror images of touch sensors by position and name, for sensors that no trial state presses."""

import mujoco
import numpy as np
from jaxtyping import Bool, Int

from ksim.mirror.model import POLAR, TOLERANCE, base_frame
from ksim.physics.model import PhysicsModel
from ksim.physics.sides import side_pattern

_EVENTS = (
    *("TOUCH", "CONTACT", "RANGEFINDER", "INSIDESITE", "GEOMDIST", "GEOMNORMAL", "GEOMFROMTO", "TACTILE"),
    *(f"{of}LIMIT{what}" for of in ("JOINT", "TENDON") for what in ("POS", "VEL", "FRC")),
)
"""Kinds of sensors that react to contacts, distances and limits."""


def event_readings(physics_model: PhysicsModel) -> Bool[np.ndarray, " m"]:
    """A mask of the readings of contacts, distances and limits."""
    model = physics_model.mj_model
    kinds = [int(getattr(mujoco.mjtSensor, f"mjSENS_{name}")) for name in _EVENTS]
    return np.repeat(np.isin(model.sensor_type, kinds), model.sensor_dim)


def touch_images(physics_model: PhysicsModel) -> tuple[Bool[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """A mask of readings of touch sensors whose image is known, and for all readings the index of the image.

    The image of a sensor is the sensor on a site of the same size at the mirrored position in the default pose. If
    there are several, their names decide. If there is none, or the names do not decide, the image is not known.
    """
    model = physics_model.mj_model
    known, index = np.zeros(model.nsensordata, bool), np.arange(model.nsensordata)
    touch = np.flatnonzero(model.sensor_type == int(mujoco.mjtSensor.mjSENS_TOUCH))
    if not touch.size:
        return known, index
    sites = model.sensor_objid[touch]
    data = mujoco.MjData(model)
    data.qpos[:] = physics_model.default_qpos
    mujoco.mj_kinematics(model, data)
    origin_3, turn_33 = base_frame(physics_model, data)
    place_s3 = (data.site_xpos[sites] - origin_3) @ turn_33
    moving = np.unique(model.jnt_bodyid)
    size = max(float(np.ptp(data.xpos[moving], axis=0).max(initial=0.0)), 1e-3)
    patterns = np.array([side_pattern(model.sensor(int(i)).name) for i in touch])
    images = np.full(touch.size, -1)
    for i in range(touch.size):
        off_s = np.linalg.norm(place_s3 - POLAR * place_s3[i], axis=1)
        is_near_s = (off_s < TOLERANCE * size) & np.isclose(model.site_size[sites], model.site_size[sites[i]]).all(1)
        named_s = is_near_s & (patterns == patterns[i])
        candidates = np.flatnonzero(named_s if named_s.any() else is_near_s)
        if candidates.size == 1:
            images[i] = candidates[0]
    for i, image in enumerate(images):
        if image >= 0 and images[image] == i:
            place = int(model.sensor_adr[touch[i]])
            known[place], index[place] = True, int(model.sensor_adr[touch[image]])
    return known, index
