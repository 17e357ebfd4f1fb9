"""`python -m ksim.doctor` on this machine, and on worse ones."""

import importlib.metadata
import shutil
import subprocess
import types

import pytest

from ksim import doctor


def test_machine_that_runs_the_tests_can_train(capsys):
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert "ok       devices    averaged over" in out
    assert "ok       MuJoCo     steps" in out


def test_package_out_of_range_is_missing_and_says_what_to_install(monkeypatch, capsys):
    version = importlib.metadata.version
    versions = {"mujoco": "3.1.0"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or version(name))
    monkeypatch.setattr(doctor, "CHECKS", [doctor.check_versions])
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "missing  packages   mujoco 3.1.0 (needs <5,>=4.0)" in out
    assert "pip install 'mujoco<5,>=4.0'." in out


@pytest.mark.parametrize(
    ("function", "package", "mark", "words"),
    [
        ("version", "optax", "missing", "optax not installed"),
        ("requires", "ksim-rl", "note", "ksim-rl is not installed,"),
    ],
)
def test_package_that_is_not_there_is_missing_and_ksim_itself_a_note(function, package, mark, words, monkeypatch):
    original = getattr(importlib.metadata, function)

    def without(name):
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(importlib.metadata, function, without)
    *_, packages = doctor.check_versions()
    assert packages.mark == mark
    assert words in packages.words


def test_devices_that_fail_are_reported_by_the_last_line_of_the_error(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    (devices,) = doctor.check_collective()
    assert devices.mark == "missing"
    assert "abacus" in devices.words


@pytest.mark.parametrize(
    ("driver", "packages", "expected"),
    [
        ("580.95", {"jax-cuda13-plugin": "0.12", "nvidia-nccl-cu13": "2.28", "warp-lang": "1.18"}, {}),
        ("570.1", {"jax-cuda13-plugin": "0.12", "nvidia-nccl-cu13": "2.28"}, {"driver": "missing", "Warp": "note"}),
        ("580.95", {"jax-cuda12-plugin": "0.12", "warp-lang": "1.18"}, {"NCCL": "missing"}),
        ("580.95", {}, {"driver": "note"}),
    ],
)
def test_machine_with_two_gpus_is_told_what_its_driver_and_packages_lack(driver, packages, expected, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    printed = types.SimpleNamespace(stdout=f"NVIDIA H200, {driver}\n" * 2)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: printed)
    monkeypatch.setattr(doctor, "_version", packages.get)
    found = doctor.check_nvidia()
    assert found[0].words.startswith(f"{driver}, 2 x NVIDIA H200")
    assert {finding.name: finding.mark for finding in found if finding.mark != "ok"} == expected


def test_driver_that_does_not_answer_is_a_note(monkeypatch):
    def fail(*args, **options):
        raise subprocess.TimeoutExpired("nvidia-smi", 180)

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", fail)
    (driver,) = doctor.check_nvidia()
    assert driver.mark == "note"
    assert "timed out" in driver.words


def test_gpu_that_jax_does_not_see_is_a_note(monkeypatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "nvidia-smi" else which(name))
    printed = types.SimpleNamespace(stdout='{"kinds": ["cpu (cpu)", "cpu (cpu)"], "mean": 0.5}\n')
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: printed)
    *_, gpu = doctor.check_collective()
    assert (gpu.name, gpu.mark) == ("GPU", "note")
    printed.stdout = '{"kinds": ["cpu (cpu)", "cpu (cpu)"], "mean": 0.0}\n'
    (devices,) = doctor.check_collective()
    assert (devices.mark, devices.words) == ("missing", "an average over 2 devices was 0.0")


def test_machine_without_opengl_can_train_without_videos(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "find_gl", lambda: None)
    monkeypatch.setattr(doctor, "CHECKS", [doctor.check_pictures])
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert "note     OpenGL     none works" in out
    assert "video=false" in out


def test_full_disk_is_a_note(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10**9))
    *_, disk = doctor.check_machine()
    assert (disk.mark, disk.words) == ("note", "0.9 GiB free here")


def test_arguments_are_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        doctor.main(["--fix"])
    assert stopped.value.code == 2
