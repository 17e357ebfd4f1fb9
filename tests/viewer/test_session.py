import jax
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.host.signals import StopRequest
from ksim.mdp import commands, events, observations as obs
from ksim.parallel.layout import SingleDevice
from ksim.viewer.controls import CommandNumber, command_numbers
from ksim.viewer.frontend import AbstractFrontend, Pacer, run_session
from ksim.viewer.session import PUSH_SPEED, ViewSession
from tests.support.tasks import BipedConfig, BipedTask


class ViewedTask(BipedTask):
    """The biped, with an observation of the command alone, so that what the policy sees of it can be read."""

    def get_observations(self, physics_model):
        return [obs.CommandValue(command="velocity")]

    def get_events(self, physics_model):
        return [events.PushVelocity(interval_s=(9.0, 9.0))]


@pytest.fixture(scope="module")
def env():
    return ViewedTask(BipedConfig()).get_environment("mujoco", 1)


@pytest.fixture(scope="module")
def model(env):
    task = ViewedTask(BipedConfig(engine="mujoco"))
    task.layout = SingleDevice()
    return task._get_initial_model(jax.random.key(0))


@pytest.fixture(scope="module")
def compiled_session(env, model):
    return ViewSession(env, model, seed=0)


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
    np.testing.assert_array_equal(session.policy_observation["actor"], np.zeros(3))
    session.set(forward, 0.75)
    session.set(yaw_rate, -0.25)
    for _ in range(3):
        session.advance()
        np.testing.assert_allclose(session.policy_observation["actor"], [0.75, 0.0, -0.25])
        np.testing.assert_allclose(session.policy_commands["velocity"], [0.75, 0.0, -0.25])


def test_command_set_by_hand_outlives_a_reset(session):
    session.set(session.numbers[0], 0.5)
    session.advance()
    assert session.episode_step == 1
    session.ask_reset()
    session.advance()
    assert session.episode_step == 0
    np.testing.assert_allclose(session.policy_observation["actor"], [0.5, 0.0, 0.0])


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


def test_numbers_of_a_command_that_tells_no_ranges_start_from_what_was_drawn():
    class Silent(commands.VelocityCommand):
        def ranges(self):
            return {}

    numbers, start = command_numbers({"v": Silent()}, {"v": np.array([0.1, 0.2, 0.3])})
    assert [(n.label, n.range) for n in numbers] == [("0", None), ("1", None), ("2", None)]
    np.testing.assert_allclose(start["v"], [0.1, 0.2, 0.3])


def test_numbers_start_at_zero_or_next_to_it():
    _, start = command_numbers({"h": commands.HeightCommand(height=(0.6, 0.8))}, {"h": np.array([0.7])})
    np.testing.assert_allclose(start["h"], [0.6])


def test_command_that_tells_too_few_ranges_is_refused():
    class Short(commands.VelocityCommand):
        def ranges(self):
            return {"forward, m/s": (0.0, 1.0)}

    with pytest.raises(ConfigError, match="each of its 3 numbers"):
        command_numbers({"v": Short()}, {"v": np.zeros(3)})


def test_nudge_goes_by_tenths_of_the_range_and_stays_in_it(session):
    forward = session.numbers[0]
    session.nudge(forward, 3)
    assert session.get(forward) == pytest.approx(0.3)
    session.nudge(forward, -5)
    assert session.get(forward) == 0.0
    session.set_to_start()
    assert CommandNumber("c", 0, "x", None).step == 0.1


class Clock:
    """A clock that time passes on only when it is told, or when someone sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


# A step of 20 ms whose work takes less sleeps for the rest; on a machine of half the speed it says so and never sleeps.
@pytest.mark.parametrize(("work_s", "step_s", "factor"), [(0.005, 0.02, 1.0), (0.04, 0.04, 0.5)])
def test_pacer_sleeps_for_what_is_left_of_each_step(work_s, step_s, factor):
    clock = Clock()
    pacer = Pacer(0.02, clock, clock.sleep)
    for step in range(100):
        clock.now += work_s
        pacer.wait()
        assert clock.now == pytest.approx(step_s * (step + 1))
    assert pacer.real_time_factor == pytest.approx(factor)


def test_pacer_after_a_long_halt_does_not_catch_up():
    clock = Clock()
    pacer = Pacer(0.02, clock, clock.sleep)
    clock.now = 10.0
    pacer.wait()
    pacer.wait()
    assert clock.now == pytest.approx(10.02)


class CountingFrontend(AbstractFrontend):
    """Open for a number of frames, one for every step; a step that comes early would have none."""

    frame_s = 0.0

    def __init__(self, num_frames):
        self.num_left = num_frames

    @property
    def is_open(self):
        return self.num_left > 0

    def show(self, real_time_factor):
        self.num_left -= 1

    def close(self):
        pass


def test_session_runs_until_its_window_is_closed(session):
    run_session(session, CountingFrontend(3), StopRequest())
    assert session.episode_step == 3


def test_session_runs_until_a_signal_asks_it_to_stop(session):
    stop = StopRequest()
    stop.signal = 2
    run_session(session, CountingFrontend(3), stop)
    assert session.episode_step == 0


class FailingFrontend(CountingFrontend):
    """Frames of which some fail."""

    def __init__(self, num_left, fails):
        super().__init__(num_left)
        self._fails = fails

    def show(self, real_time_factor):
        super().show(real_time_factor)
        if self._fails(self.num_left):
            raise RuntimeError("deque mutated during iteration")


def test_frames_that_fail_now_and_then_do_not_end_a_session(session, capsys):
    run_session(session, FailingFrontend(4, lambda left: left % 2), StopRequest())
    assert session.episode_step == 4
    said = "Warning: A frame of the viewer could not be shown, the viewer continues: RuntimeError: deque mutated"
    assert capsys.readouterr().out.count(said) == 1


def test_session_none_of_whose_frames_can_be_shown_ends_with_their_error(session, monkeypatch):
    monkeypatch.setattr("ksim.viewer.frontend.MAX_FAILED_FRAMES", 3)
    with pytest.raises(RuntimeError, match="deque mutated"):
        run_session(session, FailingFrontend(10, lambda left: left != 8), StopRequest())
    assert session.episode_step == 5  # two of the frames before one that was shown, and three after it
