import os

import pytest

from ksim.errors import ConfigError
from ksim.host import machine
from ksim.host.machine import parse_gpu_list, visible_gpus
from ksim.launch import devices
from ksim.launch.devices import divide_devices
from ksim.launch.output import say

LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-0)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-1)
  MIG 3g.40gb     Device  0: (UUID: MIG-bbbb-0)
  MIG 3g.40gb     Device  1: (UUID: MIG-bbbb-1)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-2)
"""


def test_listing_gives_uuids_and_of_a_gpu_in_mig_mode_its_instances():
    assert parse_gpu_list(LISTING) == ["GPU-aaaa-0", "MIG-bbbb-0", "MIG-bbbb-1", "GPU-aaaa-2"]


def test_listing_without_gpus_gives_none():
    assert parse_gpu_list("No devices found.\n") == []


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("0,1,2,3", ["0", "1", "2", "3"]),
        (" 3, 1", ["3", "1"]),
        ("GPU-8932f937-d72c,GPU-1", ["GPU-8932f937-d72c", "GPU-1"]),
        ("MIG-c7384736,MIG-GPU-8932/1/0", ["MIG-c7384736", "MIG-GPU-8932/1/0"]),
        ("0,-1,1", ["0"]),
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(value, gpus, monkeypatch):
    monkeypatch.setattr(machine, "list_gpus", lambda _: LISTING)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, say) == gpus


def test_each_process_gets_an_equal_consecutive_share_of_the_gpus(monkeypatch):
    monkeypatch.setattr(machine, "list_gpus", lambda _: LISTING)
    assert divide_devices(2, {}).gpus == [["GPU-aaaa-0", "MIG-bbbb-0"], ["MIG-bbbb-1", "GPU-aaaa-2"]]
    assert divide_devices(3, {"CUDA_VISIBLE_DEVICES": "5,4,3,2,1,0"}).gpus == [["5", "4"], ["3", "2"], ["1", "0"]]


@pytest.mark.parametrize(("num_processes", "nearest"), [(3, "2, 4"), (5, "4, 8"), (9, "8")])
def test_gpus_that_cannot_be_shared_equally_are_an_error_with_the_nearest_numbers(num_processes, nearest):
    with pytest.raises(ConfigError) as error:
        divide_devices(num_processes, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    assert f"GPUs (8) must be divisible by --nproc-per-node ({num_processes})" in str(error.value)
    assert f"Nearest valid values: {nearest}." in str(error.value)


def test_nothing_is_divided_for_one_process_and_gpus_are_not_even_listed(monkeypatch):
    monkeypatch.setattr(machine, "list_gpus", lambda _: pytest.fail("listed"))
    assert divide_devices(1, {}) == devices.DeviceShares()


def test_cores_are_divided_where_jax_is_told_to_stay_on_the_cpu(monkeypatch):
    monkeypatch.setattr(devices, "usable_cores", lambda: [0, 4, 1, 5, 2])
    shares = divide_devices(2, {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert shares.gpus is None
    assert shares.cores == [[0, 4], [1, 5, 2]]


def test_cores_are_left_alone_where_there_are_fewer_than_processes(monkeypatch):
    monkeypatch.setattr(devices, "usable_cores", lambda: [0, 1])
    assert divide_devices(3, {"CUDA_VISIBLE_DEVICES": ""}) == devices.DeviceShares()


def test_cores_are_those_of_this_process_with_siblings_side_by_side(monkeypatch, tmp_path):
    for core, physical in ((0, 0), (1, 1), (4, 0), (5, 1)):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{physical}\n")
    monkeypatch.setattr(devices, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 5}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    assert devices.usable_cores() == [0, 4, 1, 5]


def test_cores_are_not_divided_on_a_system_that_binds_no_process(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert divide_devices(2, {"JAX_PLATFORMS": "cpu"}) == devices.DeviceShares()


def test_nvidia_smi_that_fails_counts_as_no_gpus_and_is_told(monkeypatch, tmp_path, capsys):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert visible_gpus({}, say) == []
    assert "nvidia-smi -L failed" in capsys.readouterr().err
