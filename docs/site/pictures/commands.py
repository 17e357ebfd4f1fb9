"""Pictures of commands: the values of each during an episode."""

import dataclasses
import functools
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures.body import OBLIQUE, draw_robot
from docs.site.pictures.observations import VECTOR
from docs.site.pictures.panels import Draw, curves, figure, finish, foot_bars, note, scene, timeline
from docs.site.pictures.robot import context, model
from docs.site.pictures.snapshot import Snapshot, values_drawn, values_over
from ksim.mdp import commands

_CTRL_DT = 0.1


@functools.cache
def episode(seconds: float = 20.0, level_rises: bool = False) -> tuple[Snapshot, ...]:
    """A robot that stands still, ten times a second; the level of a curriculum, `speed`, may rise from 0 to 1."""
    first = context(of=model(_CTRL_DT))
    num = round(seconds / _CTRL_DT)
    level = lambda t: np.float32(t / num if level_rises else 1.0)
    return tuple(
        dataclasses.replace(first, episode_step=np.int32(t), levels={"speed": level(t)}) for t in range(num + 1)
    )


def _over_an_episode(term: commands.AbstractCommand, labels: tuple[str, ...] = (), read: Any = None) -> Draw:
    labels = labels or tuple(term.ranges())
    return timeline(term, episode, y_label="command", labels=labels, style="steps-post", read=read or (lambda v, _: v))


_VELOCITIES = ("forward, m/s", "leftward, m/s", "yaw rate, rad/s")


def _velocity() -> Figure:
    terms = {
        "by default": commands.VelocityCommand(resample_s=(3.0, 5.0)),
        "max_lin_acceleration=0.3,\nmax_yaw_acceleration=0.3": commands.VelocityCommand(
            resample_s=(3.0, 5.0), max_lin_acceleration=0.3, max_yaw_acceleration=0.3
        ),
    }
    fig, axes = figure(1.05, 1.05)
    time = np.arange(len(episode())) * _CTRL_DT
    for ax, (label, term) in zip(axes, terms.items(), strict=True):
        curves(ax, time, values_over(term, episode()), drawstyle="steps-post")
        finish(ax, "time, s" if ax is axes[-1] else "", "command")
        ax.text(0.99, 0.05, label, transform=ax.transAxes, ha="right", fontsize=7.5, va="bottom")
    axes[1].set_ylim(bottom=-1.4)
    axes[0].set_xticklabels([])
    axes[0].set_ylim(-1.2, 1.7)
    axes[0].legend(axes[0].lines, _VELOCITIES, loc="upper right", fontsize=7, framealpha=0.8, edgecolor="none", ncols=3)
    return fig


def _gait() -> Figure:
    frames = episode(12.0)
    value_tn = values_over(commands.GaitCommand(resample_s=(3.0, 4.0), frequency=(0.5, 1.5), duty=(0.4, 0.8)), frames)
    time = np.arange(len(frames)) * _CTRL_DT
    fine = np.linspace(0, time[-1], 600)
    frequency, duty, offset = (np.interp(fine, time, column) for column in value_tn.T)
    turns = np.cumsum(frequency) * (fine[1] - fine[0])
    fig, (bars, ax) = figure(0.42, 1.2)
    foot_bars(bars, fine, np.stack([turns % 1 < duty, (turns + offset) % 1 < duty], axis=1))
    curves(ax, time, value_tn, ("frequency, Hz", "duty", "offset of foot 2"), drawstyle="steps-post")
    finish(ax, "time, s", "command")
    return fig


def _cartesian() -> Figure:
    term = commands.CartesianCommand(x=(0.1, 0.35), y=(0.05, 0.25), z=(-0.45, -0.3), site="left_foot")
    seen = context()
    drawn_n3 = values_drawn(lambda now: term.draw(now.key, now), seen, 300) + np.asarray(seen.physics.qpos[:3])
    fig, ax = scene()
    draw_robot(ax, seen, OBLIQUE)
    ax.scatter(*OBLIQUE(drawn_n3).T, s=5, color=VECTOR, lw=0)
    note(
        fig,
        ["points: 300 commands for the left foot,", "x=(0.1, 0.35), y=(0.05, 0.25),", "z=(-0.45, -0.3), from the base"],
    )
    return fig


def _joint_pose() -> Figure:
    seen = context()
    fig, ax = scene(-0.06, 0.94)
    term = commands.JointPoseCommand(fraction=0.5)
    drawn = values_drawn(lambda now: term.draw(now.key, now), seen, 3)
    places = seen.model.names.joint_qpos()
    for i, joint_pos in enumerate(drawn):
        qpos = np.asarray(seen.physics.qpos).copy()
        qpos[places] = joint_pos
        pose = seen.with_physics(qpos=qpos)
        draw_robot(ax, pose, OBLIQUE, shift=(-0.45 + 0.45 * i, 0.05))
    note(
        fig,
        ["three commands, as poses:", "fraction=0.5 of the way from the default", "pose to the limits of each joint"],
    )
    return fig


def _scaled() -> Figure:
    velocity = commands.VelocityCommand(resample_s=(1.5, 2.5), standing_fraction=0.0)
    frames = episode(20.0, True)
    time = np.arange(len(frames)) / (len(frames) - 1)
    forward = [values_over(term, frames)[:, 0] for term in (velocity, commands.ScaledByLevel(velocity, "speed"))]
    fig, (ax,) = figure(1.6)
    curves(ax, time, np.stack(forward, axis=1), ("VelocityCommand", "scaled, start=0.2"), drawstyle="steps-post")
    finish(ax, "level of the curriculum", "forward, m/s")
    return fig


PICTURES: dict[type, Draw] = {
    commands.VelocityCommand: _velocity,
    commands.HeadingCommand: _over_an_episode(commands.HeadingCommand()),
    commands.HeightCommand: _over_an_episode(commands.HeightCommand(height=(0.4, 0.6))),
    commands.RollPitchCommand: _over_an_episode(commands.RollPitchCommand()),
    commands.GaitCommand: _gait,
    commands.CartesianCommand: _cartesian,
    commands.JointPoseCommand: _joint_pose,
    commands.ScaledByLevel: _scaled,
}
