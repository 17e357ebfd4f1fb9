"""Appearance of a model in videos and viewers: light, sky and camera distance. The physics does not change."""

import math

import mujoco
import numpy as np

MARGIN = 1.3
"""Distance of the camera, relative to the distance at which the robot just fits into the picture."""


def add_light_and_sky(spec: mujoco.MjSpec) -> list[str]:
    """Adds a light and a sky if the model has none; returns the names of those added."""
    added = []
    if not spec.lights:
        light = spec.worldbody.add_light(pos=[0, 0, 4], dir=[0.2, 0.2, -1])
        light.type = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
        added.append("light")
    if not any(texture.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX for texture in spec.textures):
        spec.add_texture(
            name="ksim_sky",
            type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
            width=128,
            height=768,
            rgb1=[0.55, 0.7, 0.85],
            rgb2=[0.1, 0.15, 0.25],
        )
        added.append("sky")
    return added


def frame_robot(model: mujoco.MjModel, data: mujoco.MjData, body: int = 0) -> tuple[np.ndarray, float]:
    """The camera's target and distance that show the whole robot: its middle in the world, and the distance, in m.

    `data` is the pose, after `mj_forward`. `body` is a body of the robot; 0 for everything that is not fixed to the
    world.
    """
    of_geom = model.geom_bodyid
    mine = model.body_rootid[of_geom] == model.body_rootid[body] if body else model.body_weldid[of_geom] != 0
    mine &= model.geom_rbound > 0  # planes have none
    if not mine.any():
        return np.array(model.stat.center), float(model.stat.extent)
    pos, radius = data.geom_xpos[mine], model.geom_rbound[mine, None]
    middle_3 = ((pos - radius).min(axis=0) + (pos + radius).max(axis=0)) / 2
    reach = float((np.linalg.norm(pos - middle_3, axis=1) + radius[:, 0]).max())
    return middle_3, MARGIN * reach / math.sin(math.radians(model.vis.global_.fovy) / 2)
