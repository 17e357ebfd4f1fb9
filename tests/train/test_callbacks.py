"""xax's task hooks: when they are called, with what, and what becomes of a run in which one fails."""

import dataclasses
import functools
import json
import logging
import os
import signal
import sys

import jax
import numpy as np
import pytest

import ksim
from examples.point_mass import PointMassConfig, PointMassTask
from ksim.checkpoint.saver import Saver
from ksim.errors import RunError
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.train.callbacks import CallbackError
from tests.support.checkpoints import newest
from tests.support.tasks import WITHOUT_REPORTS, point_mass_task


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def emit(self, record):
        self.kept.append(record.getMessage())


class Watched(PointMassTask):
    """Notes every call of a hook; one hook may fail at an iteration."""

    def __init__(self, config, *, failing="", at=0):
        super().__init__(config)
        self.calls, self.failing, self.at = [], failing, at

    def note(self, hook, state, *more):
        self.calls.append((hook, state.iteration, *more))
        self.last = state
        if hook == self.failing and state.iteration == self.at:
            raise ZeroDivisionError("mine")

    def on_training_start(self, state):
        self.note("on_training_start", state)

    def on_step_start(self, state):
        self.note("on_step_start", state)
        return state  # as xax's do

    def on_step_end(self, state):
        self.note("on_step_end", state)
        self.model = state.read_model()

    def on_after_checkpoint_save(self, ckpt_path, state):
        self.note("on_after_checkpoint_save", state, ckpt_path.name, (ckpt_path / "document.json").exists())

    def on_training_end(self, state):
        self.note("on_training_end", state)

    def add_logger_handlers(self, logger):
        self.handler = Records()
        logger.addHandler(self.handler)


def watched(tmp_path, *, failing="", at=0, **options):
    small = {"num_envs": 16, "rollout_length": 8, "actor_sizes": [8], "critic_sizes": [8], "tensorboard": False}
    options = small | WITHOUT_REPORTS | {"num_devices": 1, "run_dir": str(tmp_path / "run")} | options
    return Watched(PointMassConfig(**options), failing=failing, at=at)


def hooks_of(task):
    return [call[0].removeprefix("on_") for call in task.calls]


def test_hooks_are_called_in_the_order_of_their_names_with_where_training_stands(tmp_path):
    task = watched(tmp_path, max_iterations=2, save_every_n_iterations=1)
    assert task.run().exit_code == 0
    saved = [call for call in task.calls if call[0] == "on_after_checkpoint_save"]
    assert saved == [("on_after_checkpoint_save", i, str(i), True) for i in (1, 2)]
    others = [call for call in task.calls if call[0] != "on_after_checkpoint_save"]
    assert others == [
        ("on_training_start", 0), ("on_step_start", 0), ("on_step_end", 1), ("on_step_start", 1), ("on_step_end", 2),
        ("on_training_end", 2),
    ]  # fmt: skip
    at_end = task.last
    assert (at_end.env_steps, at_end.iterations_left, at_end.ended_by) == (2 * 16 * 8, 0, None)
    assert at_end.run_dir == tmp_path / "run"
    assert at_end.checkpoint == newest(tmp_path / "run")
    assert at_end.elapsed_s > 0
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line == {name: None if np.isnan(x) else pytest.approx(x) for name, x in at_end.metrics.items()}
    assert line["time/callbacks_s"] > 0
    assert isinstance(task.model, AbstractActorCritic)
    # The record cannot be changed.
    with pytest.raises(dataclasses.FrozenInstanceError):
        at_end.iteration = 5
    with pytest.raises(TypeError):
        at_end.metrics["loss/total"] = 0.0
    # Handlers had the records of the run, and are gone after it.
    assert any("compiled" in message for message in task.handler.kept)
    assert task.handler not in logging.getLogger("ksim").handlers


def test_signal_finishes_the_iteration_saves_and_exits_with_128_plus_its_number_and_the_end_has_its_name(tmp_path):
    class Stopped(Watched):
        def on_step_end(self, state):
            super().on_step_end(state)
            if state.iteration == 2:
                os.kill(os.getpid(), signal.SIGUSR1)

    task = Stopped(watched(tmp_path, max_iterations=None).config)
    assert task.run().exit_code == 128 + signal.SIGUSR1
    assert task.calls[-1] == ("on_training_end", 2)
    assert "SIGUSR1" in task.last.ended_by
    assert task.last.checkpoint.name == "2"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_end_is_called_after_an_error_of_the_loop(tmp_path, monkeypatch):
    task = watched(tmp_path, max_iterations=3)

    def fail(*_):
        raise OSError("of the loop")

    monkeypatch.setattr("ksim.train.loop.check_finite", fail)
    with pytest.raises(OSError, match="of the loop"):
        task.run()
    assert hooks_of(task) == ["training_start", "step_start", "after_checkpoint_save", "training_end"]
    assert task.last.ended_by == "OSError: of the loop"


def test_end_is_called_where_the_step_does_not_compile(tmp_path, monkeypatch):
    task = watched(tmp_path)
    monkeypatch.setattr("ksim.train.run.TracedStep.compile", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        task.run()
    assert hooks_of(task) == ["training_start", "training_end"]


@pytest.mark.parametrize(("hook", "at"), [("on_step_start", 1), ("on_step_end", 3), ("on_after_checkpoint_save", 2)])
def test_hook_that_fails_ends_the_run_with_its_name_and_line_and_the_state_saved(hook, at, tmp_path):
    task = watched(tmp_path, failing=hook, at=at, max_iterations=3, save_every_n_iterations=1)
    message = rf"Watched\.{hook} failed at iteration \d: ZeroDivisionError: mine \(.*test_callbacks\.py, line \d+\)"
    with pytest.raises(CallbackError, match=message) as raised:
        task.run()
    assert isinstance(raised.value, RunError)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    # The iteration that had begun was finished.
    done = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert newest(tmp_path / "run").name == str(done)
    assert done == {"on_step_start": at + 1, "on_step_end": at}.get(hook, done)
    assert hooks_of(task).count("training_end") == 1
    assert task.calls[-1][0] == "on_training_end"
    log = (tmp_path / "run" / "process_0.log").read_text()
    assert 'raise ZeroDivisionError("mine")' in log


def test_hook_that_fails_at_the_start_ends_the_run_before_anything_compiles(tmp_path, monkeypatch):
    task = watched(tmp_path, failing="on_training_start")
    monkeypatch.setattr("ksim.train.run.TracedStep.compile", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(CallbackError, match="on_training_start failed at iteration 0"):
        task.run()
    assert hooks_of(task) == ["training_start"]


@pytest.mark.long
def test_hook_that_fails_at_the_end_is_an_error_and_after_an_error_a_warning(tmp_path, capsys):
    with pytest.raises(CallbackError, match="on_training_end failed at iteration 1"):
        watched(tmp_path, failing="on_training_end", at=1, max_iterations=1).run()
    assert newest(tmp_path / "run").name == "1"

    class FailsTwice(Watched):
        def on_step_end(self, state):
            raise RuntimeError("first")

    task = FailsTwice(watched(tmp_path, run_dir="other").config, failing="on_training_end", at=1)
    with pytest.raises(CallbackError, match=r"on_step_end failed .* RuntimeError: first"):
        task.run()
    assert "Warning: FailsTwice.on_training_end failed" in capsys.readouterr().out


def test_hook_that_exits_ends_the_process_with_its_code_after_the_state_is_saved(tmp_path):
    class Exits(Watched):
        def on_step_end(self, state):
            super().on_step_end(state)
            if state.iteration == 2:
                sys.exit(7)

    task = Exits(watched(tmp_path, max_iterations=9).config)
    with pytest.raises(SystemExit) as ended:
        task.run()
    assert ended.value.code == 7
    assert newest(tmp_path / "run").name == "2"
    assert task.calls[-1] == ("on_training_end", 2)
    assert "Exits.on_step_end failed at iteration 2: SystemExit: 7" in (tmp_path / "run" / "process_0.log").read_text()


def fail(self, logger):
    raise OSError("no such host")


MISTAKES = {
    "fails": ("add_logger_handlers", fail, CallbackError, r"Mine\.add_logger_handlers failed: OSError: no such host"),
    "changes the record": ("on_step_end", lambda self, state: dataclasses.replace(state, iteration=7), CallbackError,
        r"Mine\.on_step_end returned TrainingStatus.* hooks do not change"),
    "has other arguments": ("on_after_checkpoint_save", lambda self, state: None, ksim.ConfigError,
        r"on_after_checkpoint_save\(self, state\) must take .*\(self, ckpt_path: "),
}  # fmt: skip


@pytest.mark.parametrize(("hook", "function", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_hook_with_a_mistake_is_an_error_that_names_it(hook, function, error, message, tmp_path):
    task = type("Mine", (PointMassTask,), {hook: function})(watched(tmp_path, max_iterations=2).config)
    with pytest.raises(error, match=message):
        task.check() if error is ksim.ConfigError else task.run()


def test_checkpoint_is_still_there_when_the_hook_is_called_though_only_one_is_kept(tmp_path, monkeypatch):
    task = watched(tmp_path, max_iterations=5, save_every_n_iterations=1, max_to_keep=1)
    write = Saver._write

    def write_late(self, *args):
        import time

        time.sleep(0.05)  # longer than an iteration
        write(self, *args)

    monkeypatch.setattr(Saver, "_write", write_late)
    task.run()
    saved = [call[1:] for call in task.calls if call[0] == "on_after_checkpoint_save"]
    assert saved == [(i, str(i), True) for i in range(1, 6)]


@pytest.mark.parametrize(
    "decorated",
    [
        lambda hook: hook, jax.jit, functools.partial(jax.jit, static_argnums=0),
        functools.partial(jax.pmap, axis_name="device"), lambda hook: functools.partialmethod(hook),
        lambda hook: staticmethod(functools.partial(hook, None)), classmethod, property,
    ],
)  # fmt: skip
def test_gradient_synchronisation_under_the_name_of_another_program_is_an_error_that_names_ours(decorated):
    class Custom(PointMassTask):
        @decorated
        def custom_gradient_sync(self, grads):
            return grads

    with pytest.raises(ksim.ConfigError, match=r"Custom\.custom_gradient_sync is never called\. Override sync_grad"):
        Custom(point_mass_task(num_devices=2).config).check()


@pytest.mark.parametrize(
    ("name", "arguments", "hook"),
    [
        ("get_reward", "physics_model", "get_rewards"),
        ("get_observation", "physics_model", "get_observations"),
        ("get_initial_model", "rng", "_get_initial_model"),
        ("on_train_start", "state", "on_training_start"),
        ("on_checkpoint_save", "ckpt_path, state", "on_after_checkpoint_save"),
        ("sync_gradient", "grads", "sync_gradients"),
    ],
)
def test_method_with_nearly_the_name_of_a_hook_is_a_warning_that_names_it(name, arguments, hook, tmp_path):
    method = eval(f"lambda self, {arguments}: None")
    task = type("Mistaken", (PointMassTask,), {name: method})(watched(tmp_path).config)
    with pytest.warns(UserWarning, match=rf"never calls Mistaken\.{name}\. Did you mean {hook}\?"):
        task.check()


@pytest.mark.filterwarnings("error")
def test_method_that_could_not_be_called_as_a_hook_or_stands_beside_it_is_the_tasks_own(tmp_path):
    class Helpers(PointMassTask):
        def get_reward(self, name, scale):
            """Takes other arguments."""

        def get_command(self, physics_model):
            """Beside the hook."""

        def get_commands(self, physics_model):
            return []

        def get_train_environment(self, engine, num_devices):
            """Another word."""

    Helpers(watched(tmp_path, num_devices=2).config).check()


@pytest.mark.filterwarnings("error")
def test_constructor_and_methods_of_other_arguments_that_are_no_callbacks_are_the_tasks_own(tmp_path):
    class Longer(PointMassTask):
        def __init__(self, config, length):
            super().__init__(config)
            self.length = length

        def debug(self, what):
            """xax has one without arguments."""

    Longer(watched(tmp_path, num_devices=2).config, 2.0).check()
