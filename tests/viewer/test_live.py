"""The viewer of a training run: the two ends of it, and a whole run."""

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

from ksim.errors import ConfigError, RunError
from ksim.host.terminal import Failures
from ksim.parallel.layout import SingleDevice
from ksim.policy.load import without_caches
from ksim.viewer import live
from ksim.viewer.live import LiveViewer
from ksim.viewer.live_feed import FAILED, READY, WANTED, read_policy, write_policy
from ksim.viewer.live_worker import ASK_EVERY_S, CPU_SHARE, PolicyFeed, earned_s
from tests.support.processes import ROOT, environment, wait_until
from tests.support.tasks import BipedConfig, BipedTask, point_mass_task


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


class DeadProcess:
    """A process that has ended, after it was ready if it has a pipe to say so."""

    exitcode = 1

    def __init__(self, sender=None):
        self._sender = sender

    def start(self):
        self._sender.send((READY, "url"))

    def is_alive(self):
        return False

    terminate = join = lambda *_: None


@pytest.fixture
def connected_viewer(tmp_path):
    """A viewer as if its process had started, and the process's end of the pipe."""
    viewer = LiveViewer(point_mass_task(), Failures())
    viewer._receiver, sender = multiprocessing.Pipe(duplex=False)
    viewer._process, viewer._policy_path = DeadProcess(), tmp_path / "policy.npz"
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
    start = lambda **arguments: DeadProcess(arguments["args"][-1])
    context = SimpleNamespace(Process=start, Pipe=multiprocessing.Pipe)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
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


def test_feed_asks_for_a_policy_and_for_the_next_one_later(model, tmp_path):
    now = [100.0]
    receiver, sender = multiprocessing.Pipe(duplex=False)
    session, frontend = SimpleNamespace(model=model), SimpleNamespace(is_watched=True, note="")
    path = tmp_path / "policy.npz"
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


@pytest.mark.parametrize(("option", "value"), [("viewer_num_envs", 2), ("viewer_while_training", True)])
def test_options_of_the_page_do_not_fit_the_window(option, value):
    with pytest.raises(ConfigError, match=f"{option} .* is for viewer=browser"):
        point_mass_task(viewer="native", **{option: value})


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
        url = wait_until(
            lambda: re.search(r"Viewer: open http://127.0.0.1:(\d+) in", (tmp_path / "log").read_text()), timeout_s=300
        )
        command = [sys.executable, str(ROOT / "benchmarks" / "viewer_page.py"), url[1], "--notes"]
        pipe = subprocess.PIPE
        page = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        stack.callback(page.kill)
        too_late = threading.Timer(300, page.kill)  # which ends its output
        too_late.start()
        stack.callback(too_late.cancel)
        assert page.stdout is not None
        first, second = (int(page.stdout.readline().split()[-1]) for _ in range(2))
        assert 0 < first < second
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        viewers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        run.terminate()
        assert run.wait(timeout=300) == 128 + 15
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in viewers), timeout_s=300)
