"""benchmarks/gpu.sh, tried on a CPU."""

import argparse
import subprocess
import sys

import pytest

from benchmarks import gpu
from tests.support.processes import ROOT, environment
from tests.support.scale import only_in_full

SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def run(*arguments):
    # Programs compile for long otherwise, also in `make test-long`.
    env = environment(PYTHON=sys.executable, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--platform", "tpu"], "--platform (tpu) must be gpu or cpu"), (["--out"], "--out needs a value")],
)
def test_script_refuses_what_it_does_not_know(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_row_has_medians_and_ratios_within_a_repetition():
    rates = {"bare": [100.0, 200.0], "rollout": [90.0, 190.0], "training": [50.0, 120.0]}
    found = {"engine": "mjx", "num_devices": 1, "num_envs": 8, "compile_s": 1.25, "peak_bytes": 3 * 2**20}
    cells = "| mjx | 1 | 8 | 150 | 140 | 85 | 0.93 (0.90-0.95) | 0.55 (0.50-0.60) | 1.2 | 3 |"
    assert gpu.row(found | {"rates": rates}) == cells
    several = {"engine": "warp", "num_devices": 2, "num_envs": 8, "compile_s": 2.0, "peak_bytes": None}
    assert gpu.row(several | {"rates": {"training": [1e3]}}) == "| warp | 2 | 8 | - | - | 1,000 | - | - | 2.0 | - |"


def test_measurement_that_fails_is_a_row_and_the_others_are_kept(monkeypatch):
    rates = {"bare": [100.0], "rollout": [90.0], "training": [50.0]}
    found = {"engine": "mjx", "num_devices": 1, "num_envs": 8, "rates": rates, "compile_s": 1.0, "peak_bytes": None}
    outcomes = {8: found, 16: "exit code 1: RESOURCE_EXHAUSTED: Out of memory"}
    monkeypatch.setattr(gpu, "in_a_process", lambda engine, num_envs, *_: outcomes[num_envs])
    monkeypatch.setattr(gpu, "machine", lambda platform: "1 x test.")
    monkeypatch.setattr(gpu, "is_installed", lambda: False)
    options = {"platform": "gpu", "engines": ["mjx", "warp"], "num_envs": [8, 16], "num_devices": [1], "repeats": 1}
    text, is_whole = gpu.report(argparse.Namespace(**options, tests="== 6 passed in 1.0s =="))
    assert not is_whole
    assert "Tests marked `gpu`: 6 passed in 1.0s." in text
    assert "| mjx | 1 | 8 | 100 |" in text
    assert "| mjx | 1 | 16 | failed |" in text
    assert "Out of memory" in text
    assert "MuJoCo Warp was not measured: it is not installed" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


@pytest.mark.long
@only_in_full("compiles MJX for minutes")
def test_script_runs_tests_and_walking_on_a_cpu_and_writes_the_table(tmp_path):
    out = tmp_path / "gpu.md"
    done = run("--platform", "cpu", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout
    text = out.read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| mujoco | 1 | 8 |")]
    assert len(row.split("|")) == len(gpu.HEADER.splitlines()[0].split("|"))
    assert "failed" not in text
    assert text in done.stdout
