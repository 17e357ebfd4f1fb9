"""Pictures of rewards that depend on time: over a walk, or over actions and motions made by hand."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import numpy as np

from docs.site.pictures.body import SIDE
from docs.site.pictures.panels import Draw, timeline
from docs.site.pictures.robot import DT, FEET, TOUCH, context, model
from docs.site.pictures.walk import contacts, foot_heights, walk
from ksim.mdp import rewards
from ksim.mdp.rewards.gait import expected_contact

_walk_and_stand = functools.partial(walk, 2.4, 0.8, 1.6)
_off_the_clock = functools.partial(walk, 2.4, 1.0)
_HEIGHTS: dict[str, Any] = {"given": foot_heights, "given_label": "height, m", "given_labels": ("left", "right")}


@functools.cache
def _actions():
    """A ramp, a jump and a jitter of the first action."""
    t = np.arange(60)
    action = np.clip((t - 10) / 12, 0, 1) - 1.0 * (t >= 32) + np.where((t >= 44) & (t < 54), 0.3 * (-1.0) ** t, 0)
    first = context(height=0.59)
    vectors = np.outer([0.0, *action], np.eye(model().mj_model.nu, dtype=np.float32)[0]).astype(np.float32)
    return tuple(
        dataclasses.replace(first, action=now, previous_action=before, episode_step=np.int32(t))
        for t, (before, now) in enumerate(itertools.pairwise(vectors))
    )


def _first_action(frames):
    return [float(seen.action[0]) for seen in frames]


def _actions_of(term):
    return timeline(
        term, _actions, given=_first_action, given_label="action", y_label="value,\nbefore scale", style="steps-post"
    )


@functools.cache
def moving(kind):
    """Contexts of a base, or of a knee, whose velocity ramps up, holds and falls fast."""
    frames = []
    for t in range(61):
        v = min(max((t - 10) / 20, 0.0), 1.0, max((50 - t) / 5, 0.0))
        state = {
            "lin_vel": {"lin_vel": (v, 0, 0)},
            "ang_vel": {"ang_vel": (0, 0, v)},
            "knee": {"joint_vel": {"left_knee": v}},
        }[kind]
        frames.append(context(height=0.59, episode_step=np.int32(t), **state))
    return tuple(frames)


@functools.cache
def _falling():
    """A robot that tips over and ends its episode."""
    return tuple(
        context(
            pitch=0.9 * (t / 20) ** 2,
            height=0.59 - 0.1 * (t / 20) ** 3,
            episode_step=np.int32(t),
            terminated=np.bool_(t == 20),
        )
        for t in range(21)
    )


def _phases(frames):
    """Phases of both feet by the clock of the rewards, (time, foot)."""
    return np.stack([(int(seen.episode_step) * DT / 0.8 + np.array([0.0, 0.5])) % 1.0 for seen in frames])


def _swing_weight(frames):
    return 1 - np.asarray(jax.vmap(lambda phase_f: expected_contact(phase_f, 0.55, 0.05))(_phases(frames)))


def _clock(frames):
    """Whether the clock wants each foot down, (time, foot)."""
    return _phases(frames) < 0.55


_CLOCK: dict[str, Any] = {"clock": _clock, "feet": contacts, "style": "steps-post"}


def _gait(frames):
    return tuple(
        dataclasses.replace(seen, commands=seen.commands | {"gait": np.array([1.25, 0.55, 0.5], np.float32)})
        for seen in frames
    )


def _hips(frames):
    places = model().names.joint_qpos(("left_hip", "right_hip"))
    return [np.asarray(seen.physics.qpos)[places] for seen in frames]


@functools.cache
def _limping():
    """A walk whose right leg moves less after 1.2 s."""
    frames = []
    for seen in walk(2.4):
        qpos = seen.physics.qpos.copy()
        place = model().names.joint_qpos(("right_hip",))[0]
        if int(seen.episode_step) * DT > 1.2:
            qpos[place] = -0.25 + 0.4 * (qpos[place] + 0.25)
        frames.append(seen.with_physics(qpos=qpos))
    return tuple(frames)


PICTURES: dict[type, Draw] = {
    rewards.Alive: timeline(rewards.Alive(), _falling, view=SIDE, style="steps-post"),
    rewards.TerminationPenalty: timeline(rewards.TerminationPenalty(), _falling, view=SIDE, style="steps-post"),
    rewards.ActionRate: _actions_of(rewards.ActionRate()),
    rewards.ActionAcceleration: _actions_of(rewards.ActionAcceleration()),
    rewards.ActionJerk: _actions_of(rewards.ActionJerk()),
    rewards.BaseLinearAcceleration: timeline(
        rewards.BaseLinearAcceleration(),
        functools.partial(moving, "lin_vel"),
        given=lambda frames: [float(c.physics.qvel[0]) for c in frames],
        given_label="velocity,\nm/s",
    ),
    rewards.BaseAngularAcceleration: timeline(
        rewards.BaseAngularAcceleration(),
        functools.partial(moving, "ang_vel"),
        given=lambda frames: [float(c.physics.qvel[5]) for c in frames],
        given_label="yaw rate,\nrad/s",
    ),
    rewards.JointAcceleration: timeline(
        rewards.JointAcceleration(),
        functools.partial(moving, "knee"),
        given=lambda frames: [float(c.physics.qvel[model().names.joint_qvel(("left_knee",))[0]]) for c in frames],
        given_label="velocity,\nrad/s",
    ),
    rewards.FeetAirTime: timeline(rewards.FeetAirTime(TOUCH, "command"), _walk_and_stand, view=SIDE, feet=contacts),
    rewards.AirTimeVariance: timeline(
        rewards.AirTimeVariance(TOUCH, "command"),
        lambda: _uneven(),
        feet=contacts,
    ),
    rewards.SingleSupport: timeline(
        rewards.SingleSupport(TOUCH, "command"), _walk_and_stand, view=SIDE, feet=contacts, style="steps-post"
    ),
    rewards.FeetPhase: timeline(rewards.FeetPhase(TOUCH, "command"), _off_the_clock, **_CLOCK),
    rewards.FeetPhaseForce: timeline(
        rewards.FeetPhaseForce(TOUCH, "command"),
        _off_the_clock,
        feet=contacts,
        given=_swing_weight,
        given_label="weight of\nthe swing",
        given_labels=("left", "right"),
    ),
    rewards.FeetPhaseVelocity: timeline(
        rewards.FeetPhaseVelocity(FEET, "command"),
        _off_the_clock,
        feet=contacts,
        given=lambda frames: 1 - _swing_weight(frames),
        given_label="weight of\nthe stance",
        given_labels=("left", "right"),
    ),
    rewards.FootSwingHeight: timeline(
        rewards.FootSwingHeight(FEET, "command"), _off_the_clock, feet=contacts, **_HEIGHTS
    ),
    rewards.FootApexHeight: timeline(
        rewards.FootApexHeight(TOUCH, FEET, "command"), functools.partial(walk, 2.4), feet=contacts, **_HEIGHTS
    ),
    rewards.SwingPose: timeline(
        rewards.SwingPose((("left_hip", "left_knee"), ("right_hip", "right_knee")), (-0.25, 0.75), "command"),
        _off_the_clock,
        view=SIDE,
        feet=contacts,
    ),
    rewards.TrackGait: timeline(rewards.TrackGait(TOUCH, "gait"), lambda: _gait(_off_the_clock()), **_CLOCK),
    rewards.Symmetry: timeline(
        rewards.Symmetry((("left_hip", "right_hip"),), "command"),
        _limping,
        given=_hips,
        given_label="hips, rad",
        given_labels=("left", "right"),
    ),
}


@functools.cache
def _uneven():
    """A walk whose right foot stays in the air for longer from 1.2 s on."""
    frames = []
    for seen in walk(2.4):
        time_s = int(seen.episode_step) * DT
        phase = (time_s / 0.8 + 0.5) % 1.0
        is_down = phase < (0.6 if time_s < 1.2 else 0.35)
        data = seen.physics.derived["sensordata"].copy()
        data[model().names.sensor("right_touch")] = 100.0 * is_down
        frames.append(seen.with_physics(derived={**seen.physics.derived, "sensordata": data}))
    return tuple(frames)
