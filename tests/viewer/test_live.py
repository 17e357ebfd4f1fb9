"""The viewer of a training run: the two ends of it, and a whole run."""

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

from ksim.errors import ConfigError, RunError
from ksim.host.terminal import Failures
from ksim.parallel.layout import SingleDevice
from ksim.policy.load import without_caches
from ksim.viewer import live
from ksim.viewer.frontend import BURST_S, START_S, Budget
from ksim.viewer.live import LiveViewer
from ksim.viewer.live_feed import FAILED, READY, WANTED, read_policy, write_policy
from ksim.viewer.live_worker import ASK_EVERY_S, CPU_SHARE, PolicyFeed, earned_s
from tests.support.processes import environment
from tests.support.tasks import MESSAGE, BipedConfig, BipedTask, point_mass_task

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings(MESSAGE)


@pytest.fixture(scope="module")
def model():
    task = BipedTask(BipedConfig(engine="mujoco"))
    task.layout = SingleDevice()
    return task._get_initial_model(jax.random.key(0))


def changed(model, by):
    return jax.tree.map(lambda x: x + by if eqx.is_inexact_array(x) else x, model)


def test_policy_is_read_as_it_was_written(model, tmp_path):
    write_policy(tmp_path / "policy.npz", 7, changed(model, 0.25))
    iteration, found = read_policy(tmp_path / "policy.npz", model)
    assert iteration == 7
    assert eqx.tree_equal(found, changed(model, 0.25))


class SilentProcess:
    exitcode = 1


@pytest.fixture
def connected_viewer(tmp_path):
    """A viewer as if its process had started, and the process's end of the pipe."""
    viewer = LiveViewer(point_mass_task(), Failures())
    viewer._receiver, sender = multiprocessing.Pipe(duplex=False)
    viewer._process, viewer._policy_path = SilentProcess(), tmp_path / "policy.npz"
    with viewer._receiver, sender:
        yield viewer, sender


def test_policy_is_written_only_when_it_is_wanted(connected_viewer, model, tmp_path, capsys):
    viewer, sender = connected_viewer
    reads = []
    read = lambda: reads.append(1) or model
    sender.send((READY, "http://127.0.0.1:8080"))
    viewer.after_iteration(1, read)
    assert not reads
    assert "Viewer: open http://127.0.0.1:8080 in a browser." in capsys.readouterr().out
    sender.send((WANTED, ""))
    viewer.after_iteration(2, read)
    viewer.after_iteration(3, read)
    assert len(reads) == 1
    assert read_policy(tmp_path / "policy.npz", model)[0] == 2


def test_failures_of_the_viewer_are_warnings(connected_viewer, model, capsys):
    viewer, sender = connected_viewer
    sender.send((FAILED, "ValueError: no reason"))
    sender.close()
    viewer.after_iteration(1, lambda: model)
    viewer.after_iteration(2, lambda: model)
    assert viewer._failures.counts["viewer"] == 2
    assert "viewer failed, the run continues: ValueError: no reason" in capsys.readouterr().out


def test_viewer_that_has_died_is_started_again_if_it_ever_worked(connected_viewer, model, monkeypatch, capsys):
    viewer, sender = connected_viewer
    now, starts = [100.0], []
    viewer._clock, viewer._start = lambda: now[0], lambda: starts.append(now[0])
    viewer._started_s = 100.0
    sender.send((READY, "http://127.0.0.1:8080"))
    viewer.after_iteration(1, lambda: model)
    sender.send((WANTED, ""))
    sender.close()
    viewer.after_iteration(2, lambda: model)
    assert "its process has ended (exit code 1); it is started again" in capsys.readouterr().out
    assert viewer._receiver.closed
    assert not starts
    now[0] += live.RESTART_EVERY_S
    viewer.after_iteration(3, lambda: model)
    assert starts == [160.0]


def test_started_viewer_can_ask_again(model, tmp_path, monkeypatch):
    class Context:
        Process = staticmethod(lambda **arguments: StartedProcess(arguments["args"][-1]))
        Pipe = staticmethod(multiprocessing.Pipe)

    class StartedProcess(SilentProcess):
        def __init__(self, sender):
            self._sender = sender

        def start(self):
            self._sender.send((READY, "url"))

        def terminate(self):
            pass

        def join(self, _):
            pass

        def is_alive(self):
            return False

    monkeypatch.setattr(multiprocessing, "get_context", lambda _: Context)
    now = [0.0]
    with LiveViewer(BipedTask(BipedConfig(engine="mujoco", num_devices=1)), Failures(), clock=lambda: now[0]) as viewer:
        (viewer._policy_path).write_bytes(b"of before")
        viewer.after_iteration(1, lambda: model)  # ready, and dead at once
        assert viewer._process is None
        viewer.after_iteration(2, lambda: model)
        assert viewer._process is None
        now[0] = live.RESTART_EVERY_S
        viewer._start()
        assert viewer._process is not None
        assert not viewer._policy_path.exists()


def test_task_that_cannot_be_sent_to_another_process_ends_nothing(capsys):
    class LocalTask(BipedTask):
        """Of a function, so that no other process finds it."""

    with LiveViewer(LocalTask(BipedConfig(engine="mujoco", num_devices=1)), Failures()) as viewer:
        viewer.after_iteration(1, lambda: pytest.fail("Nobody asked."))
    assert "viewer failed, the run continues" in capsys.readouterr().out


def test_task_for_another_process_has_nothing_of_this_ones_devices():
    task = BipedTask(BipedConfig(engine="mujoco", num_devices=1))
    assert task.layout is not None
    assert task.obs_sizes
    assert not {"layout", "environment", "obs_sizes"} & vars(without_caches(task)).keys()
    assert "layout" in vars(task)


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


class WatchedFrontend:
    is_watched = True
    note = ""


class PolicySession:
    def __init__(self, model):
        self.model = model


def test_feed_asks_for_a_policy_and_for_the_next_one_later(stack, model, tmp_path):
    now = [100.0]
    receiver, sender = map(stack.enter_context, multiprocessing.Pipe(duplex=False))
    session, frontend, path = PolicySession(model), WatchedFrontend(), tmp_path / "policy.npz"
    feed = PolicyFeed(session, frontend, path, sender, clock=lambda: now[0])
    feed.wait()
    feed.wait()
    assert receiver.recv() == (WANTED, "")
    assert not receiver.poll()
    write_policy(path, 5, changed(model, 1.0))
    feed.wait()
    assert frontend.note == "policy of iteration 5"
    assert not eqx.tree_equal(session.model, model)
    assert not path.exists()
    assert not receiver.poll()
    now[0] += ASK_EVERY_S
    feed.wait()
    assert receiver.poll()


def test_budget_lets_no_more_time_be_used_than_was_earned():
    class Clock:
        now = cpu = 0.0

        def sleep(self, seconds):
            self.now += seconds

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


def test_viewer_earns_a_share_of_the_trainings_time_or_of_all_cores():
    before_s = earned_s(os.getpid())
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s:
        pass
    assert earned_s(os.getpid()) - before_s >= 0.8 * CPU_SHARE * 0.3
    assert earned_s(None) > earned_s(os.getpid())  # since the machine started


def test_viewer_while_training_without_viser_or_model_is_refused_before_anything_compiles(monkeypatch):
    with pytest.raises(ConfigError, match="The viewer needs a MuJoCo model to show, and PointMass has none"):
        point_mass_task(viewer_while_training=True, num_devices=1).run()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ksim-rl\[viewer\]'"):
        point_mass_task(viewer_while_training=True, num_devices=1).run()


@pytest.mark.parametrize("option", ["viewer_num_envs=2", "viewer_while_training=true"])
def test_options_of_the_page_do_not_fit_the_window(option):
    name, value = option.split("=")
    with pytest.raises(ConfigError, match=f"{name} .* is for viewer=browser"):
        point_mass_task(viewer="native", **{name: {"2": 2, "true": True}[value]})


def test_viewers_process_does_not_train(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "name", live.NAME)
    with pytest.raises(RunError, match='if __name__ == "__main__":'):
        point_mass_task(num_devices=1).run()


PROGRAM = """
import sys

from tests.support.tasks import BipedConfig, BipedTask

if __name__ == "__main__":
    options = dict(num_devices=1, engine="mujoco", max_iterations=None, console="plain", eval_every_n_seconds=None)
    sys.exit(BipedTask(BipedConfig(viewer_while_training=True, viewer_port=18380, **options)).run().exit_code)
"""


@pytest.mark.long
def test_run_shows_its_newest_policies_to_an_open_page_and_ends_its_viewer(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    env = environment() | {"PYTHONPATH": str(ROOT)}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("w"))
        command = [sys.executable, "program.py"]
        run = stack.enter_context(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log))
        stack.callback(run.kill)
        url = wait_for(lambda: re.search(r"Viewer: open http://127.0.0.1:(\d+) in", (tmp_path / "log").read_text()))
        command = [sys.executable, str(ROOT / "benchmarks" / "viewer_page.py"), url[1], "--notes"]
        pipe = subprocess.PIPE
        page = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        stack.callback(page.kill)
        assert page.stdout is not None
        first, second = (int(page.stdout.readline().split()[-1]) for _ in range(2))
        assert 0 < first < second
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        viewers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        run.terminate()
        assert run.wait(timeout=300) == 128 + 15
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in viewers) or None)


def wait_for(condition):
    """The first result that is not None."""
    deadline = time.monotonic() + 300
    while (found := condition()) is None:
        assert time.monotonic() < deadline, "It did not happen in time."
        time.sleep(0.2)
    return found
