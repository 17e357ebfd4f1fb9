import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp import observations
from tests.support.contexts import asking, case, check_value, turned

ACTION = jnp.array([0.5, -2.0])


def gait(frequency, *offsets):
    return {"commands": {"gait": jnp.array([frequency, 0.5, *offsets])}}


def clock(*turns):
    """The hand of a clock, as its sine and cosine."""
    return np.stack([np.sin(2 * np.pi * np.array(turns)), np.cos(2 * np.pi * np.array(turns))])


# fmt: off
CASES = [
    case("command: itself", observations.CommandValue(command="velocity"), [0.5, -0.25, 2.0],
         commands=asking(forward=0.5, leftward=-0.25, yaw_rate=2.0)),
    case("last action: the one that led here", observations.LastAction(), ACTION, action=ACTION,
         previous_action=9 * ACTION),
    case("previous action: the one before the last", observations.PreviousAction(), ACTION, action=9 * ACTION,
         previous_action=ACTION),
    case("action history: the newest first, and zeros before", observations.ActionHistory(steps=3),
         [[[0, 0], [0, 0], [0, 0]], [[1, -1], [0, 0], [0, 0]], [[2, -2], [1, -1], [0, 0]]],
         episode=[{"action": jnp.array([float(t), -float(t)])} for t in range(3)]),
    *(case(f"heading error: to the left, the short way round, from {facing} to {asked}",
           observations.HeadingError(command="heading"), [np.radians(error)], orientation=turned("z", facing),
           commands={"heading": jnp.array([np.radians(asked)])})
      for facing, asked, error in [(30, 90, 60), (90, 30, -60), (170, -170, 20)]),
    # 1 - 10 * 0.02 = 0.8; 50 steps of 0.02 s are the whole second.
    *(case(f"time left: after {step} steps", observations.TimeLeft(seconds=1.0), left, episode_step=jnp.int32(step))
      for step, left in [(0, 1.0), (10, 0.8), (50, 0.0)]),
    # A turn of 0.8 s takes 40 steps of 0.02 s.
    *(case(f"phase clock: after {step} steps", observations.PhaseClock(period_s=0.8), hand,
           episode_step=jnp.int32(step))
      for step, hand in [(0, [0, 1]), (10, [1, 0]), (20, [0, -1]), (30, [-1, 0]), (40, [0, 1])]),
    # 2.5 Hz for 0.02 s are a 20th of a turn; then 5 Hz a 10th. A new frequency counts from the step after it is given.
    case("gait clock: adds up the turns when the frequency changes", observations.GaitClock(command="gait"),
         [clock(0), clock(0.05), clock(0.1), clock(0.2)], episode=[gait(2.5), gait(2.5), gait(5.0), gait(5.0)]),
    # After one step of 12.5 Hz the clock is at a quarter: the feet at a quarter, three quarters, and a half.
    case("gait clock: each foot ahead by its offset", observations.GaitClock(command="gait"),
         [clock(0, 0.5, 0.25), clock(0.25, 0.75, 0.5)], episode=[gait(12.5, 0.5, 0.25)] * 2),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)
