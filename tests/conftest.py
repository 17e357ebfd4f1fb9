"""Fake devices, cheap programs and shape checks, for every test. All must be in place before JAX starts."""

import os
import tempfile

from tests.support.processes import xla_flags

# Tests use two devices unless they compare numbers of devices.
os.environ.setdefault("XLA_FLAGS", xla_flags(num_devices=8))
# Compiling is most of what their short programs cost. In end_to_end/test_learning.py they are optimized as for users.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Threads of LAPACK wait for each other, spinning, where tests share the cores: 1.7 s instead of 0.02 for the initial
# weights of two networks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Many tests train the same tiny tasks: their programs are compiled once, also for the processes that tests start and
# for all workers of pytest-xdist, which inherit the directory. Not in the user's cache, and across runs of the tests
# only of the same code, in the directory that KSIM_TEST_CACHE names.
if "PYTEST_XDIST_WORKER" not in os.environ:
    cache = os.environ.get("KSIM_TEST_CACHE") or tempfile.mkdtemp(prefix="ksim-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
# Every operation of a program would carry the stack of its Python line.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

import gc
import importlib
import shutil

import pytest
from jaxtyping import install_import_hook

from tests.support.pages import browser
from tests.support.programs import free_programs, keep_programs

# Where the shapes are: everything that is traced.
TRACED = [f"ksim.{name}" for name in ("types", "learn", "mdp", "nn", "parallel", "physics", "ppo", "rollout")]

with install_import_hook(TRACED, "beartype.beartype"):
    importlib.import_module("ksim")
    for engine in ("mjx", "mujoco"):
        importlib.import_module(f"ksim.physics.{engine}")

keep_programs()

# Tracing allocates much that lives for long: collections that look at all of it took 5 % of the time.
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_module():
    """Programs are dropped between modules where there are many."""
    yield
    free_programs()


def pytest_unconfigure():
    if "PYTEST_XDIST_WORKER" not in os.environ and "KSIM_TEST_CACHE" not in os.environ:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="module")
def chromium():
    """A browser; skips the test where there is none."""
    with browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    """Runs write under the working directory unless told otherwise."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_warnings_of_other_tests():
    """The next run's log would have what a task that never ran has warned of."""
    from ksim.host.terminal import take_given

    take_given()
