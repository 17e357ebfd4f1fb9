"""Pictures of the terms that track a motion: the walk of the pictures, or a robot that stands still."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures.body import SIDE
from docs.site.pictures.panels import COLORS, Draw, curves, figure, finish, sweep, timeline
from docs.site.pictures.resets import poses
from docs.site.pictures.robot import ACTUATORS, DT, context, joint_angles, model
from docs.site.pictures.snapshot import Snapshot
from docs.site.pictures.walk import walk
from ksim.mdp import actions, commands, curriculum, observations, resets, rewards, terminations
from ksim.mdp.curriculum import CurriculumContext
from ksim.mdp.term import Context
from ksim.motion.files import make_library
from ksim.motion.library import MotionLibrary
from ksim.motion.motion import Motion
from ksim.physics.names import base_of_qpos, joints_of_qpos

BINS = 8


@functools.cache
def _library(moves: bool) -> MotionLibrary:
    """The walk, or standing still for a second."""
    names = model().names
    qpos_tq = np.array([seen.physics.qpos for seen in (walk() if moves else [context()] * 51)])
    name = "walk" if moves else "stand"
    motion = Motion(name, 1 / DT, tuple(names.joints), *base_of_qpos(names, qpos_tq), joints_of_qpos(names, qpos_tq))
    return make_library([motion], model(), bin_s=0.2)


class Following:
    """A term that sees a command, `motion`, to follow the walk, or to stand still."""

    def __init__(self, term: Any, *, moves: bool = False) -> None:
        self._term, self._moves = term, moves
        self.truncates = getattr(term, "truncates", False)

    def init(self, seen: Context) -> Any:
        return self._term.init(self._with_motion(seen))

    def update(self, seen: Context) -> Any:
        return self._term.update(self._with_motion(seen))

    def __call__(self, seen: Context) -> Any:
        return self._term(self._with_motion(seen))

    def _with_motion(self, seen: Context) -> Context:
        term = commands.MotionCommand(_library(self._moves))
        return dataclasses.replace(seen, command_terms={"motion": term}, episode_key=seen.key)


def _at(frame: float = 0.0, **state: Any) -> Snapshot:
    """The robot, standing but for what is given, and the command to be in a frame."""
    return context(commands={"motion": np.array([frame], np.float32)}, **state)


@functools.cache
def _on_the_way() -> tuple[Snapshot, ...]:
    """The walk, commanded to be in the next frame."""
    last = len(walk()) - 1
    frame = lambda t: np.array([min(t + 1, last)], np.float32)
    return tuple(dataclasses.replace(seen, commands={"motion": frame(t)}) for t, seen in enumerate(walk()))


def _seen(term: Any, y_label: str, labels: tuple[str, ...] = ()) -> Draw:
    """A picture of an observation on the way."""
    return timeline(Following(term, moves=True), _on_the_way, y_label=y_label, labels=labels, view=SIDE)


def _hip(angle: float) -> Snapshot:
    return _at(joints=joint_angles(left_hip=joint_angles()["left_hip"] + angle))


def _hip_velocity(velocity: float) -> Snapshot:
    return _at(joint_vel={"left_hip": velocity})


def _starts() -> Figure:
    term = commands.MotionCommand(_library(True), starts="starts")
    rate_b = np.zeros(BINS, np.float32)
    rate_b[5] = 0.6
    seen = dataclasses.replace(context(), levels={"starts": rate_b}).as_context(None)
    probability_b = np.asarray(term.probabilities(seen))
    fig, axes = figure(0.8, 1.0)
    time = (np.arange(BINS) + 0.5) * 0.2
    for ax, values, label, color in zip(
        axes, (rate_b, probability_b), ("failure\nrate", "probability\nof a start"), (COLORS[4], COLORS[0]), strict=True
    ):
        ax.bar(time, values, width=0.18, color=color)
        finish(ax, "time in the clip, s" if ax is axes[-1] else "", label)
    axes[0].set_xticklabels([])
    return fig


def _failure_rates() -> Figure:
    term = curriculum.AdaptiveStarts(motions=_library(True), command="motion")
    steps_b = jnp.full(BINS, 1000.0)
    level_b, levels = term.initial(), []
    for iteration in range(120):
        levels.append(np.asarray(level_b))
        # One failure in ten passes of the sixth bin, until the policy has learned it.
        failures_b = jnp.zeros(BINS).at[5].set(60.0 if iteration < 60 else 0.0)
        seen = CurriculumContext(jnp.int32(iteration), {}, DT, num_steps=steps_b, num_failures=failures_b)
        level_b = term(level_b, seen)
    fig, (ax,) = figure(1.4)
    curves(ax, np.arange(120), np.array(levels)[:, [0, 5]], ("a bin without failures", "a bin of failures"))
    finish(ax, "iteration (the failures end at 60)", "level")
    return fig


def _around() -> Draw:
    term = actions.AroundMotion(command="motion", actuators=ACTUATORS)
    joints = model().names.actuator_joints()
    shown = [joints.index(name) for name in ("left_hip", "left_knee")]
    return timeline(
        Following(term, moves=True),
        _on_the_way,
        y_label="applied, where\nthe policy's is 0",
        labels=("left_hip", "left_knee"),
        read=lambda value, _: value[np.array(shown)],
        view=SIDE,
    )


_JOINTS = ("left_hip", "left_knee")
_DISTANCE, _ANGLE = "distance from the motion, m", "left hip off the motion by, rad"
_POSE: dict[str, Any] = {"command": "motion"}
PICTURES: dict[type, Draw] = {
    commands.MotionCommand: _starts,
    curriculum.AdaptiveStarts: _failure_rates,
    actions.AroundMotion: _around(),
    observations.MotionPhase: _seen(observations.MotionPhase(**_POSE), "phase"),
    observations.MotionJoints: _seen(observations.MotionJoints(joints=_JOINTS, **_POSE), "rad", _JOINTS),
    observations.MotionJointVelocities: _seen(
        observations.MotionJointVelocities(joints=_JOINTS, **_POSE), "rad/s", _JOINTS
    ),
    observations.MotionBasePosition: _seen(
        observations.MotionBasePosition(steps=(10,), **_POSE), "m, steps=(10,)", ("forward", "leftward", "upward")
    ),
    observations.MotionBaseOrientation: sweep(
        Following(observations.MotionBaseOrientation(**_POSE)),
        lambda yaw: _at(yaw=yaw),
        (-1.0, 1.0),
        "the robot is turned from the motion by, rad",
        y_label="value",
    ),
    rewards.TrackAnchorPosition: sweep(
        Following(rewards.TrackAnchorPosition(**_POSE)), lambda x: _at(at=(x, 0)), (-0.6, 0.6), _DISTANCE, view=SIDE
    ),
    rewards.TrackAnchorOrientation: sweep(
        Following(rewards.TrackAnchorOrientation(**_POSE)),
        lambda pitch: _at(pitch=pitch),
        (-0.8, 0.8),
        "pitched from the motion by, rad",
        view=SIDE,
    ),
    rewards.TrackBodyPositions: sweep(
        Following(rewards.TrackBodyPositions(**_POSE)), _hip, (-1.0, 1.0), _ANGLE, view=SIDE
    ),
    rewards.TrackBodyOrientations: sweep(
        Following(rewards.TrackBodyOrientations(**_POSE)), _hip, (-1.0, 1.0), _ANGLE, view=SIDE
    ),
    rewards.TrackBodyVelocities: sweep(
        Following(rewards.TrackBodyVelocities(**_POSE)), _hip_velocity, (-8.0, 8.0), "velocity of the left hip, rad/s"
    ),
    rewards.TrackBodyAngularVelocities: sweep(
        Following(rewards.TrackBodyAngularVelocities(**_POSE)),
        _hip_velocity,
        (-8.0, 8.0),
        "velocity of the left hip, rad/s",
    ),
    rewards.TrackMotionJoints: sweep(
        Following(rewards.TrackMotionJoints(**_POSE)), _hip, (-1.0, 1.0), _ANGLE, view=SIDE
    ),
    rewards.TrackMotionJointVelocities: sweep(
        Following(rewards.TrackMotionJointVelocities(**_POSE)),
        _hip_velocity,
        (-12.0, 12.0),
        "velocity of the left hip, rad/s",
    ),
    terminations.MotionEnded: sweep(
        Following(terminations.MotionEnded(**_POSE)),
        lambda frame: _at(round(frame)),
        (30.0, 50.0),
        "frame of the clip, whose last is 50",
        num=41,
    ),
    terminations.BaseOffMotion: sweep(
        Following(terminations.BaseOffMotion(distance=0.3, **_POSE)),
        lambda x: _at(at=(x, 0)),
        (-0.6, 0.6),
        f"{_DISTANCE} (distance=0.3)",
        view=SIDE,
    ),
    terminations.BodyOffMotion: sweep(
        Following(terminations.BodyOffMotion(bodies=("left_foot",), distance=0.2, **_POSE)),
        _hip,
        (-1.0, 1.0),
        f"{_ANGLE} (left_foot, distance=0.2)",
        view=SIDE,
    ),
    resets.ToMotion: poses(
        Following(resets.ToMotion(**_POSE), moves=True), SIDE, ["anywhere in the walk of the pictures"], num=6
    ),
}
