"""The task of robots on legs: options, hooks and errors."""

import dataclasses
from pathlib import Path

import pytest

from examples.robots import QUADRUPED
from ksim.errors import ConfigError
from ksim.robot import Foot
from ksim.tasks.legged import LeggedConfig, LeggedRobot, LeggedTask

FEET = tuple(
    Foot(f"{leg}_box", f"{leg}_shin", (0.0, 0.0, -0.2), (0.03, 0.03, 0.03))
    for leg in ("front_left", "front_right", "rear_left", "rear_right")
)
ROBOT = LeggedRobot(
    feet=FEET,
    pose={"*_hip_roll": 0.0, "*_hip_pitch": 0.7, "*_knee": 1.4},
    height=0.3,
    standing_height=0.29,
    rest_height=0.02,
    period_s=0.5,
    phases=(0.0, 0.5, 0.5, 0.0),
    swing_m=0.05,
    forward=1.0,
    effort=1e-4,
)


class Walker(LeggedTask[LeggedConfig]):
    robot = ROBOT

    def get_mjcf(self) -> Path:
        return QUADRUPED


class Biped(Walker):
    robot = dataclasses.replace(ROBOT, feet=FEET[:2], phases=(0.0, 0.5))


def terms(task, hook):
    return getattr(task, f"get_{hook}")(task.environment.engine.model)


def test_highest_speed_sets_the_commands_and_the_pushes_unless_options_do():
    plain, faster = Walker(LeggedConfig()), Walker(LeggedConfig(forward=2.0, push=0.1))
    assert terms(plain, "commands")["velocity"].forward == (-0.5, 1.0)
    assert terms(plain, "events")[0].speed == (0.0, 0.5)
    assert terms(faster, "commands")["velocity"].forward == (-1.0, 2.0)
    assert terms(faster, "events")[0].speed == (0.0, 0.1)


def test_two_legs_walk_forward_only_and_are_not_pushed_in_evaluations(monkeypatch):
    task = Biped(LeggedConfig())
    assert terms(task, "commands")["velocity"].forward == (0.0, 1.0)
    assert terms(task, "events")
    monkeypatch.setattr(Biped, "evaluating", True)
    assert not terms(task, "events")


def test_task_without_a_file_is_an_error_that_names_the_hook():
    class Nameless(LeggedTask[LeggedConfig]):
        robot = ROBOT

    with pytest.raises(ConfigError, match="Nameless must define get_mjcf"):
        _ = Nameless(LeggedConfig()).environment
