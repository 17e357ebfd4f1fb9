"""A MuJoCo model as a scene in the browser."""

import math
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import trimesh
import viser

from ksim.physics.looks import frame_robot

GEOM = mujoco.mjtGeom
VISIBLE_GROUPS = (0, 1, 2)
"""Groups of geoms that are shown, as in MuJoCo's viewer; collision shapes are usually in others."""

INFINITE_PLANE_M = 200.0
"""Side of a plane that the model calls infinite."""

SPACING = 0.65
"""Distance between robots, as a fraction of the camera distance that frames one robot: a bit more than its size."""

LINE_SPACING_M = 1.0
"""Distance between the lines on a plane, which show the speed of the robot."""

_UNTOUCHED_RGBA = (0.5, 0.5, 0.5, 1.0)


class BrowserScene:
    """The robots and their world, under one root that can be shifted to follow one of them.

    Attributes:
        offsets: Offset of each robot's world in the scene, in m, shape (robot, 3): side by side on a plane, zero on a
            terrain.
    """

    def __init__(self, server: viser.ViserServer, mj_model: mujoco.MjModel, num_robots: int = 1) -> None:
        self._server = server
        self._root = server.scene.add_frame("/world", show_axes=False)
        self.offsets = robot_offsets(mj_model, num_robots)
        self._robots: list[viser.FrameHandle] = []
        self._bodies: list[dict[int, viser.FrameHandle]] = []
        geoms = [
            geom
            for geom in range(mj_model.ngeom)
            if int(mj_model.geom_group[geom]) in VISIBLE_GROUPS and geom_rgba(mj_model, geom)[3] > 0
        ]
        for robot, offset_3 in enumerate(self.offsets):
            name = f"/world/robot_{robot}"
            self._robots.append(server.scene.add_frame(name, show_axes=False, position=offset_3))
            bodies: dict[int, viser.FrameHandle] = {}
            # One floor, and one terrain that all stand on.
            for geom in [geom for geom in geoms if robot == 0 or not is_shared(mj_model, geom)]:
                body = int(mj_model.geom_bodyid[geom])
                if body not in bodies:
                    bodies[body] = server.scene.add_frame(f"{name}/body_{body}", show_axes=False)
                add_geom(server.scene, mj_model, geom, f"{name}/body_{body}/geom_{geom}")
            self._bodies.append(bodies)

    def update(self, poses: Sequence[mujoco.MjData], centre_3: np.ndarray) -> None:
        """Updates the poses of the first robots, and shifts the world so that `centre_3` is at the scene's origin.

        Args:
            poses: Of each robot; those beyond are hidden.
            centre_3: In the scene before the shift, in m.
        """
        self._root.position = -centre_3
        for data, bodies in zip(poses, self._bodies, strict=False):
            for body, frame in bodies.items():
                if body:  # the world's own never moves
                    frame.position = data.xpos[body]
                    frame.wxyz = data.xquat[body]
        for robot, frame in enumerate(self._robots):
            is_shown = robot < len(poses)
            if frame.visible != is_shown:
                frame.visible = is_shown


def is_shared(mj_model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom is a floor or a terrain, of which one is enough for many robots."""
    return int(mj_model.geom_type[geom]) in (GEOM.mjGEOM_PLANE, GEOM.mjGEOM_HFIELD)


def robot_offsets(mj_model: mujoco.MjModel, num_robots: int) -> np.ndarray:
    """Offsets of robots side by side in a square about the origin, in m; zeros on a terrain, where all meet."""
    if (mj_model.geom_type == GEOM.mjGEOM_HFIELD).any():
        return np.zeros((num_robots, 3))
    data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, data)
    spacing = SPACING * frame_robot(mj_model, data)[1]
    columns = math.ceil(math.sqrt(num_robots))
    offsets = np.array([[-spacing * (i // columns), spacing * (i % columns), 0.0] for i in range(num_robots)])
    return offsets - offsets.mean(axis=0)


def add_geom(scene: viser.SceneApi, mj_model: mujoco.MjModel, geom: int, name: str) -> None:
    """Adds a geom to its body; kinds without a visible shape are left out."""
    rgba = geom_rgba(mj_model, geom)
    rgb = np.round(255 * rgba[:3]).astype(np.uint8)
    size, kind = mj_model.geom_size[geom], int(mj_model.geom_type[geom])
    pose: dict[str, Any] = {"position": mj_model.geom_pos[geom], "wxyz": mj_model.geom_quat[geom]}
    look: dict[str, Any] = pose | {"color": rgb, "opacity": None if rgba[3] >= 1 else float(rgba[3])}
    if kind == GEOM.mjGEOM_PLANE:
        width, height = (2 * float(half) if half > 0 else INFINITE_PLANE_M for half in size[:2])
        lines = np.round(0.85 * rgb).astype(np.uint8)
        scene.add_grid(
            name,
            width,
            height,
            **pose,
            cell_size=LINE_SPACING_M,
            section_size=5 * LINE_SPACING_M,
            cell_color=lines,
            section_color=lines,
            section_thickness=1.5,
            fade_distance=40.0,
            plane_color=rgb,
            plane_opacity=float(rgba[3]),
        )
    elif kind == GEOM.mjGEOM_SPHERE:
        scene.add_icosphere(name, float(size[0]), **look)
    elif kind == GEOM.mjGEOM_ELLIPSOID:
        scene.add_icosphere(name, 1.0, scale=(float(size[0]), float(size[1]), float(size[2])), **look)
    elif kind == GEOM.mjGEOM_CYLINDER:
        scene.add_cylinder(name, float(size[0]), 2 * float(size[1]), **look)
    elif kind == GEOM.mjGEOM_BOX:
        scene.add_box(name, dimensions=2 * size, **look)
    elif kind == GEOM.mjGEOM_CAPSULE:
        vertices, faces = capsule(float(size[0]), float(size[1]))
        scene.add_mesh_simple(name, vertices, faces, **look)
    elif kind in (GEOM.mjGEOM_MESH, GEOM.mjGEOM_SDF):
        vertices, faces = mesh(mj_model, int(mj_model.geom_dataid[geom]))
        # Flat, for a robot's edges; both sides, since not every mesh turns its faces outwards.
        scene.add_mesh_simple(name, vertices, faces, flat_shading=True, side="double", **look)
    elif kind == GEOM.mjGEOM_HFIELD:
        vertices, faces = height_field(mj_model, int(mj_model.geom_dataid[geom]))
        scene.add_mesh_simple(name, vertices, faces, flat_shading=True, side="double", **look)


def geom_rgba(mj_model: mujoco.MjModel, geom: int) -> np.ndarray:
    """The colour of a geom: its own if set, else its material's, times the mean of its texture."""
    rgba, material = np.array(mj_model.geom_rgba[geom], float), int(mj_model.geom_matid[geom])
    if material < 0:
        return rgba
    if np.allclose(rgba, _UNTOUCHED_RGBA):
        rgba = np.array(mj_model.mat_rgba[material], float)
    texture = int(mj_model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB])
    if texture >= 0:
        num_channels = int(mj_model.tex_nchannel[texture])
        start = int(mj_model.tex_adr[texture])
        num_bytes = int(mj_model.tex_height[texture] * mj_model.tex_width[texture]) * num_channels
        pixels = mj_model.tex_data[start : start + num_bytes].reshape(-1, num_channels)
        rgba[:3] *= pixels[:, :3].mean(axis=0) / 255  # a texture with one channel is grey
    return rgba


def capsule(radius: float, half_length: float) -> tuple[np.ndarray, np.ndarray]:
    """Vertices, in m, and faces of a capsule along z about the origin; `half_length` is that of its cylinder."""
    shape = trimesh.creation.icosphere(subdivisions=3, radius=radius)
    # A sphere pulled apart at its equator; the icosphere has vertices there, which go to the upper half.
    vertices = np.array(shape.vertices)
    vertices[:, 2] += np.where(vertices[:, 2] > -1e-9, half_length, -half_length)
    return vertices, np.array(shape.faces)


def mesh(mj_model: mujoco.MjModel, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices, in m, and faces of a mesh asset."""
    vertex, face = int(mj_model.mesh_vertadr[index]), int(mj_model.mesh_faceadr[index])
    return (
        np.array(mj_model.mesh_vert[vertex : vertex + mj_model.mesh_vertnum[index]]),
        np.array(mj_model.mesh_face[face : face + mj_model.mesh_facenum[index]]),
    )


def height_field(mj_model: mujoco.MjModel, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices, in m, and faces of the surface of a height field asset."""
    num_rows, num_columns = int(mj_model.hfield_nrow[index]), int(mj_model.hfield_ncol[index])
    half_x, half_y, top, _ = mj_model.hfield_size[index]
    start = int(mj_model.hfield_adr[index])
    height = top * mj_model.hfield_data[start : start + num_rows * num_columns]
    x, y = np.meshgrid(np.linspace(-half_x, half_x, num_columns), np.linspace(-half_y, half_y, num_rows))
    corner = (np.arange(num_rows - 1)[:, None] * num_columns + np.arange(num_columns - 1)).ravel()
    right, up, across = corner + 1, corner + num_columns, corner + num_columns + 1
    faces = np.concatenate([np.stack([corner, right, across], axis=1), np.stack([corner, across, up], axis=1)])
    return np.stack([x.ravel(), y.ravel(), height], axis=1), faces
