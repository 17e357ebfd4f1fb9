"""Timing figures of the host, and of every device under every engine."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.point_mass import PointMassConfig, PointMassTask
from ksim.parallel.collectives import device_index
from ksim.preflight.devices import describe_collectives
from ksim.train.timing import TracedStep, device_times, scalars
from tests.support.scale import scale
from tests.support.tasks import assert_same_parameters, point_mass_task, train_iterations


def test_figures_of_host_and_devices_are_in_every_line(tmp_path):
    options = {"num_devices": 2, "max_iterations": 5, "eval_every_n_iterations": 1}
    point_mass_task(**options, eval_num_envs=2, run_dir=str(tmp_path / "run")).run()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["episode/count"] for line in lines) > 0
    for line in lines:
        of_devices = lambda name, line=line: [line[f"{name}/device_{i}"] for i in range(2)]
        assert sum(of_devices("episode/count")) == line["episode/count"]
        assert of_devices("rollout/steps") == [8 * 8, 8 * 8]
        assert of_devices("rollout/not_finite") == [0, 0]
        rollouts = of_devices("time/rollout_s")
        updates = of_devices("time/update_s")
        assert line["time/rollout_s"] == max(rollouts)
        assert line["time/update_s"] == min(updates)
        np.testing.assert_allclose(line["time/rollout_skew_s"], max(rollouts) - min(rollouts))
        assert 0 < max(rollouts) + min(updates) <= 1.05 * line["time/iteration_s"]
        assert line["time/logging_s"] >= 0
    assert lines[0]["time/evaluation_s"] == 0
    assert lines[1]["time/evaluation_s"] > 0
    assert lines[1]["time/sync_s"] > 0


def test_single_device_has_no_figures_of_devices_but_those_of_all(tmp_path):
    # Longer updates than a thread that watches a rollout may be late on a busy machine.
    point_mass_task(num_devices=1, num_passes=100, max_iterations=1, run_dir=str(tmp_path / "run")).run()
    (line,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert not [name for name in line if "/device" in name]
    assert line["time/rollout_s"] > 0
    assert line["time/update_s"] > 0


class UnevenTask(PointMassTask):
    """The second device has more to do in its rollout."""

    def _rollout(self, model, env_state, model_carry, rng):
        turns = 300 * device_index(self.layout.axis_name)
        matrix = jax.lax.fori_loop(0, turns, lambda _, x: jnp.tanh(x @ x), jnp.eye(200) / 2)
        trajectory, env_state, model_carry = super()._rollout(model, env_state, model_carry, rng)
        slow = jax.tree.map(lambda x: x + 0 * matrix[0, 1], trajectory.reward)
        return trajectory.__class__(**(vars(trajectory) | {"reward": slow})), env_state, model_carry


def compiled_step(task):
    task.check()
    state = task.layout.place(task.initial_state())
    return TracedStep(task.layout, task.make_train_step(task.layout.axis_name), state, donate=False).compile(
        state
    ), state


@pytest.mark.long
def test_device_with_more_to_do_takes_longer_for_its_rollout_and_waits_for_nobody_in_its_update():
    config = PointMassConfig(num_envs=16, num_devices=2, rollout_length=8, actor_sizes=[8], critic_sizes=[8])
    step, state = compiled_step(UnevenTask(config))
    step(state)
    rollout_s, update_s = step(state)[2].T
    assert rollout_s[1] > 2 * rollout_s[0]
    # The first waits in the first collective, until the second has rolled out.
    assert update_s[0] - update_s[1] > 0.5 * (rollout_s[1] - rollout_s[0])


@pytest.mark.long
@pytest.mark.parametrize(("num_devices", "layout"), scale([(2, "pmap")], [(1, "pmap"), (2, "pmap"), (2, "shard_map")]))
def test_compiling_traces_nothing_that_was_traced_to_be_checked(num_devices, layout):
    calls = []

    class CountingTask(PointMassTask):
        def _rollout(self, *args):
            calls.append("rollout")
            return super()._rollout(*args)

        def sync_gradients(self, grads):
            calls.append("sync")
            return super().sync_gradients(grads)

    sizes = {"num_envs": 16, "rollout_length": 8, "actor_sizes": [8], "critic_sizes": [8]}
    task = CountingTask(PointMassConfig(num_devices=num_devices, layout=layout, **sizes))
    task.check()
    state = task.layout.place(task.initial_state())
    calls.clear()
    traced = TracedStep(task.layout, task.make_train_step(task.layout.axis_name), state, donate=True)
    assert set(calls) == {"rollout", "sync"}
    calls.clear()
    traced.compile(state)(state)
    assert calls == []


@pytest.mark.long
def test_halves_that_are_compiled_alone_learn_what_the_whole_step_does():
    step, state = compiled_step(point_mass_task(num_devices=2))
    state, _, _ = step(state)
    state, metrics, _ = step(state)
    task = point_mass_task(num_devices=2)
    whole, history = train_iterations(task, 2)
    first = task.layout.first
    assert_same_parameters(first(state.learner), first(whole.learner), rtol=1e-6, atol=1e-7)
    metrics = scalars(first(metrics))
    assert metrics.keys() == history[-1].keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(value, history[-1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_timing_puts_no_callback_into_a_program_nor_a_collective_into_the_rollout():
    task = point_mass_task(num_devices=2)
    task.check()
    state = task.layout.place(task.initial_state())
    step = task.make_train_step(task.layout.axis_name)
    collect = task.layout.map(lambda envs, learner: step.collect(envs, learner))
    whole = task.layout.map(lambda state: step(state)).lower(state).as_text()
    assert "all_reduce" in whole
    assert "callback" not in whole  # which would keep it out of the compilation cache
    assert "all_reduce" not in collect.lower(state.envs, state.learner).as_text()


def test_times_are_those_of_the_slowest_rollout_and_the_shortest_update():
    metrics = device_times(np.array([[1.0, 4.0], [3.0, 2.0]]))
    assert (metrics["time/rollout_s"], metrics["time/update_s"], metrics["time/rollout_skew_s"]) == (3.0, 2.0, 2.0)
    assert metrics["time/rollout_s/device_1"] == 3.0
    assert metrics["time/update_s/device_0"] == 4.0


def test_collectives_are_read_from_the_text_of_a_program():
    text = """
      %all-reduce.1 = f32[8,4]{1,0} all-reduce(%x), channel_id=1
      ROOT %all-reduce.2 = (f32[8]{0}, s32[]) all-reduce(%a, %b), channel_id=2
      %ag = (f32[4]{0}, f32[8]{0}) all-gather-start(%c), channel_id=3
      %all-reduce.3 = f32[8,4]{1,0} all-reduce(%y), channel_id=4
      %sum = f32[] add(%p, %q)
    """
    assert describe_collectives(text) == [
        "1 x all-gather of f32[4], f32[8] (48 B)",
        "2 x all-reduce of f32[8,4] (128 B)",
        "1 x all-reduce of f32[8], s32[] (36 B)",
    ]
