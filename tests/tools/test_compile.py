import os
import re
import sys
from pathlib import Path

import jax
import pytest

from ksim.errors import ConfigError
from ksim.tools import compile as tool
from ksim.tools.compile import Compiled, main
from ksim.tools.targets import GPUS, Target, divide, grid, parse_target
from tests.support.processes import ROOT, run
from tests.support.scale import scale

LIBTPU = Path(sys.prefix) / "tpu"
"""The folder of libtpu, from `make test-long`: in JAX's own environment, every program would look for a TPU."""
SMALL = ["num_envs=16", "rollout_length=4", "num_batches=2", "num_passes=1", "actor_sizes=[4]", "critic_sizes=[4]"]


@pytest.mark.parametrize(
    ("text", "kind", "num_chips", "platform"),
    [
        ("h100", "h100", 1, "gpu"),
        ("h100x8", "h100", 8, "gpu"),
        ("rtx4090", "rtx4090", 1, "gpu"),
        ("rtx4090x2", "rtx4090", 2, "gpu"),
        ("v5ex256", "v5e", 256, "tpu"),
        ("v6e", "v6e", 1, "tpu"),
    ],
)
def test_target_is_a_kind_and_a_number_of_chips(text, kind, num_chips, platform):
    target = parse_target(text)
    assert (target.kind, target.num_chips, target.platform) == (kind, num_chips, platform)


def test_file_of_a_gpus_properties_is_a_target_of_any_name(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(GPUS["a100"].config())
    target = parse_target("minex2", path)
    assert (target.kind, target.num_chips, target.memory) == ("mine", 2, 80 * 2**30)
    assert target.gpu_config == GPUS["a100"].config()


def test_chips_are_divided_among_hosts_and_laid_in_grids():
    assert [divide(n, 8) for n in (1, 8, 12, 16)] == [(1, 1), (1, 8), (2, 6), (2, 8)]
    assert [grid(n, 2) for n in (1, 2, 4, 8, 256)] == [(1, 1), (1, 2), (2, 2), (2, 4), (16, 16)]
    assert [grid(n, 3) for n in (1, 4, 8, 256)] == [(1, 1, 1), (1, 2, 2), (2, 2, 2), (4, 8, 8)]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["examples.point_mass", "--target", "h200"], "--target (h200): "),
        (["examples.point_mass", "--target", "h100x257"], "--target (h100x257) must have 1 to 256 chips"),
        (["examples.point_mass", "--target", "v5ex6"], "TPUs come in powers of two"),
        (["examples.point_mass", "--target", "b", "--target-config", "none.txt"], "--target-config (none.txt) cannot"),
        (["examples.point_mass", "--target", "v5e", "engine=mujoco"], "engine (mujoco) steps on the cores"),
        (["examples.point_mass", "--target", "v5e", "engine=warp"], "engine (warp) is for NVIDIA GPUs, not for v5e"),
        (["examples.point_mass", "--target", "v5e", "num_devices=2"], "num_devices and devices are those of --target"),
        (["examples.point_mass", "--target", "v5ex8", "num_envs=20"], "must be divisible by number of devices (8)"),
        (["examples.point_mass", "--target", "v5e", "num_env=2"], "There is no option 'num_env'"),
        (["examples.nowhere", "--target", "v5e"], "There is no module 'examples.nowhere'"),
        (["examples.point_mass", "--target", "v5e", "--sweep", "num_envs", "--hlo", "x"], "Leave one of them out"),
    ],
)
def test_wrong_input_is_refused_before_anything_compiles(argv, message, monkeypatch, capsys):
    monkeypatch.setattr(tool, "prepare_compilers", lambda target: None)
    assert main(argv) == 2
    assert message in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("target", "extra"), [("h100", "cuda"), ("v5e", "tpu")])
def test_compiler_that_is_not_installed_is_an_error_that_says_what_to_install(target, extra, monkeypatch):
    monkeypatch.setattr("ksim.tools.targets._has", lambda package: False)
    with pytest.raises(ConfigError, match=rf"--target {target} needs .* pip install 'ksim-rl\[{extra}\]'"):
        parse_target(target).devices()


def made(num_envs, peak):
    return Compiled(num_envs, 2**20, 2**20, peak, {"all-reduce": (4, 2**11)}, 300, None, 9000, 12.3, "HloModule")


def test_report_names_memory_collectives_kernels_and_time():
    text = "\n".join(made(64, 2**31).lines(Target("h100", 8, 2**33, "")))
    for words in ("64, 8 on each chip", "2.0 GiB of 8.0 GiB, 25.0%", "4 x all-reduce, 2.0 KiB", "12 s"):
        assert words in text
    assert "300 per control step, - per minibatch, 9,000 per iteration" in text


@pytest.fixture
def imagined(monkeypatch):
    """A compiler that takes 1 MiB for each environment, and refuses more than 100."""

    def compiled(task_class, config, target, devices):
        if config.num_envs > 100:
            raise tool._TooLargeError("Out of memory.")
        return made(config.num_envs, config.num_envs * 2**20)

    monkeypatch.setattr(tool, "_compiled", compiled)
    monkeypatch.setattr(tool, "prepare_compilers", lambda target: None)
    monkeypatch.setattr(Target, "devices", lambda self: jax.local_devices()[:1])


@pytest.mark.parametrize(("memory", "largest"), [(44 * 2**20, 40), (4 * 2**30, 96), (2**20, None)])
def test_sweep_finds_the_largest_batch_that_fits_in_multiples_of_the_first(imagined, memory, largest, tmp_path, capsys):
    path = tmp_path / "gpu.txt"
    path.write_text(f"device_memory_size: {memory}")
    argv = ["examples.point_mass", *SMALL[1:], "num_envs=8", "--target", "g", "--target-config", str(path)]
    assert main([*argv, "--sweep", "num_envs"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (f"Largest that fits: num_envs={largest}." if largest else "num_envs=8 does not fit.")


def test_program_that_does_not_fit_is_printed_and_ends_with_an_error(imagined, tmp_path, capsys):
    path = tmp_path / "gpu.txt"
    path.write_text("device_memory_size: 1000")
    hlo = tmp_path / "step.hlo"
    argv = ["examples.point_mass", *SMALL, "--target", "g", "--target-config", str(path), "--hlo", str(hlo)]
    assert main(argv) == 2
    out = capsys.readouterr().out
    assert "per control step" in out
    assert "needs 16.0 MiB more than a chip has. Set num_envs below 16" in " ".join(out.split())
    assert hlo.read_text() == "HloModule"


@pytest.mark.long
@pytest.mark.skipif(not LIBTPU.is_dir(), reason="needs libtpu: make test-long installs it")
@pytest.mark.parametrize(("target", "collectives"), [*scale([], [("v5e", "none")]), ("v5ex4", "x all-reduce")])
def test_training_step_compiles_for_tpus_on_a_machine_without_one(target, collectives):
    paths = os.pathsep.join([str(ROOT), str(LIBTPU)])
    done = run("-m", "ksim.tools.compile", "examples.point_mass", *SMALL, "--target", target, PYTHONPATH=paths)
    lines = {line[:20].strip(): line[20:] for line in done.stdout.splitlines()}
    assert "of 16.0 GiB" in lines["memory of a chip"]
    assert collectives in lines["collectives"]
    # Found in JAX 0.10.2: 84 and 176, of which the environment, which has no physics engine, needs a handful.
    per_step, per_minibatch, _ = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", lines["kernels"]))
    assert 10 < per_step <= 100
    assert 10 < per_minibatch <= 200
