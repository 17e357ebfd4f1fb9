"""The command line as a user runs it, each in a process of its own."""

import pytest

from ksim.host.machine import num_cores
from ksim.host.threads import JAXLIB_VERSION, thread_pool_size
from tests.support.processes import run
from tests.support.scale import only_in_full

WALKING = ("-m", "examples.walking_distributed")
SMALL = ("num_envs=16", "max_iterations=2", "run_dir=run", "eval_num_envs=2", "episode_s=1", "video=false")


@pytest.mark.long
@only_in_full("as a command of DISTRIBUTED_TRAINING.md, which CI runs")
def test_walking_distributed_runs(tmp_path):
    done = run(*WALKING, *SMALL, num_devices=2, cwd=tmp_path)
    assert "iteration 2/2" in done.stdout
    assert "evaluation at iteration 2 (2 episodes in mujoco)" in done.stdout
    assert done.stderr == ""
    assert (tmp_path / "run" / "plots" / "gait.png").is_file()


@pytest.mark.long
def test_import_prepares_the_process_quietly_and_leaves_the_users_settings_alone(tmp_path):
    code = (
        "import os, ksim, jax; print(os.environ.get('PJRT_NPROC'), os.environ['XLA_FLAGS'],"
        " jax.config.values['jax_compilation_cache_dir'])"
    )
    own = {"XDG_CACHE_HOME": "/somewhere", "JAX_COMPILATION_CACHE_DIR": None}
    done = run("-c", code, cwd=tmp_path, XLA_FLAGS="", **own)
    threads, *flags, cache = done.stdout.split()
    size = thread_pool_size(JAXLIB_VERSION, num_cores(), num_host_devices=1)
    assert threads == str(size)
    assert "--xla_cpu_collective_call_terminate_timeout_seconds=1200" in flags
    assert cache == f"/somewhere/ksim/programs/{size or num_cores()}_threads"
    mine = "--xla_cpu_collective_call_terminate_timeout_seconds=7"
    done = run("-c", code, cwd=tmp_path, XLA_FLAGS=mine, PJRT_NPROC="5", JAX_COMPILATION_CACHE_DIR="/mine")
    threads, *flags, cache = done.stdout.split()
    assert (threads, cache) == ("5", "/mine")
    assert mine in flags
    assert sum("terminate_timeout" in flag for flag in flags) == 1
    assert done.stderr == ""
