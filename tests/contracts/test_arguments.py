"""The contract of the arguments of every term: values out of a field's range are refused with the field's name."""

import dataclasses
import math
import re
from typing import Any

import pytest

from ksim.checks import bounds_in_words
from ksim.errors import ConfigError
from ksim.mdp import (
    actions,
    commands,
    curriculum,
    env_curriculum,
    events,
    noise,
    observations,
    resets,
    rewards,
    terminations,
)
from ksim.tools.terms import KINDS, concrete_classes
from tests.support.arguments import ARGUMENTS, FEET, MOTIONS, TOUCH

OF_BASES: dict[type, tuple[str, dict[str, float]]] = {
    commands.AbstractDrawnCommand: ("resample_s", {"least": 0.0}),
    curriculum.AbstractCurriculum: ("start", {"least": 0.0, "most": 1.0}),
    env_curriculum.AbstractEnvCurriculum: ("start", {"least": 0.0, "most": 1.0}),
    events.AbstractTimedEvent: ("interval_s", {"above": 0.0}),
}
"""Fields that a base class checks, for the terms of users as well."""
OTHERS: dict[type, dict[str, Any]] = {
    curriculum.AdaptiveStarts: {"motions": MOTIONS, "command": "motion"},
    curriculum.EpisodeLengthCurriculum: {"raise_above_s": 2.0, "lower_below_s": 1.0},
    curriculum.ErrorCurriculum: {"metric": "x", "raise_below": 1.0, "lower_above": 2.0},
    curriculum.LinearCurriculum: {"end_iteration": 2},
    curriculum.ScoreCurriculum: {"metric": "x", "raise_above": 2.0, "lower_below": 1.0},
    noise.DroppedSamples: {"probability": 0.5},
    noise.DriftingBias: {"std_per_root_s": 1.0},
    noise.GaussianBias: {"std": 1.0},
    noise.Quantized: {"resolution": 1.0},
    noise.ScaleError: {"magnitude": 1.0},
    noise.UniformBias: {"magnitude": 1.0},
}


def ranged_fields():
    """Each class, a field of it, and the field's bounds."""
    for cls in (cls for kind in KINDS for cls in concrete_classes(kind)):
        for field in dataclasses.fields(cls):
            if "range" in field.metadata:
                yield pytest.param(cls, field.name, field.metadata["range"], id=f"{cls.__name__}-{field.name}")
        for base, (name, bounds) in OF_BASES.items():
            if issubclass(cls, base):
                yield pytest.param(cls, name, bounds, id=f"{cls.__name__}-{name}")


@pytest.mark.parametrize(("cls", "name", "bounds"), [*ranged_fields()])
def test_value_out_of_its_range_is_an_error_with_class_and_field(cls, name, bounds):
    given = OTHERS.get(cls) or ARGUMENTS.get(cls, {})
    usual = getattr(cls(**given), name)
    outside = [] if isinstance(usual, int) else [math.nan]
    outside += [bounds["least"] - 1] if "least" in bounds else []
    outside += [bounds["above"]] if "above" in bounds else []
    outside += [bounds["most"] + 1] if "most" in bounds else []
    if isinstance(usual, tuple):
        low, high = usual
        outside = [(high + 1, low), *((min(low, x), max(high, x)) for x in outside[1:])]
    kind = "two numbers, the smaller first" if isinstance(usual, tuple) else "a number"
    rule = bounds.get("rule") or ", ".join([kind, *bounds_in_words(bounds)])
    for value in outside:
        with pytest.raises(ConfigError, match=re.escape(f"{cls.__name__} has {name}={value}, which must be {rule}.")):
            cls(**given | {name: value})


HEIGHT, UNIT = observations.BaseHeight(), (0.0, 1.0)
CLOCK = {"sensors": TOUCH, "command": "velocity"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: actions.ActionLatency(seconds=(0.02, 0.01)), r"\(0.02, 0.01\) s"),
        (lambda: actions.ActionLatency(seconds=(-0.01, 0.01)), "two times from 0, the shorter first"),
        (lambda: actions.DroppedActions(probability=1.0), "probability 1.0"),
        (lambda: actions.ActionSmoothing(time_constant_s=0.0), r"time_constant_s \(0.0\)"),
        (lambda: commands.GaitCommand(offsets=((0.5, 0.1),)), r"offsets=.*the smaller first"),
        (lambda: commands.CartesianCommand(x=UNIT, y=UNIT, z=UNIT), r"body=None and site=None.*one"),
        (lambda: curriculum.LinearCurriculum(end_iteration=10, start_iteration=10), "from iteration 10 to 10"),
        (lambda: curriculum.EpisodeLengthCurriculum(raise_above_s=1.0, lower_below_s=2.0), r"threshold \(1.0\)"),
        (lambda: curriculum.ScoreCurriculum("x", raise_above=1.0, lower_below=0.5, step=0.0), r"step \(0.0\)"),
        (lambda: curriculum.ErrorCurriculum("x", raise_below=1.0, lower_above=0.5), r"upper threshold \(0.5\)"),
        (lambda: events.PushForce("trunk", interval_s=(1.0, 3.0), duration_s=2.0), r"duration_s \(2.0\).*\(1.0\)"),
        (lambda: noise.Clipped(low=1.0, high=-1.0), r"low=1.0.*at most high \(-1.0\)"),
        (lambda: observations.Delayed(HEIGHT, steps=(3, 1)), r"\(3, 1\) steps.*from 0, the smaller first"),
        (lambda: observations.HeightScan(spacing=0.0), r"spacing \(0.0 m\) above 0"),
        (lambda: observations.HeightScan(size=(-1.0, 1.0)), r"no negative size"),
        (lambda: observations.History(HEIGHT, steps=0), r"History of 0 steps"),
        (lambda: observations.MotionJoints("motion", steps=(-1,)), r"steps=\(-1,\), .* whole numbers, at least 0"),
        (lambda: resets.OnTerrain(easier=False), "easier=False, which must be True where no level is given"),
        (lambda: resets.RandomBaseMotion(max_ang_vel=(0.1, -0.1, 0.1)), r"max_ang_vel=\(0.1, -0.1, 0.1\)"),
        (lambda: resets.ToKeyframe(keyframes=()), r"names no keyframe"),
        (lambda: resets.ToPose(pose={}), r"empty pose"),
        (lambda: rewards.Clipped(rewards.Alive(), low=1.0, high=0.0), r"low=1.0"),
        (lambda: rewards.FeetAirTime(**CLOCK, threshold_s=0.3, max_s=0.2), r"max_s=0.2, .* at least 0.3\."),
        (lambda: rewards.FeetFlat(sites=FEET, sensors=("left_touch",)), r"1 sensors and 2 sites"),
        (lambda: rewards.FeetPhase(**CLOCK, offsets=(0.0, 0.5, 0.5)), r"offsets=\(0.0, 0.5, 0.5\) for 2 feet"),
        (lambda: rewards.FeetSlip(sensors=TOUCH, sites=("left_foot",)), "2 sensors and 1 sites"),
        (lambda: rewards.SwingPose(legs=(FEET,), bend=(0.6,), command="v"), r"bends 1 joints .*, but a leg has 2"),
        (lambda: rewards.SwingPose((("a",), ("b",)), ((0.6,), 0.6), "v"), r"or a tuple of such numbers for each leg"),
        (lambda: rewards.Symmetry(pairs=(("a", "b"),), command="velocity", signs=(0.5,)), r"must be 1 or -1"),
        (lambda: rewards.Symmetry(pairs=(), command="velocity"), r"no pairs"),
        (lambda: rewards.TrackYawRate(command="velocity", std=0.0), r"TrackYawRate has std=0\.0.* a number, above 0\."),
        (lambda: rewards.UndesiredContact(), r"neither bodies nor geoms"),
        (lambda: terminations.BaseTilted(max_tilt=90.0), r"above 0, at most 3.14159\."),
        (lambda: terminations.BodyContact(), r"neither bodies nor geoms"),
    ],
)
def test_arguments_that_do_not_fit_each_other_are_an_error(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
