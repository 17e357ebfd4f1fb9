import numpy as np
import pytest

from ksim.mdp import events, observations as obs
from ksim.viewer.session import PUSH_SPEED
from tests.support.tasks import BipedConfig, BipedTask
from tests.support.viewed import view_session


class ViewedTask(BipedTask):
    """The biped, with an observation of the command alone, so that what the policy sees of it can be read."""

    def get_observations(self, physics_model):
        return [obs.CommandValue(command="velocity")]

    def get_events(self, physics_model):
        return [events.PushVelocity(interval_s=(9.0, 9.0))]


@pytest.fixture(scope="module")
def compiled_session():
    return view_session(ViewedTask(BipedConfig(engine="mujoco")))


@pytest.fixture
def session(compiled_session):
    """A session as if it had just begun."""
    compiled_session.set_to_start()
    compiled_session.paused = False
    compiled_session.ask_reset()
    compiled_session.advance()
    compiled_session.num_falls = 0
    return compiled_session


def test_command_set_by_hand_is_what_the_policy_sees_from_the_next_step_on(session):
    forward, _, yaw_rate = session.numbers
    assert (forward.label, forward.range) == ("forward, m/s", (0.0, 1.0))
    np.testing.assert_array_equal(session._state.obs["actor"][0], np.zeros(3))
    session.set(forward, 0.75)
    session.set(yaw_rate, -0.25)
    for _ in range(3):
        session.advance()
        np.testing.assert_allclose(session._state.obs["actor"][0], [0.75, 0.0, -0.25])
        np.testing.assert_allclose(session._state.inner.commands["velocity"][0], [0.75, 0.0, -0.25])


def test_command_set_by_hand_outlives_a_reset(session):
    session.set(session.numbers[0], 0.5)
    session.advance()
    assert session.episode_step == 1
    session.ask_reset()
    session.advance()
    assert session.episode_step == 0
    np.testing.assert_allclose(session._state.obs["actor"][0], [0.5, 0.0, 0.0])


def test_reset_draws_another_start(session):
    first = session.data.qpos.copy()
    session.ask_reset()
    session.advance()
    assert np.abs(session.data.qpos - first).max() > 1e-3


def test_pause_keeps_the_state_until_it_is_lifted(session):
    session.paused = True
    before = session.data.qpos.copy()
    session.advance()
    np.testing.assert_array_equal(session.data.qpos, before)
    session.paused = False
    session.advance()
    assert (session.data.qpos != before).any()
    assert session.data.time == pytest.approx(0.02)


def test_push_changes_the_bases_velocity_by_its_speed_once(session):
    # In the air, nothing but the push and the swing of the legs (some 0.1 m/s) moves the base sideways.
    still_2 = session.data.qvel[:2].copy()
    session.ask_push()
    session.advance()
    pushed_2 = session.data.qvel[:2].copy()
    assert np.linalg.norm(pushed_2 - still_2) == pytest.approx(PUSH_SPEED, abs=0.25)
    session.advance()
    assert np.linalg.norm(session.data.qvel[:2] - pushed_2) < 0.25


def test_fall_starts_the_next_episode_and_is_counted_but_a_time_limit_is_passed(session):
    # The biped's time limit is 10 steps.
    steps = []
    while session.num_falls == 0 and len(steps) < 200:
        session.advance()
        steps.append(session.episode_step)
    assert max(steps) > 10
    assert session.num_falls == 1
    assert steps[-1] == 0


def test_nudge_goes_by_tenths_of_the_range_and_stays_in_it(session):
    forward = session.numbers[0]
    session.nudge(forward, 3)
    assert session.get(forward) == pytest.approx(0.3)
    session.nudge(forward, -5)
    assert session.get(forward) == 0.0
    session.set_to_start()
