"""Numbers that are not finite: contained, counted, and kept as evidence."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.point_mass import PointMass, PointMassConfig, PointMassTask
from ksim import Environment
from ksim.checkpoint.dump import load_dump, replay
from ksim.parallel.collectives import device_index
from ksim.train import timing
from tests.support.damaged_runs import read_lines
from tests.support.scale import scale
from tests.support.tasks import train_iterations

NAN = float("nan")
QUIET = {"eval_at_end": False, "plots": False, "tensorboard": False}


class Marked(eqx.Module):
    """A state with a mark that outlives episodes: whether this env is poisoned."""

    inner: eqx.Module
    is_poisoned: jax.Array


class Poisoned(Environment):
    """The point mass, of which a marked env is not finite in one way or another."""

    kind: str = "reward"
    env: PointMass = PointMass()

    @property
    def action_size(self):
        return 1

    def _marked(self, state, is_poisoned):
        spoil = lambda x: jnp.where(is_poisoned, NAN, x)
        if self.kind == "reward":
            state = dataclasses.replace(state, reward=spoil(state.reward))
        if self.kind == "physics":
            state = jax.tree.map(lambda x: spoil(x) if jnp.issubdtype(x.dtype, jnp.floating) else x, state)
        return dataclasses.replace(state, inner=Marked(state.inner, is_poisoned))

    def reset(self, key):
        return self._marked(self.env.reset(key), jnp.bool_(False))

    def next_episode(self, state, key):
        # Of the physics not even a reset is finite.
        return self._marked(self.env.reset(key), state.inner.is_poisoned)

    def step(self, state, action):
        inner = dataclasses.replace(state, inner=state.inner.inner)
        return self._marked(self.env.step(inner, action), state.inner.is_poisoned)


class PoisonedTask(PointMassTask):
    kind = "reward"
    poisoned = (3,)

    def get_environment(self, engine, num_devices):
        return Poisoned(self.kind)

    def _get_initial_env_state(self, rng):
        state = super()._get_initial_env_state(rng)
        is_poisoned = jnp.isin(jnp.arange(self.config.num_envs), jnp.array(self.poisoned))
        return dataclasses.replace(state, inner=dataclasses.replace(state.inner, is_poisoned=is_poisoned))


class Everywhere(PoisonedTask):
    """Every env is poisoned."""

    poisoned = tuple(range(64))


class FaultyDeviceTask(PointMassTask):
    """On its second device a gradient is now and then not finite."""

    def _rollout(self, model, env_state, model_carry, rng):
        trajectory, *rest = super()._rollout(model, env_state, model_carry, rng)
        is_faulty = (device_index(self.layout.axis_name) == 1) & (jax.random.uniform(rng) < 0.1)
        log_prob = trajectory.log_prob.at[0, 0].set(jnp.where(is_faulty, NAN, trajectory.log_prob[0, 0]))
        return dataclasses.replace(trajectory, log_prob=log_prob), *rest


def returns(history):
    return np.mean([m["episode/return"] for m in history[-5:]])


@pytest.mark.long
@pytest.mark.parametrize("kind", scale(["physics"], ["physics", "reward"]))
def test_run_with_a_poisoned_env_reaches_the_return_of_a_clean_one(kind):
    task = type("Task", (PoisonedTask,), {"kind": kind})(PointMassConfig(num_devices=2))
    _, history = train_iterations(task, 60)
    # As in the clean run: see tests/end_to_end/test_learning.py.
    assert returns(history) > 4
    # One of 64 envs, in every step.
    assert all(m["rollout/not_finite"] == pytest.approx(1 / 64) for m in history[1:])
    assert all(m["policy/bad_updates"] == 0 for m in history)


@pytest.mark.long
def test_gradient_that_is_not_finite_on_one_device_is_skipped_on_all_and_counted():
    task = FaultyDeviceTask(PointMassConfig(num_devices=2))
    state, history = train_iterations(task, 60)
    skipped = [m["policy/bad_updates"] for m in history]
    # The faulty minibatch of each of four passes.
    assert set(skipped) == {0, 4}
    assert returns(history) > 4
    assert all(m["rollout/not_finite"] == 0 for m in history)
    for leaf in jax.tree.leaves(state.learner.params):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)


@pytest.mark.long
def test_dump_shows_the_step_that_was_not_finite_again(tmp_path, capsys):
    config = PointMassConfig(num_envs=16, num_devices=2, rollout_length=8, max_iterations=3, run_dir="run", **QUIET)
    assert PoisonedTask(config).run().exit_code == 0
    out = capsys.readouterr().out
    assert out.count("non-finite environment steps. The state") == 1
    assert "steps skipped" in out
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["rollout/not_finite"] for line in lines] == [1 / 16] * 3
    assert [path.name for path in (tmp_path / "run" / "dumps").iterdir()] == ["1"]

    # On one device as well as on two.
    task = PoisonedTask(dataclasses.replace(config, num_devices=1))
    found = replay(task, load_dump(task, "run/dumps/1"))
    assert [tuple(place) for place in found.bad_steps()] == [(3, step) for step in range(8)]
    assert found.metrics["rollout/reward"] == pytest.approx(lines[0]["rollout/reward"], rel=1e-5)

    assert PoisonedTask(dataclasses.replace(config, run_mode="replay", checkpoint="run/dumps/1")).run().exit_code == 0
    assert "env 3, step 0" in capsys.readouterr().out

    # A run goes on from it, too.
    assert PoisonedTask(dataclasses.replace(config, resume="run/dumps/1", run_dir="again")).run().exit_code == 0
    again = read_lines(tmp_path / "again" / "metrics.jsonl")
    assert [line["iteration"] for line in again] == [1, 2, 3]
    assert again[-1]["env_steps"] == lines[-1]["env_steps"]


def test_rollout_with_nothing_to_learn_from_changes_neither_the_rate_nor_the_statistics():
    task = Everywhere(
        PointMassConfig(num_envs=16, num_devices=1, rollout_length=4, desired_kl=0.01, normalize_values=True)
    )
    state, history = train_iterations(task, 2)
    assert history[0]["policy/learning_rate"] == history[1]["policy/learning_rate"]
    assert state.learner.normalizer.count == 0
    assert state.learner.normalizer.values.count == 0
    assert history[0]["policy/bad_updates"] > 0


def test_dump_on_nan_can_be_left_out(tmp_path):
    config = PointMassConfig(
        num_envs=16, num_devices=1, rollout_length=4, max_iterations=1, run_dir="run", dump_on_nan=False, **QUIET
    )
    assert PoisonedTask(config).run().exit_code == 0
    assert not (tmp_path / "run" / "dumps").exists()


@pytest.fixture(params=["highest", "default"])
def precise_task(request):
    """A task of a precision of matrix products, and the programs of which each product must have it."""
    config = PointMassConfig(num_envs=8, num_devices=1, rollout_length=2, matmul_precision=request.param, **QUIET)
    programs = []
    yield PointMassTask(config), programs
    assert len(programs) == 2
    for program in programs:
        dots = [line for line in program.splitlines() if "dot_general" in line]
        assert dots
        assert all(f"precision = [{request.param.upper()}, {request.param.upper()}]" in line for line in dots)


@pytest.mark.long
def test_precision_of_matrix_products_is_the_one_that_was_chosen(precise_task, monkeypatch):
    task, programs = precise_task

    def look(name, mapped, *arguments):
        programs.append(mapped.lower(*arguments).as_text())
        if len(programs) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(timing, "compiling", look)
    with pytest.raises(KeyboardInterrupt):
        task.run()


@pytest.mark.long
def test_replay_computes_with_the_precision_of_the_run_whoever_calls_it(precise_task, monkeypatch):
    task, programs = precise_task
    mapped, state = task.layout.map, task.layout.place(task.initial_state())

    def look(function):
        return lambda *args: programs.append(mapped(function).lower(*args).as_text()) or mapped(function)(*args)

    monkeypatch.setattr(task.layout, "map", look)
    replay(task, state)
