"""A MuJoCo model as a scene in the browser, with the look of videos."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
import trimesh
import viser

from ksim.mdp.commands import CartesianCommand, HeadingCommand, VelocityCommand
from ksim.physics.rendering import (
    GROUND_RGB,
    HORIZON_RGB,
    LINE_RGB,
    SKY_RGB,
    SUN_DIR,
    UNPAINTED,
    bounding_sphere,
    painted,
)
from ksim.viewer.session import Pose, ViewSession

FORCE, COMMANDED, MEASURED = (230, 60, 40), (25, 180, 50), (25, 100, 255)
"""Colours: red for forces; as in videos, green for commanded and blue for measured values."""
WEIGHT_LENGTH = 0.8
"""Length of the arrow of a force equal to the robot's weight, in heights of its base."""
VELOCITY_S = 1.0
"""Seconds of motion that the arrow of a velocity and the arc of a yaw rate show."""
_RADIUS = 0.016
"""Radius of arrows, in heights of the base."""
_HEAD_LENGTH = 6.0
"""Length of arrow heads, in radii of the shaft."""
_SIDES, _ARC_STEPS = 8, 5

Color = tuple[int, int, int]


class Arrows:
    """The page's arrows and arcs, for every robot that is shown, with a checkbox for each kind.

    `scale` is the size of a metre in the scene.
    """

    def __init__(self, server: viser.ViserServer, session: ViewSession, scale: float) -> None:
        self._server, self._session, self._scale = server, session, scale
        data, base = session.data, session.base_body
        height = float(data.xpos[base][2]) if base is not None else float(session.mj_model.stat.extent) / 2
        self._size = height if height > 0.05 else 0.5
        self._weight = max(1e-6, float(session.mj_model.body_mass[1:].sum() * 9.81))
        self.show_forces = server.gui.add_checkbox("Contact forces", True, visible=session.has_forces)
        self.show_commands = server.gui.add_checkbox("Commands", True, visible=bool(session.commands))
        # Each frame moves with its robot, so that arrows drawn late by a slow page are still in place.
        names = [f"/world/arrows_{robot}" for robot in range(len(session.poses))]
        self._frames = [server.scene.add_frame(name, show_axes=False) for name in names]
        self._meshes = [
            {
                color: server.scene.add_mesh_simple(
                    f"{name}/{i}",
                    np.zeros((3, 3)),
                    np.array([[0, 1, 2]]),
                    color=color,
                    visible=False,
                    cast_shadow=False,
                )
                for i, color in enumerate((FORCE, COMMANDED, MEASURED))
            }
            for name in names
        ]

    def update(self, poses: Sequence[Pose], offsets: np.ndarray) -> None:
        """Draws for the first robots, each moved by its offset, and nothing for the others."""
        for robot, (frame, meshes) in enumerate(zip(self._frames, self._meshes, strict=True)):
            pose = poses[robot] if robot < len(poses) else None
            drawn = {} if pose is None else self._randomized(pose)
            centre_3 = np.zeros(3)
            if pose is not None and self._session.base_body is not None:
                centre_3 = pose.data.xpos[self._session.base_body].copy()
            frame.position = self._scale * (centre_3 + offsets[robot])
            for color, handle in meshes.items():
                lines_n23 = np.array(drawn.get(color, [])).reshape(-1, 2, 3) - centre_3
                vertices, faces = arrow_mesh(lines_n23, _RADIUS * self._size)
                # Meshes, because viser rebuilds its own arrows whenever their points change.
                if len(faces):
                    handle.vertices, handle.faces = np.float32(self._scale) * vertices, faces
                if handle.visible != bool(len(faces)):
                    handle.visible = bool(len(faces))

    def _randomized(self, pose: Pose) -> dict[Color, list[np.ndarray]]:
        """Arrows by colour, in the robot's world."""
        drawn = {FORCE: self._forces(pose)}
        if self.show_commands.value and pose.frame is not None:
            drawn |= self._commands(pose.data, pose.frame.commands)
        return drawn

    def _forces(self, pose: Pose) -> list[np.ndarray]:
        """Arrows of the contact forces; none where the actuators' forces are unknown."""
        if not self.show_forces.value or pose.frame is None or pose.frame.actuation is None:
            return []
        forces_c23 = contact_forces(self._session.mj_model, pose.data)
        forces_c23[:, 1] = forces_c23[:, 0] + WEIGHT_LENGTH * self._size / self._weight * forces_c23[:, 1]
        return list(forces_c23)

    def _commands(self, data: mujoco.MjData, values: Mapping[str, np.ndarray]) -> dict[Color, list[np.ndarray]]:
        """Arrows by colour, in the robot's world."""
        drawn: dict[Color, list[np.ndarray]] = {COMMANDED: [], MEASURED: []}
        base = self._session.base_body
        for name, command in self._session.commands.items():
            if name not in values:  # the recording lacks the command
                continue
            if isinstance(command, CartesianCommand):
                drawn[COMMANDED] += self._place(data, values[name])
            elif isinstance(command, HeadingCommand) and base is not None:
                ahead_3 = np.array([math.cos(values[name][0]), math.sin(values[name][0]), 0])
                drawn[COMMANDED].append(self._above(data, base) + np.outer([0, 1], 0.6 * self._size * ahead_3))
            elif isinstance(command, VelocityCommand) and base is not None:
                drawn[COMMANDED] += self._commanded_velocity(data, base, values[name])
                drawn[MEASURED].append(self._measured_velocity(data, base))
        return drawn

    def _commanded_velocity(self, data: mujoco.MjData, base: int, velocity_3: np.ndarray) -> list[np.ndarray]:
        forward_2, above_3 = heading(data, base), self._above(data, base)
        leftward_2 = np.array([-forward_2[1], forward_2[0]])
        way_2 = VELOCITY_S * (velocity_3[0] * forward_2 + velocity_3[1] * leftward_2)
        turn = VELOCITY_S * float(velocity_3[2])
        angles = math.atan2(forward_2[1], forward_2[0]) + np.linspace(0, turn, _ARC_STEPS + 1)
        circle = np.stack([np.cos(angles), np.sin(angles), np.zeros_like(angles)], axis=1)
        points = above_3 + 0.45 * self._size * circle
        return [np.stack([above_3, above_3 + np.append(way_2, 0)]), *np.stack([points[:-1], points[1:]], axis=1)]

    def _measured_velocity(self, data: mujoco.MjData, base: int) -> np.ndarray:
        velocity_6 = np.zeros(6)  # angular, then linear
        mujoco.mj_objectVelocity(self._session.mj_model, data, mujoco.mjtObj.mjOBJ_BODY, base, velocity_6, 0)
        below_3 = self._above(data, base) - [0, 0, 0.08 * self._size]
        return np.stack([below_3, below_3 + VELOCITY_S * np.append(velocity_6[3:5], 0)])

    def _place(self, data: mujoco.MjData, value_3: np.ndarray) -> list[np.ndarray]:
        """A cross of arrows that points at a place relative to the base."""
        base = self._session.base_body
        place_3 = value_3 if base is None else data.xpos[base] + data.xmat[base].reshape(3, 3) @ value_3
        return [np.stack([place_3 + 0.2 * self._size * axis_3, place_3]) for axis_3 in (*np.eye(3), *-np.eye(3))]

    def _above(self, data: mujoco.MjData, base: int) -> np.ndarray:
        return data.xpos[base] + [0, 0, 1.1 * self._size]


def heading(data: mujoco.MjData, body: int) -> np.ndarray:
    """The level direction of a body's x axis in the world, of length 1."""
    forward_2 = data.xmat[body].reshape(3, 3)[:2, 0]
    return forward_2 / max(1e-6, float(np.linalg.norm(forward_2)))


def contact_forces(mj_model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """Contacts as places, in m, and forces, in N, in the world, shape (contact, 2, 3).

    A force acts on the second geom, or on the first if the second is fixed to the world.
    """
    found, force_6 = [], np.zeros(6)
    for i in range(data.ncon):
        contact = data.contact[i]
        mujoco.mj_contactForce(mj_model, data, i, force_6)
        force_3 = contact.frame.reshape(3, 3).T @ force_6[:3]
        is_fixed = mj_model.body_weldid[mj_model.geom_bodyid[contact.geom2]] == 0 if contact.geom2 >= 0 else False
        found.append(np.stack([contact.pos, -force_3 if is_fixed else force_3]))
    return np.array(found).reshape(-1, 2, 3)


def arrow_mesh(lines_n23: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces of arrows from the first point of each line to its second; very short ones are left out.

    Lines and the radius of the shafts are in m.
    """
    way_n3 = lines_n23[:, 1] - lines_n23[:, 0]
    length_n = np.linalg.norm(way_n3, axis=1)
    kept = length_n > radius
    start_n3, way_n3, length_n = lines_n23[kept, 0], way_n3[kept], length_n[kept]
    along_n3 = way_n3 / length_n[:, None]
    helper_n3 = np.where(np.abs(along_n3[:, 2:]) < 0.9, [[0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]])
    across_n3 = np.cross(along_n3, helper_n3)
    across_n3 /= np.linalg.norm(across_n3, axis=1, keepdims=True)
    other_n3 = np.cross(along_n3, across_n3)
    head_n = np.minimum(_HEAD_LENGTH * radius, 0.5 * length_n)
    angles = np.linspace(0, 2 * np.pi, _SIDES, endpoint=False)
    ring_n63 = across_n3[:, None] * np.cos(angles)[:, None] + other_n3[:, None] * np.sin(angles)[:, None]
    neck_n13 = (start_n3 + along_n3 * (length_n - head_n)[:, None])[:, None]
    ring_n63 *= (radius * np.minimum(1, length_n / (2 * _HEAD_LENGTH * radius)))[:, None, None]  # short ones are thin
    rings = [start_n3[:, None] + ring_n63, neck_n13 + ring_n63, neck_n13 + 2.5 * ring_n63]
    vertices = np.concatenate([*rings, (start_n3 + way_n3)[:, None]], axis=1)
    side = np.arange(_SIDES)
    after, tip = (side + 1) % _SIDES, np.full(_SIDES, 3 * _SIDES)
    quads = [(side + low, after + low, after + low + _SIDES, side + low + _SIDES) for low in (0, _SIDES)]
    faces = [triangle for a, b, c, d in quads for triangle in ((a, b, c), (a, c, d))]
    faces += [(side + 2 * _SIDES, after + 2 * _SIDES, tip)]
    own_faces = np.concatenate([np.stack(triangle, axis=1) for triangle in faces])
    all_faces = own_faces[None] + vertices.shape[1] * np.arange(len(vertices))[:, None, None]
    return vertices.reshape(-1, 3).astype(np.float32), all_faces.reshape(-1, 3).astype(np.uint32)


GEOM = mujoco.mjtGeom
VISIBLE_GROUPS = (0, 1, 2)
"""Groups of geoms that are shown, as in MuJoCo's viewer; collision shapes are usually in others."""

INFINITE_PLANE_M = 200.0
"""Side of a plane that the model calls infinite."""

SPACING = 2.2
"""Distance between robots, relative to the radius of one: a bit more than its size."""

LINE_SPACING_M = 1.0
"""Distance between the lines on a plane, which show the speed of the robot."""

SUN, FILL = 2.4, 1.8
"""Brightness of the sun and of the light from all sides."""
FADE = 40.0
"""Distance at which the ground has faded into the horizon, in radii of the robot."""


class BrowserScene:
    """The robots and their world, under one root that can be shifted to follow one of them.

    It has the look of videos: their paint, sky, sun and ground. The world is scaled such that a robot has a radius of
    1, since the page's map of shadows and its camera are made for that size.

    Attributes:
        scale: The size of a metre in the scene.
        offsets: Offset of each robot's world in the scene, in m, shape (robot, 3): side by side on a plane, zero on a
            terrain.
    """

    def __init__(
        self, server: viser.ViserServer, mj_model: mujoco.MjModel, base_body: int | None, num_robots: int = 1
    ) -> None:
        mj_model = painted(mj_model, base_body or 0)
        self._server = server
        radius = _radius(mj_model)
        self.scale = 1 / radius
        add_sky_and_sun(server.scene)
        self._root = server.scene.add_frame("/world", show_axes=False)  # viser scales no children
        self.offsets = robot_offsets(mj_model, num_robots, radius)
        self._robots: list[viser.FrameHandle] = []
        self._bodies: list[dict[int, viser.FrameHandle]] = []
        geoms = [
            geom
            for geom in range(mj_model.ngeom)
            if int(mj_model.geom_group[geom]) in VISIBLE_GROUPS and geom_rgba(mj_model, geom)[3] > 0
        ]
        for robot, offset_3 in enumerate(self.offsets):
            name = f"/world/robot_{robot}"
            self._robots.append(server.scene.add_frame(name, show_axes=False, position=self.scale * offset_3))
            bodies: dict[int, viser.FrameHandle] = {}
            # All robots share one floor and one terrain.
            for geom in [geom for geom in geoms if robot == 0 or not is_shared(mj_model, geom)]:
                body = int(mj_model.geom_bodyid[geom])
                if body not in bodies:
                    bodies[body] = server.scene.add_frame(f"{name}/body_{body}", show_axes=False)
                add_geom(server.scene, mj_model, geom, f"{name}/body_{body}/geom_{geom}", scale=self.scale)
            self._bodies.append(bodies)

    def update(self, poses: Sequence[mujoco.MjData], centre_3: np.ndarray) -> None:
        """Updates the poses of the first robots, hides the rest, and shifts the world.

        `centre_3`, a point of the scene before the shift, in m, moves to the scene's origin.
        """
        self._root.position = -self.scale * centre_3
        for data, bodies in zip(poses, self._bodies, strict=False):
            for body, frame in bodies.items():
                if body:  # the world body never moves
                    frame.position = self.scale * data.xpos[body]
                    frame.wxyz = data.xquat[body]
        for robot, frame in enumerate(self._robots):
            is_shown = robot < len(poses)
            if frame.visible != is_shown:
                frame.visible = is_shown


def is_shared(mj_model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom is a floor or a terrain, which robots share."""
    return int(mj_model.geom_type[geom]) in (GEOM.mjGEOM_PLANE, GEOM.mjGEOM_HFIELD)


def _radius(mj_model: mujoco.MjModel) -> float:
    """The radius of a robot in its reference pose, in m."""
    data = mujoco.MjData(mj_model)
    mujoco.mj_forward(mj_model, data)
    return max(1e-3, bounding_sphere(mj_model, data)[1])


def robot_offsets(mj_model: mujoco.MjModel, num_robots: int, radius: float) -> np.ndarray:
    """Offsets of robots side by side in a square about the origin, in m; zeros on a terrain, where all meet."""
    if (mj_model.geom_type == GEOM.mjGEOM_HFIELD).any():
        return np.zeros((num_robots, 3))
    spacing = SPACING * radius
    columns = math.ceil(math.sqrt(num_robots))
    offsets = np.array([[-spacing * (i // columns), spacing * (i % columns), 0.0] for i in range(num_robots)])
    return offsets - offsets.mean(axis=0)


def add_sky_and_sun(scene: viser.SceneApi) -> None:
    """Adds the sky of videos, behind everything, and their sun, whose shadows are where the camera looks."""
    up_h = np.clip(np.linspace(1, -1, 256), 0, 1)[:, None]  # the horizon is at half the height
    rows_h3 = up_h * SKY_RGB + (1 - up_h) * np.array(HORIZON_RGB)
    scene.set_background_image(np.round(255 * rows_h3[:, None]).astype(np.uint8).repeat(2, axis=1), format="png")
    scene.configure_default_lights(enabled=False)
    away_3 = -10 * SUN_DIR
    scene.add_light_directional(
        "/sun", intensity=SUN, cast_shadow=True, position=(float(away_3[0]), float(away_3[1]), float(away_3[2]))
    )
    scene.configure_environment_map(None)
    sky, ground = _bytes(np.array(HORIZON_RGB)), _bytes(np.mean(GROUND_RGB, axis=0))
    scene.add_light_hemisphere("/sky", sky_color=sky, ground_color=ground, intensity=FILL, position=(0.0, 0.0, 1.0))


def _bytes(rgb: np.ndarray) -> Color:
    red, green, blue = np.round(255 * rgb).astype(int).tolist()
    return red, green, blue


def line_rgb(ground_rgb: np.ndarray) -> np.ndarray:
    """The colour of the lines on a ground: that of videos, or a darker one on a ground that is as light as that."""
    is_light = ground_rgb.mean() > np.mean(LINE_RGB) - 0.05
    return np.array(GROUND_RGB[1]) if is_light else np.array(LINE_RGB)


def add_geom(scene: viser.SceneApi, mj_model: mujoco.MjModel, geom: int, name: str, *, scale: float) -> None:
    """Adds a geom to its body; kinds without a visible shape are left out. `scale` is the size of a metre."""
    rgba = geom_rgba(mj_model, geom)
    rgb = np.round(255 * rgba[:3]).astype(np.uint8)
    size, kind = mj_model.geom_size[geom], int(mj_model.geom_type[geom])
    pose: dict[str, Any] = {"position": scale * mj_model.geom_pos[geom], "wxyz": mj_model.geom_quat[geom]}
    look: dict[str, Any] = pose | {"color": rgb, "opacity": None if rgba[3] >= 1 else float(rgba[3]), "scale": scale}
    if kind == GEOM.mjGEOM_PLANE:
        width, height = (2 * float(half) if half > 0 else INFINITE_PLANE_M for half in size[:2])
        lines = np.round(255 * line_rgb(rgba[:3])).astype(np.uint8)
        scene.add_grid(
            name,
            width,
            height,
            **pose,
            scale=scale,
            cell_size=LINE_SPACING_M,
            section_size=5 * LINE_SPACING_M,
            cell_color=lines,
            section_color=lines,
            fade_distance=FADE,
            shadow_opacity=0.3,
            plane_color=rgb,
            plane_opacity=float(rgba[3]),
        )
    elif kind == GEOM.mjGEOM_SPHERE:
        scene.add_icosphere(name, float(size[0]), **look)
    elif kind == GEOM.mjGEOM_ELLIPSOID:
        radii_3 = scale * size
        look["scale"] = (float(radii_3[0]), float(radii_3[1]), float(radii_3[2]))
        scene.add_icosphere(name, 1.0, **look)
    elif kind == GEOM.mjGEOM_CYLINDER:
        scene.add_cylinder(name, float(size[0]), 2 * float(size[1]), **look)
    elif kind == GEOM.mjGEOM_BOX:
        scene.add_box(name, dimensions=2 * size, **look)
    elif kind == GEOM.mjGEOM_CAPSULE:
        vertices, faces = capsule(float(size[0]), float(size[1]))
        scene.add_mesh_simple(name, vertices, faces, **look)
    elif kind in (GEOM.mjGEOM_MESH, GEOM.mjGEOM_SDF):
        vertices, faces = mesh(mj_model, int(mj_model.geom_dataid[geom]))
        # Flat shading shows a robot's edges. Both sides, because the faces of some meshes point inwards.
        scene.add_mesh_simple(name, vertices, faces, flat_shading=True, side="double", **look)
    elif kind == GEOM.mjGEOM_HFIELD:
        vertices, faces = height_field(mj_model, int(mj_model.geom_dataid[geom]))
        scene.add_mesh_simple(name, vertices, faces, flat_shading=True, side="double", **look)


def geom_rgba(mj_model: mujoco.MjModel, geom: int) -> np.ndarray:
    """The colour of a geom: its own if set, else its material's, times the mean of its texture.

    A plane without any has that of the ground in videos.
    """
    rgba, material = np.array(mj_model.geom_rgba[geom], float), int(mj_model.geom_matid[geom])
    if material < 0:
        is_plane = int(mj_model.geom_type[geom]) == GEOM.mjGEOM_PLANE
        return np.array([*np.mean(GROUND_RGB, axis=0), 1]) if is_plane and np.allclose(rgba, UNPAINTED) else rgba
    if np.allclose(rgba, UNPAINTED):
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
    """Vertices, in m, and faces of a capsule along z about the origin, with a cylinder of `half_length`."""
    shape = trimesh.creation.icosphere(subdivisions=3, radius=radius)
    # A sphere divided at its equator. The icosphere's vertices on the equator go to the upper half.
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
