"""The robot in a picture: its geoms' outlines, seen from one side."""

import functools
from typing import Any, NamedTuple

import matplotlib.axes
import matplotlib.patches
import mujoco
import numpy as np
from scipy.spatial import ConvexHull

from docs.site.pictures.snapshot import Snapshot

FILL, EDGE = "#d5dde6", "#55636f"
AXES = ("#c8402f", "#2f8f5b", "#2c6fbb")
"""Colours of the x, y and z axes."""


class View(NamedTuple):
    """A viewing direction: the directions in the world that point right and up in the picture."""

    right: tuple[float, float, float]
    up: tuple[float, float, float]

    def __call__(self, points_n3: Any) -> np.ndarray:
        """Points in the world, (n, 3), as points of the picture, (n, 2)."""
        return np.asarray(points_n3) @ np.array([self.right, self.up]).T

    def depth(self, point_3: Any) -> float:
        """The distance of a point in the world towards the viewer, in m: larger is nearer."""
        return float(np.asarray(point_3) @ np.cross(self.right, self.up))


SIDE = View((1, 0, 0), (0, 0, 1))
BEHIND = View((0, -1, 0), (0, 0, 1))
ABOVE = View((1, 0, 0), (0, 1, 0))
OBLIQUE = View((0.87, 0.5, 0), (-0.17, 0.3, 0.94))


def draw_robot(
    ax: matplotlib.axes.Axes, seen: Snapshot, view: View, *, shift: Any = (0, 0), alpha: float = 1.0
) -> None:
    """Draws a robot in the pose of a context.

    Args:
        ax: Where; its units are m.
        seen: The context.
        view: Where it is seen from.
        shift: Moves it in the picture, in m.
        alpha: Its opacity.
    """
    mj_model = seen.model.mj_model
    data = mujoco.MjData(mj_model)
    data.qpos = seen.physics.qpos
    mujoco.mj_kinematics(mj_model, data)
    geoms = [g for g in range(mj_model.ngeom) if mj_model.geom_bodyid[g] > 0]
    for geom in sorted(geoms, key=lambda g: view.depth(data.geom_xpos[g])):
        points = _surface(mj_model, geom) @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
        outline = view(points)
        outline = outline[ConvexHull(outline).vertices] + np.asarray(shift)
        ax.add_patch(matplotlib.patches.Polygon(outline, fc=FILL, ec=EDGE, lw=0.7, alpha=alpha, joinstyle="round"))


def draw_ground(ax: matplotlib.axes.Axes) -> None:
    """Draws the floor, seen from a side, over the whole width."""
    ax.axhline(0, color=EDGE, lw=0.8, zorder=0)


def draw_axes(ax: matplotlib.axes.Axes, origin_3: Any, axes_33: Any, view: View, length: float = 0.22) -> None:
    """Draws a frame: x red, y green, z blue, where they do not point at the viewer.

    Args:
        ax: Where.
        origin_3: In the world, in m.
        axes_33: Its axes in the world, in columns.
        view: Where it is seen from.
        length: Of an axis, in m.
    """
    for axis_3, color, name in zip(np.asarray(axes_33).T, AXES, "xyz", strict=True):
        start, end = view([origin_3, np.asarray(origin_3) + length * axis_3])
        if np.linalg.norm(end - start) > 0.2 * length:
            arrow(ax, start, end, color, width=1.3)
            ax.text(*(end + 0.22 * (end - start)), name, color=color, fontsize=8, ha="center", va="center")


def arrow(
    ax: matplotlib.axes.Axes, start: Any, end: Any, color: str, *, width: float = 2.0, style: str = "-|>"
) -> None:
    """Draws an arrow between two points of a picture."""
    look = {"arrowstyle": style, "color": color, "lw": width, "mutation_scale": 9, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=end, xytext=start, arrowprops=look, annotation_clip=False)


@functools.lru_cache(maxsize=256)
def _surface_of(kind: int, size: tuple[float, float, float]) -> np.ndarray:
    turns = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    match kind:
        case mujoco.mjtGeom.mjGEOM_BOX:
            return np.array(np.meshgrid(*[(-s, s) for s in size])).reshape(3, -1).T
        case mujoco.mjtGeom.mjGEOM_SPHERE | mujoco.mjtGeom.mjGEOM_CAPSULE:
            up = np.linspace(-np.pi / 2, np.pi / 2, 9)
            turn, tilt = (x.ravel() for x in np.meshgrid(turns, up))
            ball = size[0] * np.stack([np.cos(tilt) * np.cos(turn), np.cos(tilt) * np.sin(turn), np.sin(tilt)], axis=1)
            half = size[1] if kind == mujoco.mjtGeom.mjGEOM_CAPSULE else 0.0
            along = np.array([0, 0, half])
            return np.concatenate([ball + along, ball - along])
    raise ValueError(f"Pictures draw boxes, spheres and capsules, not geoms of kind {kind}.")


def _surface(mj_model: mujoco.MjModel, geom: int) -> np.ndarray:
    """Points on the surface of a geom, in its own frame, whose hull it is."""
    return _surface_of(int(mj_model.geom_type[geom]), tuple(mj_model.geom_size[geom].tolist()))
