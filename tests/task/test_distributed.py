import jax
import numpy as np
import pytest

from examples.point_mass import PointMassConfig, PointMassTask
from ksim import ConfigError
from ksim.parallel.layout import LAYOUTS, PmapDevices, ShardMapDevices, SingleDevice
from ksim.task import distributed
from tests.support.programs import operations
from tests.support.tasks import point_mass_task, train_iterations


@pytest.mark.parametrize(("mode", "layout"), [("accumulate", "pmap"), ("local", "shard_map")])
def test_replicas_stay_identical_whatever_the_synchronisation(mode, layout):
    task = point_mass_task(num_devices=2, grad_sync_period=3, grad_sync_mode=mode, layout=layout)
    state, _ = train_iterations(task, 2)
    for leaf in jax.tree.leaves((state.learner.params, state.learner.opt_state)):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_iteration_compiles_nothing(layout):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    task = point_mass_task(num_devices=2, layout=layout)
    task.check()
    state = task.layout.place(task.initial_state())
    step = task.layout.compile(task.make_train_step(task.layout.axis_name), state)
    state, metrics = step(state)
    task.layout.first(metrics)
    before = len(compiled)
    assert before > 0
    state, metrics = step(state)
    task.layout.first(metrics)
    assert len(compiled) == before


def test_both_layouts_compile_to_the_same_operations_in_the_same_memory():
    # In JAX 0.10 to 0.12 pmap is a jitted shard_map itself.
    programs = []
    for layout in LAYOUTS:
        task = point_mass_task(num_devices=2, layout=layout)
        state = task.layout.place(task.initial_state())
        step = task.make_train_step(task.layout.axis_name)
        programs.append(task.layout.map(step, donate=True).lower(state).compile())
    first, second = map(operations, programs)
    assert first == second
    assert first["all-reduce"] > 0
    sizes = [(m.temp_size_in_bytes, m.alias_size_in_bytes) for m in (p.memory_analysis() for p in programs)]
    assert sizes[0] == sizes[1]
    assert sizes[0][1] > 0


def test_one_device_falls_back_with_a_warning_unless_it_was_chosen(monkeypatch, recwarn):
    message = "Only 1 device detected. Distributed training will fall back to single-device mode."
    for chosen in ({"num_devices": 1}, {"devices": [1]}, {"devices": "0"}):
        assert isinstance(point_mass_task(**chosen).layout, SingleDevice)
    assert not [warning for warning in recwarn if str(warning.message) == message]
    monkeypatch.setattr(distributed, "select_devices", lambda *_: jax.devices()[:1])
    task = point_mass_task()
    with pytest.warns(UserWarning, match=message):
        assert isinstance(task.layout, SingleDevice)
    task.check()


@pytest.mark.parametrize(("options", "expected"), [({}, PmapDevices), ({"layout": "shard_map"}, ShardMapDevices)])
def test_all_devices_are_used_by_default_in_the_layout_that_is_asked_for(options, expected):
    layout = PointMassTask(PointMassConfig(num_envs=16, **options)).layout
    assert type(layout) is expected
    assert layout.devices == jax.local_devices()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"engine": "mjx"}, 6),
        ({"engine": "mjx", "num_envs": 384}, 6),  # 64 environments for each
        ({"engine": "mjx", "num_envs": 320, "num_batches": 4}, 5),
        ({"engine": "mjx", "num_envs": 512}, 4),  # 512 is not divisible by 6 or 5
        ({"engine": "mjx", "num_envs": 768, "batch_size": 3}, 3),
        ({"engine": "mjx", "num_envs": 64}, None),
        ({"engine": "mjx", "num_devices": 1}, 1),
        ({"engine": "mjx", "num_devices": "cores"}, "cores"),
        ({"engine": "mjx", "devices": "0"}, None),
        ({"engine": "mujoco"}, None),
        ({"engine": "auto"}, None),
    ],
)
def test_a_cpu_that_steps_mjx_has_as_many_devices_as_can_share_its_cores(monkeypatch, options, expected):
    given = []
    monkeypatch.setattr(distributed, "num_cores", lambda: 6)
    monkeypatch.setattr(distributed, "make_host_devices", given.append)
    PointMassConfig(**{"num_envs": 768, "batch_size": None, "num_batches": None} | options).join_job()
    assert given == [expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 10, "num_devices": 3},
         r"^Number of environments \(10\) must be divisible by number of devices \(3\)"),
        ({"num_envs": 10, "batch_size": 8, "num_batches": 2, "num_devices": 1},
         r"^Batch size \(8\) times number of batches \(2\) must equal number of environments \(10\)"),
        ({"num_envs": 12, "batch_size": 3, "num_devices": 2},
         r"^Batch size \(3\) must be divisible by number of devices \(2\)\. Nearest valid values: 2, 4"),
        ({"num_envs": 10, "num_devices": 1}, r"\(10\) must be divisible by number of batches \(4\).*: 5"),
        ({"num_devices": 99}, r"Number of devices \(99\) must be at most the 8 available"),
    ],
)  # fmt: skip
def test_batch_or_devices_that_do_not_fit_are_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        point_mass_task(**options).check()


def test_task_without_a_robot_or_an_environment_is_an_error():
    import ksim

    with pytest.raises(ConfigError, match="must define get_robot"):
        ksim.PPOTask(ksim.PPOConfig()).check()
