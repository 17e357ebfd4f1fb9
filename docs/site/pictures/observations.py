"""Pictures of observations of a state: vectors and frames, drawn from the values that the terms return."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import matplotlib.patches
import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures.body import ABOVE, EDGE, OBLIQUE, SIDE, View, arrow, draw_axes, draw_robot
from docs.site.pictures.panels import COLORS, Draw, figure, note, numbers, scene, sweep
from docs.site.pictures.robot import DT, FEET, STAIRS, commanding, context, joint_angles, model
from docs.site.pictures.snapshot import Snapshot, values_apart
from ksim.mdp import observations

VECTOR = "#b3176b"
_STEP = joint_angles(left_hip=-0.8, left_knee=0.9, right_hip=0.2, right_knee=0.3)
LEGS = ("left_shin", "right_shin")


@functools.cache
def _moving(at: tuple[float, float] = (0.0, 0.0)) -> Snapshot:
    """A robot that has turned left, and walks and turns while its left leg swings."""
    return context(
        joints=_STEP,
        at=at,
        yaw=0.7,
        pitch=0.15,
        lin_vel=(0.5, 0.0, 0.05),
        ang_vel=(0.0, 0.5, 1.0),
        joint_vel={"left_hip": -3.0},
    )


def value_of(term: Any, seen: Snapshot) -> np.ndarray:
    """A term's value in one context."""
    return values_apart(term, [seen])[0]


def _base_frame(seen: Snapshot) -> tuple[np.ndarray, np.ndarray]:
    """The origin of the base's frame in the world and its axes, in columns."""
    base = seen.model.names.base_body()
    return np.asarray(seen.physics.derived["xpos"][base]), matrix(seen.physics.derived["xquat"][base])


def matrix(quaternion: Any) -> np.ndarray:
    """The axes, in columns, of an orientation (w, x, y, z)."""
    w, x, y, z = np.asarray(quaternion, float)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _world_frame(_: Snapshot) -> tuple[np.ndarray, np.ndarray]:
    return np.array([-0.55, -0.35, 0.0]), np.eye(3)


def _points(kind: str, names: Sequence[str]) -> Callable[[Snapshot], np.ndarray]:
    """Positions in the world of the named bodies or sites."""
    field = {"body": "xpos", "site": "site_xpos"}[kind]
    return lambda seen: np.asarray(seen.physics.derived[field])[[seen.model.names.index(kind, n) for n in names]]


_BASE = _points("body", ("trunk",))


def _vectors(
    term: Any,
    unit: str,
    *,
    in_base: bool,
    at: Callable[[Snapshot], np.ndarray] | None = None,
    scale: float = 0.5,
    names: Sequence[str] = ("",),
    view: View = OBLIQUE,
    seen: Callable[[], Snapshot] = _moving,
    words: Sequence[str] = (),
) -> Draw:
    """A picture of vectors that a term returns, turned into the world from the frame in which it gives them.

    Args:
        term: Returns one vector or several, in rows.
        unit: Of the vectors.
        in_base: Whether they are in the base's frame; else they are in the world's.
        at: Where in the world each is drawn; by default at the base.
        scale: m of the picture per unit.
        names: Of the vectors.
        view: Where the picture is seen from.
        seen: The context.
        words: What else to write.
    """

    def draw() -> Figure:
        now = seen()
        value_n3 = value_of(term, now).reshape(-1, 3)
        origin, axes_33 = (_base_frame if in_base else _world_frame)(now)
        fig, ax = scene()
        draw_robot(ax, now, view)
        draw_axes(ax, origin, axes_33, view)
        for start, vector in zip((at or _BASE)(now), value_n3 @ axes_33.T, strict=True):
            arrow(ax, *view([start, start + scale * vector]), VECTOR, width=2.4)
        rows = [f"{name + ': ' if name else ''}{numbers(row)}" for name, row in zip(names, value_n3, strict=True)]
        frame = "the base's frame" if in_base else "the world frame"
        note(fig, [f"in {frame} (x red, y green, z blue),", f"in {unit}:", *rows, *words])
        return fig

    return draw


def _places(term: Any, *, in_base: bool, names: Sequence[str]) -> Draw:
    """A picture of positions: arrows from the origin of their frame."""

    def draw() -> Figure:
        now = _moving((0.3, 0.25))
        origin, axes_33 = _base_frame(now) if in_base else (np.zeros(3), np.eye(3))
        value_n3 = value_of(term, now).reshape(-1, 3)
        fig, ax = scene()
        draw_robot(ax, now, OBLIQUE)
        draw_axes(ax, origin, axes_33, OBLIQUE, 0.18)
        for point in origin + value_n3 @ axes_33.T:
            arrow(ax, *OBLIQUE([origin, point]), VECTOR, width=2.2)
        rows = [f"{name}: {numbers(row)}" for name, row in zip(names, value_n3, strict=True)]
        frame = "the base's frame" if in_base else "the world frame"
        note(fig, [f"in {frame} (x red, y green, z blue),", "in m:", *rows])
        return fig

    return draw


def _orientations(
    term: Any, at: Callable[[Snapshot], np.ndarray], names: Sequence[str], *, in_base: bool = False
) -> Draw:
    """A picture of orientations: the frames that the quaternions stand for."""

    def draw() -> Figure:
        now = _moving()
        value_n4 = value_of(term, now).reshape(-1, 4)
        _, base_33 = _base_frame(now)
        fig, ax = scene()
        draw_robot(ax, now, OBLIQUE, alpha=0.6)
        for origin, quaternion in zip(at(now), value_n4, strict=True):
            axes_33 = matrix(quaternion)
            draw_axes(ax, origin, base_33 @ axes_33 if in_base else axes_33, OBLIQUE, 0.2)
        rows = [f"{name}: {numbers(row)}" for name, row in zip(names, value_n4, strict=True)]
        reference = "relative to the base's frame" if in_base else "relative to the world frame"
        note(fig, ["the frames drawn (x red, y green, z blue),", f"{reference}, as (w, x, y, z):", *rows])
        return fig

    return draw


def _height_scan() -> Figure:
    seen = context(of=model(DT, STAIRS), at=(-0.7, 0.0), height=0.79, joints=_STEP)
    term = observations.HeightScan(size=(1.2, 0.6), spacing=0.1, offset=0.0, clip=2.0)
    value_xy = value_of(term, seen).reshape(13, 7)
    fig, ax = scene(-0.1, 1.1, 2.4)
    view = View((1, 0.12, 0), (0, 0.25, 1))
    x, y = np.meshgrid(np.linspace(-0.6, 0.6, 13) - 0.7, np.linspace(-0.3, 0.3, 7), indexing="ij")
    points = view(np.stack([x.ravel() + 0.7, y.ravel(), value_xy.ravel() + 0.79], axis=1))
    ax.scatter(*points.T, c=value_xy.ravel(), cmap="viridis", s=14)
    draw_robot(ax, seen, view, shift=(0.7, 0), alpha=0.9)
    note(
        fig,
        [
            "each point: height of the ground there",
            "minus the height of the base, in m,",
            f"from {value_xy.min():.2f} (dark) to {value_xy.max():.2f} (light);",
            "size=(1.2, 0.6), spacing=0.1",
        ],
    )
    return fig


def _base_height() -> Figure:
    seen = context(of=model(DT, STAIRS), at=(0.0, 0.0), height=0.83)
    ground = float(np.asarray(seen.model.ground.height(jnp.zeros((1, 2))))[0])
    value = float(value_of(observations.BaseHeight(), seen))
    fig, ax = scene(-0.06, 1.14)
    x = np.linspace(-1.2, 1.2, 400)
    line = np.stack([x, np.zeros_like(x)], axis=1).astype(np.float32)
    ax.plot(x, np.asarray(seen.model.ground.height(jnp.asarray(line))), color=EDGE, lw=1)
    draw_robot(ax, seen, SIDE)
    arrow(ax, (0.2, 0.83), (0.2, 0.83 - value), VECTOR, style="<|-|>")
    note(fig, [f"height above the ground: {value:.2f} m,", f"on ground that is {ground:.2f} m high"])
    return fig


def _heading_error() -> Figure:
    seen = context(yaw=-0.3, joints=joint_angles(hip=-0.4), **commanding(0.8))
    value = float(value_of(observations.HeadingError("command"), seen))
    fig, ax = scene(-0.35, 0.55)
    draw_robot(ax, seen, ABOVE)
    for angle, label, color in ((-0.3, "heading", EDGE), (0.8, "command", VECTOR)):
        end = 0.5 * np.array([np.cos(angle), np.sin(angle)])
        arrow(ax, (0, 0), end, color)
        ax.text(*(1.1 * end), label, fontsize=8, color=color, va="center")
    arc = matplotlib.patches.Arc(
        (0, 0), 0.6, 0.6, theta1=np.degrees(-0.3), theta2=np.degrees(-0.3 + value), color=COLORS[0]
    )
    ax.add_patch(arc)
    note(fig, [f"error: {value:.2f} rad,", "positive: the base must turn left", "(seen from above)"])
    return fig


def _inertia() -> Figure:
    value_b10 = value_of(observations.CenterOfMassInertia(), _moving())
    mj_model = model().mj_model
    fig, (ax,) = figure(1.5)
    image = ax.imshow(np.sign(value_b10) * np.sqrt(np.abs(value_b10)), aspect="auto", cmap="PuOr", vmin=-2.7, vmax=2.7)
    ax.set_yticks(range(mj_model.nbody - 1), [mj_model.body(i).name for i in range(1, mj_model.nbody)], fontsize=6.5)
    labels = ("Ixx", "Iyy", "Izz", "Ixy", "Ixz", "Iyz", "m x", "m y", "m z", "m")
    ax.set_xticks(range(10), labels, fontsize=8)
    for (row, column), number in np.ndenumerate(value_b10):
        ax.text(column, row, f"{number:.2g}", ha="center", va="center", fontsize=6)
    image.set_alpha(0.6)
    ax.set_xlabel("about the robot's centre of mass, in kg, kg m and kg m²", fontsize=9, labelpad=2)
    return fig


def _gravity(pitch: float) -> Snapshot:
    return context(pitch=pitch, height=0.55)


def _joint_position() -> Figure:
    draw = sweep(
        observations.JointPosition(("left_knee",)),
        lambda x: context(joints=joint_angles(left_knee=x), height=0.59),
        (0.0, 2.0),
        "left knee, rad",
        y_label="observation, rad",
        view=SIDE,
        marks={0.5: "default pose"},
    )
    return draw()


_BODIES = _points("body", LEGS)
_FEET = _points("site", FEET)

PICTURES: dict[type, Draw] = {
    observations.ProjectedGravity: _vectors(
        observations.ProjectedGravity(),
        "unit length",
        in_base=True,
        scale=0.4,
        view=SIDE,
        seen=lambda: _gravity(0.4),
    ),
    observations.BaseLinearVelocity: _vectors(observations.BaseLinearVelocity(), "m/s", in_base=True),
    observations.BaseLinearVelocityWorld: _vectors(observations.BaseLinearVelocityWorld(), "m/s", in_base=False),
    observations.BaseAngularVelocity: _vectors(
        observations.BaseAngularVelocity(),
        "rad/s",
        in_base=True,
        scale=0.35,
        words=["(the arrow is the axis of the turn)"],
    ),
    observations.BaseAngularVelocityWorld: _vectors(
        observations.BaseAngularVelocityWorld(),
        "rad/s",
        in_base=False,
        scale=0.35,
        words=["(the arrow is the axis of the turn)"],
    ),
    observations.BodyLinearVelocity: _vectors(
        observations.BodyLinearVelocity(LEGS), "m/s", in_base=True, at=_BODIES, names=LEGS
    ),
    observations.BodyLinearVelocityWorld: _vectors(
        observations.BodyLinearVelocityWorld(LEGS), "m/s", in_base=False, at=_BODIES, names=LEGS
    ),
    observations.BodyAngularVelocity: _vectors(
        observations.BodyAngularVelocity(LEGS), "rad/s", in_base=True, at=_BODIES, names=LEGS, scale=0.12
    ),
    observations.BodyAngularVelocityWorld: _vectors(
        observations.BodyAngularVelocityWorld(LEGS), "rad/s", in_base=False, at=_BODIES, names=LEGS, scale=0.12
    ),
    observations.SiteLinearVelocity: _vectors(
        observations.SiteLinearVelocity(FEET), "m/s", in_base=True, at=_FEET, names=FEET, scale=0.3
    ),
    observations.SiteLinearVelocityWorld: _vectors(
        observations.SiteLinearVelocityWorld(FEET), "m/s", in_base=False, at=_FEET, names=FEET, scale=0.3
    ),
    observations.SiteAngularVelocity: _vectors(
        observations.SiteAngularVelocity(FEET), "rad/s", in_base=True, at=_FEET, names=FEET, scale=0.12
    ),
    observations.SiteAngularVelocityWorld: _vectors(
        observations.SiteAngularVelocityWorld(FEET), "rad/s", in_base=False, at=_FEET, names=FEET, scale=0.12
    ),
    observations.BasePosition: _places(observations.BasePosition(), in_base=False, names=("base",)),
    observations.BodyPosition: _places(observations.BodyPosition(LEGS), in_base=True, names=LEGS),
    observations.BodyPositionWorld: _places(observations.BodyPositionWorld(LEGS), in_base=False, names=LEGS),
    observations.SitePosition: _places(observations.SitePosition(FEET), in_base=True, names=FEET),
    observations.SitePositionWorld: _places(observations.SitePositionWorld(FEET), in_base=False, names=FEET),
    observations.CenterOfMassPosition: _places(
        observations.CenterOfMassPosition(), in_base=True, names=("centre of mass",)
    ),
    observations.BaseOrientation: _orientations(observations.BaseOrientation(), _points("body", ("trunk",)), ("base",)),
    observations.BodyOrientation: _orientations(observations.BodyOrientation(LEGS), _BODIES, LEGS),
    observations.BodyOrientationInBase: _orientations(
        observations.BodyOrientationInBase(LEGS), _BODIES, LEGS, in_base=True
    ),
    observations.SiteOrientation: _orientations(observations.SiteOrientation(FEET), _FEET, FEET),
    observations.HeightScan: _height_scan,
    observations.BaseHeight: _base_height,
    observations.HeadingError: _heading_error,
    observations.CenterOfMassInertia: _inertia,
    observations.JointPosition: _joint_position,
}
