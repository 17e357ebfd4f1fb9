"""Arrows for contact forces, commands and velocities."""

import math
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
import viser

from ksim.mdp.commands import CartesianCommand, HeadingCommand, VelocityCommand
from ksim.viewer.frame import Pose
from ksim.viewer.session import ViewSession

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

    Attributes:
        show_forces: The checkbox of the contact forces.
        show_commands: The checkbox of the commands.
    """

    def __init__(self, server: viser.ViserServer, session: ViewSession) -> None:
        self._server, self._session = server, session
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
                    f"{name}/{i}", np.zeros((3, 3)), np.array([[0, 1, 2]]), color=color, visible=False
                )
                for i, color in enumerate((FORCE, COMMANDED, MEASURED))
            }
            for name in names
        ]

    def update(self, poses: Sequence[Pose], offsets: np.ndarray) -> None:
        """Draws for the first robots, each moved by its offset, and nothing for the others."""
        for robot, (frame, meshes) in enumerate(zip(self._frames, self._meshes, strict=True)):
            pose = poses[robot] if robot < len(poses) else None
            drawn = {} if pose is None else self._drawn(pose)
            centre_3 = np.zeros(3)
            if pose is not None and self._session.base_body is not None:
                centre_3 = pose.data.xpos[self._session.base_body].copy()
            frame.position = centre_3 + offsets[robot]
            for color, handle in meshes.items():
                lines_n23 = np.array(drawn.get(color, [])).reshape(-1, 2, 3) - centre_3
                vertices, faces = arrow_mesh(lines_n23, _RADIUS * self._size)
                # Meshes, because viser rebuilds its own arrows whenever their points change.
                if len(faces):
                    handle.vertices, handle.faces = vertices, faces
                if handle.visible != bool(len(faces)):
                    handle.visible = bool(len(faces))

    def _drawn(self, pose: Pose) -> dict[Color, list[np.ndarray]]:
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

    The force is that on the second geom; on the first one where the second is fixed to the world.
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

    Args:
        lines_n23: The lines, in m.
        radius: Of the shafts, in m.
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
    rings = [start_n3[:, None] + radius * ring_n63, neck_n13 + radius * ring_n63, neck_n13 + 2.5 * radius * ring_n63]
    vertices = np.concatenate([*rings, (start_n3 + way_n3)[:, None]], axis=1)
    side = np.arange(_SIDES)
    after, tip = (side + 1) % _SIDES, np.full(_SIDES, 3 * _SIDES)
    quads = [(side + low, after + low, after + low + _SIDES, side + low + _SIDES) for low in (0, _SIDES)]
    faces = [triangle for a, b, c, d in quads for triangle in ((a, b, c), (a, c, d))]
    faces += [(side + 2 * _SIDES, after + 2 * _SIDES, tip)]
    own_faces = np.concatenate([np.stack(triangle, axis=1) for triangle in faces])
    all_faces = own_faces[None] + vertices.shape[1] * np.arange(len(vertices))[:, None, None]
    return vertices.reshape(-1, 3).astype(np.float32), all_faces.reshape(-1, 3).astype(np.uint32)
