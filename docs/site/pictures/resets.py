"""Pictures of resets: the starts of several episodes, over each other."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures.body import ABOVE, BEHIND, SIDE, View, arrow, draw_ground, draw_robot
from docs.site.pictures.observations import VECTOR
from docs.site.pictures.panels import COLORS, Draw, figure, finish, note, scene
from docs.site.pictures.robot import DT, STAIRS, context, joint_angles, model
from docs.site.pictures.snapshot import Snapshot, values_drawn
from ksim.mdp import resets
from ksim.types import PhysicsState


def _starts(term: Any, seen: Snapshot, num: int) -> list[Snapshot]:
    """The starts that a reset makes of one state, for several keys."""
    drawn = values_drawn(lambda now: _moved(term(now)), seen, num)
    return [seen.with_physics(qpos=qpos, qvel=qvel) for qpos, qvel in zip(*drawn, strict=True)]


def _moved(physics: PhysicsState) -> tuple[Any, Any]:
    return physics.qpos, physics.qvel


def poses(
    term: Any,
    view: View,
    words: list[str],
    *,
    num: int = 7,
    seen: Any = context,
    low: float = -0.06,
    tall: float = 1.0,
    apart: float = 0.0,
) -> Draw:
    """A picture of the poses at the starts of several episodes."""

    def draw() -> Figure:
        fig, ax = scene(low, low + tall)
        if view is not ABOVE:
            draw_ground(ax)
        for i, start in enumerate(_starts(term, seen(), num)):
            shift = (apart * (i - (num - 1) / 2), 0.0)
            draw_robot(ax, start, view, shift=shift, alpha=1.0 if apart else 0.5)
        note(fig, [f"the starts of {num} episodes," if num > 1 else "the start of every episode,", *words])
        return fig

    return draw


def _velocities(term: resets.AbstractReset, words: list[str], view: View = ABOVE, num: int = 12) -> Draw:
    """A picture of the base's velocities at the starts of several episodes; turns about the vertical are arcs."""

    def draw() -> Figure:
        low = -0.45 if view is ABOVE else -0.06
        fig, ax = scene(low, low + (0.9 if view is ABOVE else 1.0))
        seen = context()
        draw_robot(ax, seen, view, alpha=0.6)
        center = view([seen.physics.qpos[:3]])[0]
        for start in _starts(term, seen, num):
            arrow(ax, center, center + view([1.4 * start.physics.qvel[:3]])[0], VECTOR, width=1.4)
        rates = [f"{float(start.physics.qvel[5]):.2f}" for start in _starts(term, seen, 3)]
        note(
            fig,
            [f"velocities at the starts of {num} episodes,", *words, f"yaw rates: {', '.join(rates)} rad/s, ..."],
        )
        return fig

    return draw


def _joint_velocities() -> Figure:
    starts = _starts(resets.RandomJointVelocities(magnitude=0.1), context(), 60)
    names = model().names
    velocity_nj = np.stack([start.physics.qvel[names.joint_qvel()] for start in starts])
    fig, (ax,) = figure(1.6)
    for j, column in enumerate(velocity_nj.T):
        ax.plot(column, j + np.linspace(-0.3, 0.3, len(column)), ".", ms=3, color=COLORS[j % 4])
    ax.set_yticks(range(len(names.joints)), names.joints, fontsize=7)
    ax.invert_yaxis()
    finish(ax, "velocity at the start, rad/s, of 60 episodes (magnitude=0.1)", "")
    ax.margins(x=0.05)
    return fig


def _on_terrain() -> Figure:
    physics_model = model(DT, STAIRS)
    seen = context(of=physics_model, height=0.59)
    half_x, half_y = physics_model.ground.half_size
    x, y = np.meshgrid(np.linspace(-half_x, half_x, 200), np.linspace(-half_y, half_y, 120))
    heights = np.asarray(physics_model.ground.height(jnp.stack([x, y], axis=-1)))
    fig, (ax,) = figure(1.9)
    ax.imshow(heights, extent=(-half_x, half_x, -half_y, half_y), origin="lower", cmap="Greys", aspect="equal")
    for i, level in enumerate((0.0, 0.5, 1.0)):
        term = resets.OnTerrain(level="terrain", easier=False, spread=0.5)
        at_level = dataclasses.replace(seen, levels={"terrain": np.float32(level)})
        points = np.stack([start.physics.qpos[:2] for start in _starts(term, at_level, 40)])
        ax.plot(*points.T, ".", ms=4, color=COLORS[i], label=f"level {level}")
    ax.legend(loc="upper right", fontsize=7.5, framealpha=0.8, edgecolor="none")
    finish(ax, "starts of 40 episodes at each level, easier=False, from above, m", "")
    return fig


PICTURES: dict[type, Draw] = {
    resets.RandomJointPositions: poses(
        resets.RandomJointPositions(magnitude=0.3), SIDE, ["magnitude=0.3"], seen=lambda: context(height=0.6)
    ),
    resets.RandomJointVelocities: _joint_velocities,
    resets.RandomBasePosition: poses(
        resets.RandomBasePosition(max_offset=0.5, max_lift=0.2),
        SIDE,
        ["max_offset=0.5, max_lift=0.2"],
        tall=1.15,
        num=5,
    ),
    resets.RandomBaseTilt: poses(
        resets.RandomBaseTilt(max_roll=0.4, max_pitch=0.1), BEHIND, ["max_roll=0.4, max_pitch=0.1,", "seen from behind"]
    ),
    resets.RandomHeading: poses(
        resets.RandomHeading(),
        ABOVE,
        ["seen from above"],
        low=-0.5,
        num=4,
        apart=0.34,
        seen=lambda: context(joints=joint_angles(hip=-0.5)),
    ),
    resets.RandomBaseVelocity: _velocities(resets.RandomBaseVelocity(), ["horizontal, seen from above;"]),
    resets.RandomBaseMotion: _velocities(resets.RandomBaseMotion(), ["in all directions, seen from the side;"], SIDE),
    resets.ToKeyframe: poses(
        resets.ToKeyframe(("home", "crouched")), SIDE, ['keyframes=("home", "crouched")'], num=3, apart=0.45
    ),
    resets.ToPose: poses(
        resets.ToPose({"left_hip": -1.2, "left_knee": 1.5}), SIDE, ['pose={"left_hip": -1.2, "left_knee": 1.5}'], num=1
    ),
    resets.OnTerrain: _on_terrain,
}
