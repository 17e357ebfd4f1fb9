"""Geometry of geoms: their lowest points and bounding boxes."""

import mujoco
import numpy as np

_GEOM = mujoco.mjtGeom


def in_world(data: mujoco.MjData, body: int, point_3: np.ndarray | tuple[float, float, float]) -> np.ndarray:
    """The world position, in m, of a point given in a body's frame, in m. `mj_kinematics` must have run."""
    return data.xpos[body] + data.xmat[body].reshape(3, 3) @ point_3


def collides(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom can touch anything, by its contact bits or by a `<pair>`."""
    in_pair = geom in model.pair_geom1 or geom in model.pair_geom2
    return bool(model.geom_contype[geom] or model.geom_conaffinity[geom] or in_pair)


def lowest_point(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> np.ndarray:
    """A geom's lowest point in the world, in m. `mj_kinematics` must have run."""
    turn = data.geom_xmat[geom].reshape(3, 3)
    down_3 = -turn[2]  # in the geom's frame
    size, kind = model.geom_size[geom], int(model.geom_type[geom])
    if kind == _GEOM.mjGEOM_SPHERE:
        point_3 = size[0] * down_3
    elif kind == _GEOM.mjGEOM_CAPSULE:
        point_3 = size[0] * down_3 + [0, 0, np.copysign(size[1], down_3[2])]
    elif kind == _GEOM.mjGEOM_CYLINDER:
        across = max(float(np.hypot(down_3[0], down_3[1])), 1e-9)
        point_3 = np.array([*(size[0] * down_3[:2] / across), np.copysign(size[1], down_3[2])])
    elif kind == _GEOM.mjGEOM_ELLIPSOID:
        point_3 = size**2 * down_3 / np.linalg.norm(size * down_3)
    elif kind == _GEOM.mjGEOM_MESH:
        mesh = int(model.geom_dataid[geom])
        start = int(model.mesh_vertadr[mesh])
        vertices = model.mesh_vert[start : start + int(model.mesh_vertnum[mesh])]
        point_3 = vertices[int((vertices @ down_3).argmax())]
    else:
        middle, half = model.geom_aabb[geom][:3], model.geom_aabb[geom][3:]
        point_3 = middle + np.copysign(half, down_3)
    return data.geom_xpos[geom] + turn @ point_3


def box_in_body(model: mujoco.MjModel, geom: int) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half sizes, in m, of a geom's bounding box along the axes of its body."""
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
    turn = turn.reshape(3, 3)
    middle, half = model.geom_aabb[geom][:3], model.geom_aabb[geom][3:]
    return model.geom_pos[geom] + turn @ middle, np.abs(turn) @ half
