"""Sessions of the viewer, and a stand-in for them, for tests."""

import contextlib
import threading

import jax

from ksim.host.signals import StopRequest
from ksim.parallel.layout import SingleDevice
from ksim.viewer.frontend import run_session
from ksim.viewer.session import ViewSession


def view_session(task, num_envs=1):
    """A session of a task's untrained policy."""
    task.layout = SingleDevice()
    return ViewSession(task.environment, task._get_initial_model(jax.random.key(0)), seed=0, num_envs=num_envs)


@contextlib.contextmanager
def stepped(session, frontend):
    """Steps and shows the session in a thread, which must live to the end."""
    stop = StopRequest()
    thread = threading.Thread(target=run_session, args=(session, frontend, stop))
    thread.start()
    with contextlib.closing(frontend):
        yield frontend
        assert thread.is_alive()
        stop.signal = 2
        thread.join()


class CommandedSession:
    """The part of a session that keys, drivers and frames need: its numbers, and what was called."""

    ctrl_dt = 0.02

    def __init__(self, *numbers, velocity_command=None):
        self.numbers, self.velocity_command = [*numbers], velocity_command
        self.values, self.calls = [0] * len(numbers), []
        self.paused, self.episode_step = False, 0

    def set(self, number, value):
        self.calls.append((number.label, value))

    def nudge(self, number, num_steps):
        self.values[self.numbers.index(number)] += num_steps
        self.calls.append((number.label, num_steps))

    def set_to_start(self):
        self.values = [0] * len(self.numbers)
        self.calls.append("zero")

    def ask_reset(self):
        self.calls.append("reset")

    def ask_push(self):
        self.calls.append("push")

    def advance(self):
        self.episode_step += 1
