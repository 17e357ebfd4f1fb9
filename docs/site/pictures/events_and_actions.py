"""Pictures of events, of filters of actions and of curricula."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures.commands import episode
from docs.site.pictures.panels import COLORS, Draw, curves, figure, finish
from docs.site.pictures.robot import DT, STAIRS, context, model
from docs.site.pictures.snapshot import Snapshot, values_apart, values_over
from ksim.mdp import actions, curriculum, env_curriculum, events
from ksim.mdp.curriculum import CurriculumContext
from ksim.mdp.term import Context


def _pushed_velocity() -> Figure:
    term = events.PushVelocity(interval_s=(3.0, 5.0), speed=(0.2, 0.5))
    jump_t3 = values_over(term, episode(30.0), lambda physics, seen: physics.qvel[:3] - seen.physics.qvel[:3])
    return _arrows_over_time(jump_t3, "jumps of the base's velocity", "m/s", 30.0)


def _pushing_force() -> Figure:
    term = events.PushForce(body="trunk", interval_s=(3.0, 5.0), duration_s=0.5, force=(10.0, 50.0))
    trunk = model().names.index("body", "trunk")
    force_t2 = values_over(term, episode(30.0), lambda physics, _: physics.applied["xfrc_applied"][trunk, :2])
    fig, (ax,) = figure(1.6)
    curves(ax, np.arange(len(force_t2)) * 0.1, force_t2, ("along x", "along y"), drawstyle="steps-post")
    finish(ax, "time, s (interval_s=(3, 5), duration_s=0.5, force=(10, 50))", "force on the body, N")
    return fig


def _arrows_over_time(vector_t3: np.ndarray, what: str, unit: str, seconds: float) -> Figure:
    fig, (ax,) = figure(1.3)
    struck = np.flatnonzero(np.linalg.norm(vector_t3, axis=1) > 0)
    time = np.linspace(0, seconds, len(vector_t3))
    ax.axhline(0, color=COLORS[5], lw=0.8)
    x, y = vector_t3[struck, :2].T
    ax.quiver(time[struck], 0 * x, x, y, color=COLORS[4], angles="uv", scale=4, width=0.005)
    for at, size in zip(time[struck], np.hypot(x, y), strict=True):
        ax.text(at, -0.85, f"{size:.2f}", ha="center", fontsize=7.5)
    ax.set_ylim(-1, 1)
    ax.set_xlim(0, seconds)
    ax.set_yticks([])
    finish(ax, f"time, s ({what}, from above; {unit})", "")
    return fig


def _dropped_mass() -> Figure:
    fig, (ax,) = figure(1.5)
    trunk = model().names.index("body", "trunk")
    frames = episode(12.0)
    for i in range(3):
        term = _WithKey(events.MassDrop(body="trunk", mass=(0.5, 3.0), after_s=(2.0, 10.0)), i)
        mass_t = values_over(term, frames, lambda _, seen, term=term: term.mass(seen, trunk))
        ax.plot(
            np.arange(len(frames)) * 0.1,
            np.cumsum(mass_t),
            color=COLORS[i],
            lw=1.8,
            drawstyle="steps-post",
            label=f"episode {i + 1}",
        )
    ax.legend(loc="upper right", fontsize=7.5, framealpha=0.8, edgecolor="none")
    finish(ax, "time, s (mass=(0.5, 3), after_s=(2, 10))", "load on the trunk, kg")
    return fig


class _WithKey:
    """An event in an episode of another key."""

    def __init__(self, term: events.MassDrop, number: int) -> None:
        self.term, self.number = term, number

    def init(self, seen: Context) -> Any:
        return self.term.init(dataclasses.replace(seen, key=jax.random.fold_in(seen.key, 10 + self.number)))

    def update(self, seen: Context) -> Any:
        return self.term.update(seen)

    def __call__(self, seen: Context) -> Any:
        return self.term(seen)

    def mass(self, seen: Context, body: int) -> Any:
        """The mass that this step adds to a body, in kg."""
        return self.term.overrides(seen)["body_mass"][body] - seen.model.mj_model.body_mass[body]


@functools.cache
def _acting() -> tuple[Snapshot, ...]:
    """A robot whose actions follow a sine and then jump."""
    action_t = np.where(np.arange(61) < 30, np.sin(np.arange(61) / 4.8), np.where(np.arange(61) < 45, 1.0, -0.5))
    first = context()
    ones = np.ones(first.model.mj_model.nu, np.float32)
    return tuple(
        dataclasses.replace(first, action=np.float32(a) * ones, episode_step=np.int32(t))
        for t, a in enumerate(action_t)
    )


def _filtered(terms: dict[str, Any]) -> Draw:
    """A picture of the action before and after filters."""

    def draw() -> Figure:
        frames = _acting()
        fig, (ax,) = figure(1.6)
        substeps = frames[0].model.decimation
        time = np.arange(len(frames) * substeps) * frames[0].model.dt
        chosen = np.repeat([float(seen.action[0]) for seen in frames], substeps)
        ax.plot(time, chosen, color="black", lw=1.2, ls=(0, (4, 3)), label="chosen", drawstyle="steps-post")
        for i, (label, term) in enumerate(terms.items()):
            applied = values_over(term, frames)[..., 0].reshape(len(frames), -1)
            applied = np.repeat(applied, substeps // applied.shape[1], axis=1).ravel()
            ax.plot(time, applied, color=COLORS[i], lw=1.5, label=label, drawstyle="steps-post")
        ax.legend(loc="lower left", fontsize=7.5, framealpha=0.8, edgecolor="none")
        finish(ax, "time, s", "action")
        return fig

    return draw


_METRIC_T = np.concatenate([np.linspace(0, 1, 40), np.linspace(1, 0.2, 20), np.linspace(0.2, 1, 60)]).astype(np.float32)


def _level(term: Any, metric: str, y_label: str, thresholds: dict[str, float], scale: float = 1.0) -> Draw:
    """A picture of a curriculum's level while a metric rises, falls and rises again."""

    def draw() -> Figure:
        metric_t = scale * _METRIC_T
        level, levels = np.float32(term.start), []
        step = jax.jit(lambda level, iteration, value: term(level, CurriculumContext(iteration, {metric: value}, DT)))
        for iteration, value in enumerate(metric_t):
            levels.append(float(level))
            level = jnp.clip(step(level, iteration, value), 0, 1)
        fig, axes = figure(*([0.85] * bool(thresholds)), 1.0)
        if thresholds:
            curves(axes[0], np.arange(len(metric_t)), metric_t * (DT if metric == "episode/length" else 1.0))
            finish(axes[0], "", y_label)
            axes[0].set_xticklabels([])
            for name, value in thresholds.items():
                axes[0].axhline(value, color=COLORS[5], lw=1, ls=(0, (4, 3)))
                axes[0].text(119, value, name, fontsize=7.5, ha="right", va="bottom")
        curves(axes[-1], np.arange(len(metric_t)), np.array(levels))
        finish(axes[-1], "iteration", "level")
        axes[-1].set_ylim(-0.05, 1.05)
        return fig

    return draw


def _terrain_level() -> Figure:
    term = env_curriculum.TerrainCurriculum("command", episode_s=20.0)
    first = context(of=model(DT, STAIRS), episode_step=np.int32(1000), commands={"command": np.zeros(3, np.float32)})
    farthest = np.linspace(0, 3, 61).astype(np.float32)

    class Ended:
        """The curriculum at the end of an episode that went as far as the context's height says, 2.4 m commanded."""

        def init(self, seen: Context) -> Any:
            walk = term.init(seen)
            return dataclasses.replace(walk, farthest_m=seen.physics.qpos[2], commanded_m=jnp.float32(2.4))

        def __call__(self, seen: Context) -> Any:
            return term(seen)

    def at(height: np.float32) -> Snapshot:
        qpos = first.physics.qpos.copy()
        qpos[2] = height
        return first.with_physics(qpos=qpos)

    rows = values_apart(Ended(), [at(height) for height in farthest]) * (STAIRS.num_levels - 1)
    fig, (ax,) = figure(1.4)
    curves(ax, farthest, rows)
    ax.set_yticks([-1, 0, 1], ["down", "stays", "up"])
    finish(ax, "farthest from the start, m (tile_m=4; 2.4 m were commanded)", "row of the terrain")
    return fig


EVENTS: dict[type, Draw] = {
    events.PushVelocity: _pushed_velocity,
    events.PushForce: _pushing_force,
    events.MassDrop: _dropped_mass,
}
FILTERS: dict[type, Draw] = {
    actions.ActionLatency: _filtered({"seconds=(0.05, 0.05)": actions.ActionLatency((0.05, 0.05))}),
    actions.ActionSmoothing: _filtered(
        {f"time_constant_s={s}": actions.ActionSmoothing(time_constant_s=s) for s in (0.02, 0.1)}
    ),
    actions.DroppedActions: _filtered({"probability=0.5": actions.DroppedActions(probability=0.5)}),
}
CURRICULA: dict[type, Draw] = {
    curriculum.LinearCurriculum: _level(
        curriculum.LinearCurriculum(start_iteration=20, end_iteration=100), "none", "", {}
    ),
    curriculum.EpisodeLengthCurriculum: _level(
        curriculum.EpisodeLengthCurriculum(raise_above_s=15.0, lower_below_s=8.0),
        "episode/length",
        "episode\nlength, s",
        {"raise_above_s": 15.0, "lower_below_s": 8.0},
        scale=20.0 / DT,
    ),
    curriculum.ScoreCurriculum: _level(
        curriculum.ScoreCurriculum("score", raise_above=0.7, lower_below=0.4),
        "score",
        "metric",
        {"raise_above": 0.7, "lower_below": 0.4},
    ),
    curriculum.ErrorCurriculum: _level(
        curriculum.ErrorCurriculum("error", raise_below=0.4, lower_above=0.7),
        "error",
        "metric",
        {"raise_below": 0.4, "lower_above": 0.7},
    ),
    env_curriculum.TerrainCurriculum: _terrain_level,
}
PICTURES = EVENTS | FILTERS | CURRICULA
