"""The table of other people's robots: its rules, its page, and a command that fails."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import robots
from ksim.evaluate.evaluator import Recording
from ksim.robot import ArmRobot, PlanarRobot
from tests.support.processes import ROOT

TIP = ("hand", (0.0, 0.0, 0.0))
PLANE = ("x", "z", "y")


def evaluation(survival, error):
    return {"figures": {"survival": {"mean": survival}, "error/velocity/lin_vel_m_s": {"mean": error}}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([evaluation(1.0, 0.1)], False),
        ([evaluation(1.0, 0.1), evaluation(0.98, 0.18)], True),
        ([evaluation(1.0, 0.1), evaluation(0.97, 0.1)], False),
        ([evaluation(1.0, 0.1), evaluation(1.0, 0.19)], False),
        ([evaluation(1.0, None), evaluation(1.0, 0.1)], False),
    ],
)
def test_robot_has_learned_if_its_last_two_evaluations_say_so(found, expected):
    assert robots.has_learned(found, 0.2) is expected


def test_error_may_be_a_quarter_of_the_highest_speed_and_for_an_arm_half_its_reward_s_reach():
    assert robots.largest_error(PlanarRobot(tip=TIP, plane=PLANE, height=1.0, forward=0.4)) == 0.2
    assert robots.largest_error(PlanarRobot(tip=TIP, plane=PLANE, height=1.0, forward=2.0)) == 0.5
    assert robots.largest_error(ArmRobot(tip=TIP, reach=((0.0, 1.0),) * 3, coarse=0.3)) == 0.15


def test_steps_are_counted_while_the_command_is_to_move():
    moving = np.array([[0.5, 0.0, 0.0]] * 8 + [[0.0, 0.0, 0.0]] * 8)
    left = np.array([9, 9, 0, 0, 9, 9, 0, 0] + [0] * 8, float)
    recording = Recording(
        np.zeros(16), {}, commanded_velocity=moving, touch={"left": left, "right": np.full(16, 9.0)}
    )  # fmt: skip
    air, landings = robots.step_figures(recording, period_s=0.08)
    np.testing.assert_allclose(air, [0.5, 0.0])
    np.testing.assert_allclose(landings, [0.5, 0.0])


def test_page_has_a_row_for_each_robot_and_the_reason_of_those_that_do_not_walk():
    percent = {"mean": 1.0, "low": 0.94, "high": 1.0}
    walking = {
        "robot": "dog", "source": "a package", "steps": ["new", "train", "eval", "export", "deploy"], "walks": True,
        "picture": "dog_0.jpg", "mass_kg": 12.34, "motors": 12, "minutes": 9.6, "env_steps": 1_500_000,
        "survival": percent, "errors": {"error/velocity/lin_vel_m_s": {"mean": 0.123}}, "air": [0.4, 0.45],
        "deployed": ["Stood for 10.00 s.", "Moved +1.00 m forward.", "Velocity error: 0.076 m/s."],
    }  # fmt: skip
    refused = {"robot": "car", "steps": [], "reason": "new: it rolls | on wheels", "picture": "car_0.jpg"}
    crawling = {**walking, "robot": "crab", "walks": False, "why": "It crawls on its belly."}
    text = "\n".join(robots.page([refused, walking, crawling]))
    assert (
        '| <img src="images/robots/dog_0.jpg" alt="dog" width="160"> | dog, a package | 12.3 | 12 | 10 | 1.5 |' in text
    )
    assert "| 100% (94-100) | 0.12 m/s | 40% to 45% | 10.00 s, 0.076 m/s |" in text
    assert "| car | none | new: it rolls / on wheels |" in text
    assert "| crab | new, train, eval, export, deploy | It crawls on its belly. |" in text


@pytest.mark.long
def test_robot_that_is_refused_is_a_record_with_the_reason():
    Path("car.xml").write_text("<mujoco")
    Path("out").mkdir()
    record = robots.try_robot(Path("car.xml"), Path("out"), [])
    assert record["steps"] == []
    assert record["reason"].startswith("new: MuJoCo cannot read the robot file")
    json.dumps(record)


def test_page_of_robots_is_what_the_records_say_and_has_their_pictures():
    records = [json.loads(line) for line in (ROOT / "docs/robots.jsonl").read_text().splitlines()]
    text = "\n".join(robots.page(records))
    assert (ROOT / "docs/robots.md").read_text().rstrip("\n") == text.rstrip("\n")
    for record in records:
        assert not record.get("walks") or (ROOT / "docs/images/robots" / record["picture"]).is_file()
