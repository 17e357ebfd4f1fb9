"""Fake devices and shape checks, for every test. Both must be in place before JAX starts and ksim is imported."""

import os

# Tests use two of them unless they compare numbers of devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

import importlib

import pytest
from jaxtyping import install_import_hook

# Where the shapes are: everything that is traced.
TRACED = [f"ksim.{name}" for name in ("types", "mdp", "nn", "parallel", "physics", "ppo", "rollout")]

with install_import_hook(TRACED, "beartype.beartype"):
    importlib.import_module("ksim")
    for engine in ("mjx", "mujoco"):
        importlib.import_module(f"ksim.physics.{engine}")


@pytest.fixture(autouse=True, scope="module")
def programs_of_a_module():
    """Programs are dropped between modules where there are many."""
    yield
    from tests.programs import free_programs

    free_programs()


@pytest.fixture(scope="module")
def cached_programs(tmp_path_factory):
    """For modules that train the same tiny task again and again: its programs are compiled once."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    options = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("programs")),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    compilation_cache.reset_cache()
    for name, value in options.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path, monkeypatch):
    """Runs write under the working directory unless told otherwise."""
    monkeypatch.chdir(tmp_path)
