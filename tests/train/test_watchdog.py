import os
import subprocess
import sys
import time

import pytest

from ksim.launch.options import parse_options
from ksim.train import watchdog
from ksim.train.watchdog import HANG_EXIT_CODE, Watchdog
from tests.support.damaged_runs import read_lines
from tests.support.processes import environment, finish, start


def run_program(text, tmp_path):
    (tmp_path / "program.py").write_text(text)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_block_that_takes_too_long_ends_the_process_with_the_stacks_of_all_threads(tmp_path):
    done = run_program(
        """
import threading
from pathlib import Path
from ksim.train.watchdog import Watchdog

def wait_beside():
    threading.Event().wait()

threading.Thread(target=wait_beside, daemon=True).start()
with Watchdog(0.3, Path("process_0.log")) as watchdog:
    with watchdog.watching("a short block"):
        pass
    with watchdog.watching("the training step of iteration 3"):
        threading.Event().wait()
""",
        tmp_path,
    )
    assert done.returncode == HANG_EXIT_CODE == 70
    for text in (done.stderr, (tmp_path / "process_0.log").read_text()):
        assert "Process 0 hangs: the training step of iteration 3 has taken longer than hang_timeout_s (0.3)" in text
        assert "in wait_beside" in text
        assert text.count("program.py") >= 2


def test_library_that_holds_the_interpreter_cannot_hold_off_the_watchdog(tmp_path):
    done = run_program(
        """
import ctypes
from pathlib import Path
from ksim.train import watchdog

watchdog._GRACE_S = 0.3
with watchdog.Watchdog(0.3, Path("process_0.log")) as dog, dog.watching("the training step"):
    ctypes.PyDLL(None).sleep(100)  # without letting go of the interpreter's lock
""",
        tmp_path,
    )
    assert done.returncode == 1
    assert "program.py" in (tmp_path / "process_0.log").read_text()


@pytest.mark.parametrize(("is_main", "linger_s"), [(True, watchdog._LAST_S), (False, 0.0)])
def test_process_0_of_several_ends_a_little_after_the_others_have_written_their_stacks(
    is_main, linger_s, tmp_path, monkeypatch
):
    done, log = [], tmp_path / "log"
    monkeypatch.setattr(watchdog, "num_processes", lambda: 2)
    monkeypatch.setattr(watchdog, "is_main_process", lambda: is_main)
    with Watchdog(60.0, log) as dog, monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda s: done.append((s, "test_watchdog.py" in log.read_text())))
        patch.setattr(os, "_exit", done.append)
        dog._end("the training step")
    assert done == [(linger_s, True), HANG_EXIT_CODE]
    assert parse_options(["-m", "module"]).grace_s / 2 > watchdog._LAST_S


def test_blocks_in_time_and_what_is_not_watched_go_on(tmp_path):
    with Watchdog(0.05, tmp_path / "log") as watchdog:
        for _ in range(3):
            with watchdog.watching("a block"):
                pass
        time.sleep(0.2)
    with Watchdog(None, tmp_path / "none") as watchdog, watchdog.watching("a block"):
        pass
    assert not (tmp_path / "none").exists()


HANGING = """
import dataclasses, threading
import jax, jax.numpy as jnp
from examples.point_mass import PointMassConfig, PointMassTask

calls = []

def hang_at_the_third(x):
    calls.append(1)
    if len(calls) == 3:
        threading.Event().wait()
    return x

class Task(PointMassTask):
    def _rollout(self, model, env_state, model_carry, rng):
        zero = jax.pure_callback(hang_at_the_third, jax.ShapeDtypeStruct((), jnp.int32), env_state.inner.time[0] * 0)
        trajectory, *rest = super()._rollout(model, env_state, model_carry, rng)
        return dataclasses.replace(trajectory, reward=trajectory.reward + zero), *rest

if __name__ == "__main__":
    Task.launch(PointMassConfig(num_envs=16, rollout_length=4))
"""


@pytest.mark.long
def test_run_that_hangs_ends_with_its_phase_and_keeps_what_it_saved(tmp_path):
    (tmp_path / "hanging.py").write_text(HANGING)
    options = ("hang_timeout_s=2", "run_dir=run", "save_every_n_iterations=1", "tensorboard=false", "num_devices=1")
    code, output = finish(start("hanging.py", *options, cwd=tmp_path))
    assert code == HANG_EXIT_CODE, output
    assert "Process 0 hangs: the training step of iteration 3" in output
    assert "the training step of iteration 3" in (tmp_path / "run" / "process_0.log").read_text()
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 2
    assert (tmp_path / "run" / "checkpoints" / "1").is_dir()
