import dataclasses
import logging
import os
import warnings

import jax
import jax.numpy as jnp
import pytest

from ksim import ConfigError
from ksim.parallel.collectives import bind_axis
from ksim.preflight import devices as distributed_setup
from ksim.preflight.devices import find_problems
from ksim.preflight.memory import format_bytes, memory_per_device, num_bytes
from tests.support.tasks import BipedConfig, BipedTask, point_mass_task


def test_setup_has_global_and_per_device_figures(capsys):
    task = BipedTask(BipedConfig(num_devices=2, num_envs=16, batch_size=8, grad_sync_period=3, rollout_length=6))
    setup = task.verify_distributed_setup()
    assert (setup.num_processes, setup.num_devices, setup.engine) == (1, 2, "mujoco")
    assert (setup.num_envs, setup.num_envs_per_device) == (16, 8)
    assert (setup.batch_size, setup.batch_size_per_device, setup.num_batches) == (8, 4, 2)
    # Three minibatches of 8 environments of 6 steps, but two hold all that there are.
    assert setup.effective_batch_size == 2 * 8 * 6
    assert [d.name for d in setup.devices] == [str(d) for d in jax.devices()[:2]]
    assert all((d.platform, d.process) == ("cpu", 0) and d.memory_bytes > 2**20 for d in setup.devices)
    assert setup.problems == ()
    out = capsys.readouterr().out
    for words in ("per device", "processes", "2 x cpu (cpu)", "mujoco", "averaged every 3 minibatches", "accumulate"):
        assert words in out


def test_setup_is_printed_once_by_a_program_that_verifies_it_and_runs(capsys):
    task = point_mass_task(num_devices=2, max_iterations=1)
    setup = task.verify_distributed_setup()
    assert task.run().exit_code == 0
    assert task.verify_distributed_setup() is setup
    assert capsys.readouterr().out.count("Distributed setup") == 1


def test_setup_is_logged_at_debug_by_a_program_that_verifies_it_without_a_run(caplog):
    with caplog.at_level(logging.DEBUG):
        setup = point_mass_task(num_devices=2, num_envs=16).verify_distributed_setup()
    said = [record.getMessage() for record in caplog.records if record.name.startswith("ksim.")]
    for words in (
        "This is process 0 of 1.",
        f"Process 0: pid {os.getpid()} on ",
        "Environment: XLA_FLAGS=",
        "Layout: PmapDevices, axis device.",
        "Batch: 16 environments, 8 on each device, 8 steps.",
        f"Device 1: {jax.devices()[1]} (cpu, cpu) of process 0, environments 8 to 15.",
        f"Placement: the learner, {format_bytes(setup.learner_bytes)}, copied to each device.",
        f"the environments' states, {format_bytes(setup.env_state_bytes_per_device)} on each device, sharded.",
    ):
        assert any(words in message for message in said), words


@pytest.mark.long
def test_bytes_are_those_of_the_state_that_training_holds():
    task = BipedTask(BipedConfig(num_devices=2, num_envs=16, model="gru"))
    setup, state = task.verify_distributed_setup(), task.initial_state()
    assert setup.param_bytes == num_bytes(state.learner.params)
    assert setup.learner_bytes == num_bytes(state.learner)
    # The env batch has the return and the length of the running episode besides: 8 bytes for each of 8 envs.
    assert setup.env_state_bytes_per_device == num_bytes(state.envs) // 2 - 8 * 8
    placed = task.layout.place(state)
    collect = bind_axis(task.make_train_step(None).algorithm.collect, task.device_axis)
    rollout = jax.eval_shape(collect, state, state.learner.key)[0].trajectory
    assert setup.rollout_bytes_per_device > num_bytes(rollout) // 2
    on_device = dict.fromkeys(task.layout.devices, 0)
    for leaf in jax.tree.leaves(placed.envs):
        for shard in leaf.addressable_shards:
            on_device[shard.device] += num_bytes(shard.data)
    assert set(on_device.values()) == {num_bytes(state.envs) // 2}


def test_local_steps_go_by_one_devices_share():
    task = point_mass_task(num_devices=2, num_envs=16, batch_size=8, grad_sync_period=2, grad_sync_mode="local")
    assert task.verify_distributed_setup().effective_batch_size == 4 * 8


def test_too_little_memory_is_a_warning_with_what_would_fit(monkeypatch):
    monkeypatch.setattr(distributed_setup, "memory_per_device", lambda devices, _: {d.id: 40_000 for d in devices})
    task = point_mass_task(num_devices=2, num_envs=512)
    with pytest.warns(UserWarning, match=r"cpu:0.* has 39\.1 KiB, but .* set num_envs to at most \d+, or use more"):
        setup = task.verify_distributed_setup()
    fitting = int(setup.problems[0].partition("at most ")[2].partition(",")[0])
    assert 0 < fitting < 512
    assert fitting % (setup.num_batches * setup.num_devices) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        point_mass_task(num_devices=2, num_envs=fitting).verify_distributed_setup()
    tiny = dataclasses.replace(setup, devices=tuple(dataclasses.replace(d, memory_bytes=100) for d in setup.devices))
    assert "choose smaller networks" in find_problems(tiny)[0]


@pytest.mark.parametrize(("mode", "period"), [("accumulate", 17), ("accumulate", 1_000_000), ("local", 1_000_000)])
def test_period_beyond_an_iteration_is_a_warning_and_counts_as_long_as_that(capsys, mode, period):
    task = point_mass_task(num_devices=2, grad_sync_period=period, grad_sync_mode=mode)
    with pytest.warns(UserWarning, match=rf"grad_sync_period \({period}\) is more .* \(16\).* Set it to at most 16\."):
        setup = task.verify_distributed_setup()
    # An iteration has 16 environments of 8 steps, a local minibatch 2 of them.
    assert setup.effective_batch_size == (16 * 8 if mode == "accumulate" else 2 * 8)
    assert setup.minibatches_per_sync == 16
    assert "averaged every 16 minibatches" in capsys.readouterr().out


def test_local_mode_without_a_minibatch_between_synchronisations_steps_by_the_whole_batch():
    options = {"num_batches": 1, "num_passes": 1, "grad_sync_period": 9, "grad_sync_mode": "local"}
    with pytest.warns(UserWarning, match="at most 1"):
        assert point_mass_task(num_devices=2, **options).verify_distributed_setup().effective_batch_size == 16 * 8


def test_batch_that_does_not_fit_is_an_error_and_not_a_report(capsys):
    with pytest.raises(ConfigError, match=r"Batch size \(3\) must be divisible by number of devices \(2\)"):
        point_mass_task(num_envs=12, batch_size=3, num_devices=2).verify_distributed_setup()
    assert capsys.readouterr().out == ""


def test_memory_of_devices_is_what_they_say_or_the_share_of_the_machines():
    class Gpu:
        id, platform = 5, "gpu"

        def memory_stats(self):
            return {"bytes_limit": 77}

    assert memory_per_device([Gpu()], 2) == {5: 77}
    one, two, four = (memory_per_device(jax.devices()[:n], p)[0] for n, p in ((1, 1), (2, 1), (2, 2)))
    assert two == pytest.approx(one / 2, rel=0.2)
    assert four == pytest.approx(one / 4, rel=0.2)


def test_bytes_in_words_and_of_keys():
    assert [format_bytes(x) for x in (0, 1023, 1024, 3 * 2**20, 5 * 2**30, 3 * 2**41)] == [
        "0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5.0 GiB", "6144.0 GiB",
    ]  # fmt: skip
    assert num_bytes({"key": jax.random.key(0), "x": jnp.zeros((2, 3), jnp.bfloat16)}) == 8 + 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_devices": "some"}, r"num_devices \('some'\) must be a whole number, or cores"),
        ({"num_devices": 0}, r"num_devices \(0\) must be positive"),
        ({"on_divergence": "ignore"}, r"on_divergence \('ignore'\) must be one of stop, rebroadcast"),
        ({"log_level": "loud"}, r"log_level \('loud'\) must be one of debug, info, warning"),
        ({"num_processes": 2}, "coordinator_address and process_id must be set as well"),
        ({"min_learning_rate": 1e-2}, r"min_learning_rate \(0.01\) must be at most max_learning_rate \(0.003\)"),
        ({"learning_rate": 0.01, "desired_kl": 0.01, "max_learning_rate": 0.003},
         r"learning_rate \(0.01\) is adaptive .* to max_learning_rate \(0.003\).* or set max_learning_rate=0.01"),
        ({"learning_rate": 1e-6, "desired_kl": 0.01, "min_learning_rate": 1e-5},
         r"learning_rate \(1e-06\) .* from min_learning_rate \(1e-05\) .* or set min_learning_rate=1e-06"),
        ({"pmap_axis_name": ""}, r"pmap_axis_name \(''\) must not be empty"),
        ({"model": "cnn"}, "'cnn'.*mlp, gru"),
        ({"grad_sync_mode": "never"}, "'never'.*accumulate, local"),
        ({"layout": "xmap"}, r"layout \('xmap'\) must be one of pmap, shard_map"),
        ({"run_mode": "eval"}, "checkpoint="),
        ({"actor_sizes": [8, 0]}, "positive widths"),
    ],
)  # fmt: skip
def test_option_that_cannot_work_is_an_error_when_the_task_is_made(options, message):
    with pytest.raises(ConfigError, match=message):
        point_mass_task(**options)


@pytest.mark.parametrize(("rate", "bounds"), [(3e-4, (1e-5, 3e-3)), (0.01, (1e-5, 0.01)), (1e-6, (1e-6, 3e-3))])
def test_default_bounds_of_an_adaptive_rate_hold_the_rate_it_starts_from(rate, bounds):
    # As in runs that were saved before there were options for them.
    assert point_mass_task(learning_rate=rate, desired_kl=0.01).config.learning_rate_bounds() == bounds
