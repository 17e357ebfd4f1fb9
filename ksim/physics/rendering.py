"""Appearance of a model in videos and viewers: light, sky, ground, paint and camera. The physics does not change."""

import copy
import math

import mujoco
import numpy as np

MARGIN = 1.1
"""Distance of the camera, relative to the distance at which its subject just fits into the picture."""
SUN_DIR = np.array([-0.45, 0.35, -0.9]) / np.linalg.norm([0.45, 0.35, 0.9])
"""The direction of the sun's light."""
SKY_RGB, HORIZON_RGB = (0.62, 0.77, 0.89), (0.93, 0.95, 0.97)
GROUND_RGB, LINE_RGB = ((0.74, 0.79, 0.83), (0.66, 0.72, 0.77)), (0.93, 0.95, 0.97)
"""The two colours of the ground's squares, of half a metre, and that of its lines, one each metre."""
TRUNK_RGB = (0.9, 0.9, 0.88)
LIMB_RGB = np.array([
    [0.90, 0.62, 0.00], [0.34, 0.71, 0.91], [0.00, 0.62, 0.45], [0.00, 0.45, 0.70], [0.84, 0.37, 0.00],
    [0.80, 0.47, 0.65],
])  # fmt: skip
"""Colours that people who see few colours can tell apart: Okabe & Ito 2008, "Color universal design"."""
UNPAINTED = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's colour of a geom that has none."""


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
            rgb1=SKY_RGB,
            rgb2=HORIZON_RGB,
        )
        added.append("sky")
    return added


def add_ground_material(spec: mujoco.MjSpec, name: str) -> None:
    """Adds the matte material of a ground, with a line each metre."""
    texture = spec.add_texture(
        name=name,
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        width=512,
        height=512,
        rgb1=GROUND_RGB[0],
        rgb2=GROUND_RGB[1],
    )
    texture.mark, texture.markrgb = mujoco.mjtMark.mjMARK_EDGE, LINE_RGB
    material = spec.add_material(name=name, texrepeat=[1, 1], texuniform=True, specular=0.1, shininess=0.1)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name


def painted(model: mujoco.MjModel, body: int = 0) -> mujoco.MjModel:
    """A copy in which geoms without a colour have one: the base's a light one, those of each limb another.

    Where a body has meshes to be seen, those to collide with are hidden. `body` is the base; 0 for a robot that is
    fixed to the world.
    """
    model = copy.copy(model)
    limb = np.full(model.nbody, -1)
    for i in range(1, model.nbody):
        parent = model.body_parentid[i]
        limb[i] = limb[parent] if parent not in (0, body) else limb.max() + 1 if i != body else -1
    is_plain = (model.geom_matid < 0) & np.all(np.abs(model.geom_rgba - UNPAINTED) < 1e-6, axis=1)
    is_plain &= model.body_weldid[model.geom_bodyid] != 0
    of_geom = limb[model.geom_bodyid]
    colors = np.where(of_geom[:, None] < 0, TRUNK_RGB, LIMB_RGB[of_geom % len(LIMB_RGB)])
    model.geom_rgba[is_plain, :3] = colors[is_plain]
    collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    is_seen = np.zeros(model.nbody, bool)
    is_seen[model.geom_bodyid[~collides & (model.geom_type == int(mujoco.mjtGeom.mjGEOM_MESH))]] = True
    is_hidden = collides & is_seen[model.geom_bodyid] & (model.body_weldid[model.geom_bodyid] != 0)
    model.geom_rgba[is_hidden, 3] = 0
    return model


def frame_robot(model: mujoco.MjModel, data: mujoco.MjData, body: int = 0) -> tuple[np.ndarray, float]:
    """The camera's target and distance that show the whole robot: its middle in the world, and the distance, in m."""
    middle_3, radius = bounding_sphere(model, data, body)
    return middle_3, camera_distance(model, radius)


def camera_distance(model: mujoco.MjModel, radius: float) -> float:
    """The distance of a camera that shows a sphere, in m."""
    return MARGIN * radius / math.sin(math.radians(model.vis.global_.fovy) / 2)


def bounding_sphere(model: mujoco.MjModel, data: mujoco.MjData, body: int = 0) -> tuple[np.ndarray, float]:
    """The middle of a robot in the world, and the radius of a sphere around it, in m.

    `data` is the pose, after `mj_forward`. `body` is a body of the robot; 0 for all bodies but the world.
    """
    of_geom = model.geom_bodyid
    mine = model.body_rootid[of_geom] == model.body_rootid[body] if body else of_geom != 0
    mine &= model.geom_rbound > 0  # planes have none
    if not mine.any():
        return np.array(model.stat.center), float(model.stat.extent) / 2
    pos, radius = data.geom_xpos[mine], model.geom_rbound[mine, None]
    middle_3 = ((pos - radius).min(axis=0) + (pos + radius).max(axis=0)) / 2
    return middle_3, float((np.linalg.norm(pos - middle_3, axis=1) + radius[:, 0]).max())
