import dataclasses
import os
import warnings

import jax
import pytest

from ksim import ConfigError
from ksim.host.machine import num_cores
from ksim.parallel.devices import check_same_kind, local_name, select_devices
from tests.support.processes import run

LOCAL = jax.local_devices()


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    id: int
    process_index: int = 0
    platform: str = "gpu"
    device_kind: str = "H100"


@pytest.mark.parametrize(
    ("devices", "num_devices", "expected"),
    [
        ("all", None, LOCAL), ("cpu", None, LOCAL), ("all", 2, LOCAL[:2]),
        ([0, 1, 3], None, [LOCAL[0], LOCAL[1], LOCAL[3]]), ("0,1", None, LOCAL[:2]),
        ([3, 1], None, [LOCAL[3], LOCAL[1]]), (1, None, LOCAL[1:2]), ([0, 1, 3], 2, LOCAL[:2]),
    ],
)  # fmt: skip
def test_devices_are_those_that_were_asked_for_in_that_order(devices, num_devices, expected):
    assert select_devices(devices, num_devices) == expected


@pytest.mark.parametrize(
    ("devices", "num_devices", "message"),
    [
        ([0, 99], None, rf"^Device 99 does not exist\. Local devices: 0 to {len(LOCAL) - 1}\."),
        ([-1], None, r"^Device -1 does not exist"),
        ([0, 0], None, r"devices \(\[0, 0\]\) must name each device once"),
        ("first", None, r"devices \('first'\) must be all, cpu or a list of indices, as in \[0,1\]"),
        ([], None, r"devices \(\[\]\) must be all, cpu or a list"),
        (None, None, r"devices \(None\) must be all, cpu or a list"),
        ([0.5, "x"], None, "must be all, cpu or a list"),
        ("all", 99, rf"^Number of devices \(99\) must be at most the {len(LOCAL)} available.*XLA_FLAGS"),
        ([0, 1], 3, r"^Number of devices \(3\) must be at most the 2 available"),
        ("all", 0, r"num_devices \(0\) must be a positive whole number, or cores"),
        ("all", "many", r"num_devices \('?many'?\) must be a positive whole number, or cores"),
    ],
)
def test_devices_that_cannot_be_had_are_an_error_that_names_the_fix(devices, num_devices, message):
    with pytest.raises(ConfigError, match=message):
        select_devices(devices, num_devices)


def test_cores_of_an_accelerator_are_an_error(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: [FakeDevice(0)])
    with pytest.raises(ConfigError, match=r"num_devices=cores is for CPUs, but devices are gpu\. Add devices=cpu"):
        select_devices("all", "cores")


def test_mixed_platforms_are_an_error_and_mixed_kinds_a_warning():
    with pytest.raises(ConfigError, match="must be of one platform, but are cpu, gpu"):
        check_same_kind([FakeDevice(0), FakeDevice(1, platform="cpu")])
    with pytest.warns(UserWarning, match="Devices are of several kinds: A100, H100"):
        check_same_kind([FakeDevice(0), FakeDevice(1, device_kind="A100")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_same_kind([FakeDevice(0), FakeDevice(1)])


def test_devices_of_all_processes_are_the_same_places_in_each_process_by_process(monkeypatch):
    job = [FakeDevice(id=10 * p + i, process_index=p) for i in (2, 0, 1) for p in (1, 0)]
    own = sorted((d for d in job if d.process_index == 1), key=lambda d: d.id)
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: own)
    monkeypatch.setattr(jax, "devices", lambda backend=None: job)
    assert [d.id for d in select_devices([0, 2], None)] == [0, 2, 10, 12]
    monkeypatch.setattr(jax, "devices", lambda backend=None: [d for d in job if d.id != 2])
    with pytest.raises(
        ConfigError, match=r"Process 0 has 2 devices, but every process must have the 3 that each one uses"
    ):
        select_devices("all", None)


def test_device_is_named_as_its_own_process_counts(monkeypatch):
    job = [FakeDevice(id=2048 * p + i, process_index=p) for p in (0, 1) for i in (0, 1)]
    monkeypatch.setattr(jax, "devices", lambda backend=None: job)
    monkeypatch.setattr(FakeDevice, "__str__", lambda device: f"cuda:{device.id}")
    assert [local_name(device) for device in job] == ["cuda:0", "cuda:1"] * 2


def run_alone(code, **environment):
    return run("-c", code, check=False, **{"XLA_FLAGS": None, **environment})


COUNT = "from ksim.parallel.devices import select_devices; print(len(select_devices('all', {})))"


@pytest.mark.long
def test_cpu_makes_as_many_devices_as_asked_for_where_jax_has_not_started():
    assert run_alone(COUNT.format(3)).stdout == "3\n"
    cores = len(os.sched_getaffinity(0))
    assert run_alone(COUNT.format("'cores'")).stdout == f"{cores}\n"


@pytest.mark.long
def test_cpu_keeps_the_users_number_of_devices_and_says_so_where_it_does_not_do():
    flags = "--xla_force_host_platform_device_count=2"
    assert run_alone(COUNT.format(2), XLA_FLAGS=flags).stdout == "2\n"
    for code, environment in (
        (COUNT.format(3), {"XLA_FLAGS": flags}),
        ("import ksim, jax; jax.devices();" + COUNT.format(3), {}),
    ):
        done = run_alone(code, **environment)
        assert "Number of devices (3) must be at most the" in done.stderr
        assert "makes as many where JAX has not started before" in done.stderr


def test_number_of_cores_is_that_of_the_process():
    assert num_cores() == len(os.sched_getaffinity(0))
