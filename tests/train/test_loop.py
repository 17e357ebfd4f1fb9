import contextlib
import dataclasses
import functools
import gc
import json
import os
import re
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.point_mass import PointMass, PointMassConfig, PointMassTask
from ksim import ConfigError, cli
from ksim.checkpoint.format import read_checkpoint
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.run_dir import make_run_dir
from ksim.checkpoint.snapshot import versions
from ksim.host.signals import StopRequest
from ksim.log.logger import Loggers
from ksim.train import loop, run
from ksim.train.loop import TrainingDivergedError
from tests.support.checkpoints import newest, saved_learner
from tests.support.processes import exit_code
from tests.support.tasks import point_mass_task


def read_metrics(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_run_leaves_a_complete_run_directory(tmp_path, capsys):
    task = point_mass_task(num_devices=2, max_iterations=3, run_dir=str(tmp_path / "run"), tensorboard=True)
    assert task.run().exit_code == 0
    run_dir = tmp_path / "run"
    assert [m["iteration"] for m in read_metrics(run_dir)] == [1, 2, 3]
    assert read_metrics(run_dir)[-1]["env_steps"] == 3 * 16 * 8
    for name in ("config.yaml", "process_0.log", "checkpoints/3"):
        assert (run_dir / name).exists()
    assert list(run_dir.glob("events.out.tfevents*"))
    out = capsys.readouterr().out
    for words in ("Compiled in", "iteration 3/3", "env steps/s", "rollout", "reward/s", str(run_dir)):
        assert words in out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Directories of runs of two iterations, by the number of devices."""

    @functools.cache
    def finished(num_devices):
        run_dir = tmp_path_factory.mktemp("runs") / "run"
        point_mass_task(num_devices=num_devices, max_iterations=2, actor_sizes=[5], run_dir=str(run_dir)).run()
        return run_dir

    return finished


@pytest.mark.parametrize("num_devices", [1, 2])
def test_checkpoint_holds_the_final_learner_without_a_device_axis(num_devices, finished):
    task = point_mass_task(num_devices=num_devices, actor_sizes=[5])
    like, _ = task.initial_learner()
    learner = saved_learner(task, finished(num_devices))
    assert learner.iteration == 2
    chex.assert_trees_all_equal_shapes(learner, like)
    pairs = zip(jax.tree.leaves(learner.params), jax.tree.leaves(like.params), strict=True)
    assert any((np.asarray(x) != np.asarray(y)).any() for x, y in pairs)


def test_evaluation_uses_the_config_of_the_run_that_it_evaluates(finished, capsys):
    argv = ["run_mode=eval", f"checkpoint={finished(1)}", "eval_num_envs=3"]
    assert exit_code(cli.launch, PointMassTask, PointMassConfig(), argv) == 0
    assert "3, one per environment" in capsys.readouterr().out


def test_checkpoint_of_other_networks_is_an_error_that_says_what_to_do(finished):
    task = point_mass_task(run_mode="eval", checkpoint=str(finished(1)), actor_sizes=[9])
    with pytest.raises(ConfigError, match=r"would make the policy another: .* trained with .*Leave it out"):
        task.run()


def test_stop_before_the_first_iteration_lists_no_file_that_is_not_there(tmp_path, monkeypatch, capsys):
    @contextlib.contextmanager
    def stopped_already():
        request = StopRequest()
        request.signal = 2
        yield request

    monkeypatch.setattr(run, "stop_on_signal", stopped_already)
    assert point_mass_task(num_devices=2, run_dir=str(tmp_path / "run"), max_iterations=9).run().exit_code == 130
    summary = capsys.readouterr().out.split("Stopped\n")[1]
    assert "signal 2" in summary
    assert "metrics.jsonl" not in summary
    assert all(os.path.exists(path) for path in re.findall(rf"{tmp_path}[\w/.]+", summary))


def test_error_in_the_loop_is_raised_after_what_was_learned_is_saved(tmp_path, monkeypatch):
    log = Loggers.log

    def log_twice(self, metrics, iteration, env_steps):
        if iteration == 3:
            raise OSError("disk full")
        log(self, metrics, iteration, env_steps)

    monkeypatch.setattr(Loggers, "log", log_twice)
    with pytest.raises(OSError, match="disk full"):
        point_mass_task(num_devices=1, max_iterations=9, run_dir=str(tmp_path / "run")).run()
    assert newest(tmp_path / "run").exists()
    assert "disk full" in (tmp_path / "run" / "process_0.log").read_text()


def test_packages_that_are_replaced_while_a_run_goes_on_do_not_end_it(tmp_path, monkeypatch):
    iterate = loop.iterate

    def uninstall_and_iterate(*args):
        monkeypatch.setattr("importlib.metadata.version", lambda name: pytest.fail(f"{name} is being replaced"))
        iterate(*args)

    versions.cache_clear()
    monkeypatch.setattr(loop, "iterate", uninstall_and_iterate)
    task = point_mass_task(num_devices=1, max_iterations=2, save_every_n_iterations=1, run_dir=str(tmp_path / "run"))
    assert task.run().exit_code == 0
    assert read_checkpoint(newest(tmp_path / "run")).document["versions"].keys() >= {"jax", "mujoco"}


def test_save_that_an_error_ended_is_made_up_for_before_the_run_ends(tmp_path, monkeypatch):
    save, errors = loop.Saver.save, [OSError("once")]

    def fail_once(self, *args):
        if errors:
            raise errors.pop()
        save(self, *args)

    monkeypatch.setattr(loop.Saver, "save", fail_once)
    with pytest.raises(OSError, match="once"):
        point_mass_task(num_devices=1, save_every_n_iterations=1, run_dir=str(tmp_path / "run")).run()
    assert newest(tmp_path / "run").name == "1"


class SometimesNaN(PointMass):
    """Its reward is no number once the mass has moved, so a reset does not show it."""

    def step(self, state, action):
        stepped = super().step(state, action)
        bad = jnp.log(-jnp.abs(stepped.inner.position) - 1)
        return dataclasses.replace(stepped, reward=bad, metrics={"reward/mine": bad})

    def reset(self, key):
        state = super().reset(key)
        return dataclasses.replace(state, metrics={"reward/mine": state.reward})


@pytest.mark.long
def test_first_states_are_gone_once_training_runs(tmp_path, monkeypatch):
    num_envs, alive = 56, []  # a length that nothing else has
    iterate = loop.iterate

    def look_and_iterate(*args):
        iterate(*args)
        alive.append([x.shape for x in jax.live_arrays() if x.shape[:1] == (num_envs,)])

    monkeypatch.setattr(loop, "iterate", look_and_iterate)
    task = point_mass_task(num_devices=2, num_envs=num_envs, max_iterations=1, run_dir=str(tmp_path / "run"))
    task.run()
    assert alive == [[]]


@pytest.mark.long
@pytest.mark.parametrize("dump_on_nan", [True, False])
def test_no_state_outlives_the_step_that_replaces_it_nor_the_last_one_the_run(dump_on_nan, tmp_path, monkeypatch):
    first, alive = [], []

    class Task(PointMassTask):
        def on_step_start(self, state):
            if state.iteration:
                alive.append([x() is not None for x in first])

    task = Task(point_mass_task(num_devices=2, max_iterations=2, dump_on_nan=dump_on_nan).config)
    place, last = task.layout.place, []

    def place_and_watch(state):
        placed = place(state)
        first.extend(weakref.ref(x) for x in jax.tree.leaves((placed.learner.params, placed.envs.env_state.reward)))
        return placed

    def loop_and_watch(run, step):
        loop.loop(run, step)
        last.extend(weakref.ref(x) for x in jax.tree.leaves(run.state.get().learner.params))

    monkeypatch.setattr(task.layout, "place", place_and_watch)
    monkeypatch.setattr(run, "loop", loop_and_watch)
    gc.disable()  # nothing is left to a collection that may be long in coming
    try:
        task.run()
        assert [x() is not None for x in last] == [False] * len(last) != []
    finally:
        gc.enable()
    assert alive == [[False] * len(first)]


def test_reward_that_turns_nan_skips_the_updates_counts_them_and_stops_with_its_name(tmp_path):
    class Task(PointMassTask):
        def get_environment(self, engine, num_devices):
            return SometimesNaN()

    config = PointMassConfig(num_envs=16, num_devices=2, max_iterations=50, run_dir=str(tmp_path / "run"))
    with pytest.raises(
        TrainingDivergedError, match=r"32 updates in a row.*Not finite: reward/mine.*can be replayed: .*dumps/1"
    ):
        Task(config).run()
    assert [m["policy/bad_updates"] for m in read_metrics(tmp_path / "run")] == [16, 16]
    assert os.listdir(tmp_path / "run" / "dumps") == ["1"]
    learner = saved_learner(Task(config), tmp_path / "run")
    chex.assert_tree_all_finite(learner.params)


def test_error_inside_the_step_leaves_the_learner_of_the_iteration_before(tmp_path):
    calls = []

    class Task(PointMassTask):
        def _rollout(self, model, env_state, model_carry, rng):
            def fail_at_the_third(x):
                calls.append(1)
                if len(calls) == 3:
                    raise RuntimeError("the simulator died")
                return x

            count = jax.ShapeDtypeStruct((), jnp.int32)
            zero = jax.pure_callback(fail_at_the_third, count, env_state.inner.time[0] * 0)
            env_state = dataclasses.replace(env_state, reward=env_state.reward + zero)
            trajectory, env_state, model_carry = super()._rollout(model, env_state, model_carry, rng)
            return dataclasses.replace(trajectory, reward=trajectory.reward + zero), env_state, model_carry

    config = PointMassConfig(num_envs=16, num_devices=1, max_iterations=9, run_dir=str(tmp_path / "run"))
    with pytest.raises(Exception, match="the simulator died"):
        Task(config).run()
    done = len(read_metrics(tmp_path / "run"))
    assert newest(tmp_path / "run").name == str(done)


@pytest.mark.parametrize(("error", "waits"), [(TrainingDivergedError, True), (OSError, False)])
def test_processes_that_all_stop_on_an_error_wait_until_process_0_has_written_and_one_that_fails_alone_does_not(
    error, waits, tmp_path, monkeypatch
):
    write, done = loop.Saver._write, []

    def write_and_note(self, *args):
        write(self, *args)
        done.append("written")

    def fail(*_):
        monkeypatch.setattr(loop, "num_processes", lambda: 2)
        raise error

    monkeypatch.setattr(loop.Saver, "_write", write_and_note)
    monkeypatch.setattr(loop, "check_finite", fail)
    monkeypatch.setattr(loop, "wait_for_all", lambda: done.append("waited"))
    with pytest.raises(error):
        point_mass_task(num_devices=1, run_dir=str(tmp_path / "run")).run()
    assert done == (["written", "waited"] if waits else [])


def test_used_run_directory_is_refused_before_anything_compiles(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").touch()
    task = point_mass_task(num_devices=1, run_dir=str(tmp_path))
    monkeypatch.setattr(task, "initial_state", lambda: pytest.fail("too late"))
    with pytest.raises(ConfigError, match="already holds a run"):
        task.run()


def test_max_env_steps_stops_at_the_first_iteration_that_reaches_it(tmp_path):
    task = point_mass_task(num_devices=1, max_iterations=None, max_env_steps=200, run_dir=str(tmp_path / "run"))
    task.run()
    # 16 envs * 8 steps = 128 per iteration; two reach 200.
    assert len(read_metrics(tmp_path / "run")) == 2


def test_progress_counts_down_to_the_nearer_limit():
    progress = Progress(steps_per_iteration=100, max_iterations=10, max_env_steps=450)
    assert progress.iterations_left == 5
    progress.advance(60.0)
    progress.advance(2.0)
    # The first iteration warms up and does not count: 3 more of 2 s.
    assert progress.eta_s == 6.0
    assert Progress(100, None, None).eta_s is None


def test_run_directories_are_numbered_and_a_used_one_is_refused(tmp_path):
    assert make_run_dir(None, "task").name == "run_000"
    assert make_run_dir(None, "task").name == "run_001"
    used = make_run_dir(str(tmp_path / "mine"), "task")
    (used / "config.yaml").touch()
    with pytest.raises(ConfigError, match="holds a run by now"):
        make_run_dir(str(used), "task")
