import types

import pytest

from ksim.host.signals import StopRequest
from ksim.viewer.controls import CommandNumber
from ksim.viewer.frontend import BURST_S, START_S, AbstractFrontend, Budget, Driver, Pacer, deflected, run_session
from tests.support.viewed import CommandedSession

HEIGHT = CommandNumber("height", 0, "height, m", (0.6, 0.8))
FORWARD = CommandNumber("velocity", 0, "forward, m/s", (-0.5, 1.0))
LEFTWARD = CommandNumber("velocity", 1, "leftward, m/s", (-0.3, 0.3))


@pytest.fixture
def session():
    return CommandedSession(HEIGHT, FORWARD, LEFTWARD, velocity_command="velocity")


def test_driver_steers_the_first_velocity_command(session):
    driver = Driver(session)
    assert driver.numbers == [FORWARD, LEFTWARD]
    driver({"axes": [1, -0.5, 1]})
    driver({"axes": [None, 0, None]})
    assert session.calls == [("forward, m/s", 1.0), ("leftward, m/s", -0.15), ("leftward, m/s", 0.0)]


def test_driver_without_a_velocity_command_steers_the_first_numbers(session):
    session.velocity_command = None
    assert Driver(session).numbers == [HEIGHT, FORWARD, LEFTWARD]


def test_buttons_reset_push_zero_and_pause(session):
    driver = Driver(session)
    for name in ("reset", "push", "zero", "pause"):
        driver({"press": name})
    assert session.calls == ["reset", "push", "zero"]
    assert session.paused


@pytest.mark.parametrize("message", [{}, {"axes": [None, None, None, 1]}, {"press": "quit"}], ids=repr)
def test_unknown_message_changes_nothing(session, message):
    Driver(session)(message)
    assert not session.calls
    assert not session.paused


STICKS = [
    (FORWARD, 1.0, 1.0), (FORWARD, -1.0, -0.5), (FORWARD, 0.5, 0.5), (FORWARD, 0.0, 0.0),
    (HEIGHT, 0.0, 0.6), (HEIGHT, 1.0, 0.8), (CommandNumber("c", 0, "0", None), -0.7, -0.7),
]  # fmt: skip


@pytest.mark.parametrize(("number", "x", "value"), STICKS)
def test_stick_goes_to_the_ends_of_the_range(number, x, value):
    assert deflected(number, x) == pytest.approx(value)


class Clock:
    """A clock that time passes on only when it is told, or when someone sleeps."""

    now = cpu = 0.0

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


def test_budget_lets_no_more_time_be_used_than_was_earned():
    clock = Clock()
    budget = Budget(lambda: 0.1 * clock.now, cpu_clock=lambda: clock.cpu, sleep=clock.sleep)

    def work(seconds):
        start = clock.now
        for _ in range(round(seconds / 0.02)):
            clock.cpu += 0.02
            clock.now += 0.02
            budget.wait()
        return clock.now - start

    # Less what it begins with, and later less what was kept, at a tenth of a second per second.
    assert work(START_S + 1.0) == pytest.approx(1.0 / 0.1, abs=0.05)
    clock.now += 100.0
    budget.wait()
    assert work(1.0) == pytest.approx((1.0 - BURST_S) / 0.1, abs=0.05)


@pytest.fixture
def even_machine(monkeypatch):
    """A machine on which no frame takes time, so that every step has one."""
    monkeypatch.setattr("ksim.viewer.frontend.time", types.SimpleNamespace(perf_counter=lambda: 0.0))


class CountingFrontend(AbstractFrontend):
    """Open for so many frames, one for every step, of which some fail; a step that comes early would have none."""

    frame_s = 0.0

    def __init__(self, num_left, fails=lambda num_left: False):
        self.num_left, self._fails = num_left, fails

    @property
    def is_open(self):
        return self.num_left > 0

    def show(self, real_time_factor):
        self.num_left -= 1
        if self._fails(self.num_left):
            raise RuntimeError("deque mutated during iteration")

    def close(self):
        pass


# Signal 2 asks for a stop before the first step.
@pytest.mark.usefixtures("even_machine")
@pytest.mark.parametrize(("signal", "num_steps"), [(None, 3), (2, 0)])
def test_session_runs_until_its_window_is_closed_or_a_signal_asks_it_to_stop(session, signal, num_steps):
    stop = StopRequest()
    stop.signal = signal
    run_session(session, CountingFrontend(3), stop)
    assert session.episode_step == num_steps


@pytest.mark.usefixtures("even_machine")
def test_frames_that_fail_now_and_then_do_not_end_a_session(session, capsys):
    run_session(session, CountingFrontend(4, lambda left: left % 2), StopRequest())
    assert session.episode_step == 4
    said = "Warning: A frame of the viewer could not be shown, the viewer continues: RuntimeError: deque mutated"
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.usefixtures("even_machine")
def test_session_none_of_whose_frames_can_be_shown_ends_with_their_error(session, monkeypatch):
    monkeypatch.setattr("ksim.viewer.frontend.MAX_FAILED_FRAMES", 3)
    with pytest.raises(RuntimeError, match="deque mutated"):
        run_session(session, CountingFrontend(10, lambda left: left != 8), StopRequest())
    assert session.episode_step == 5  # two of the frames before one that was shown, and three after it
