import importlib.util
import os
import re
import sys
from pathlib import Path

import jax
import jax.extend.core
import jax.numpy as jnp
import pytest

from benchmarks.deadlock import Cell, run_cell
from benchmarks.deadlock_programs import make_mjx
from ksim.host import threads
from ksim.host.machine import num_cores
from ksim.host.threads import JAXLIB_VERSION, thread_pool_size
from ksim.policy.program import inner_jaxpr, is_literal
from tests.support.processes import run
from tests.support.scale import scale
from tests.support.tasks import BipedConfig, BipedTask

WAITS = thread_pool_size(JAXLIB_VERSION, num_cores=1, num_host_devices=1) is not None
needs_waiting_calls = pytest.mark.skipif(not WAITS, reason="LAPACK calls of this jaxlib do not wait for the pool")


@pytest.mark.parametrize(
    ("version", "cores", "devices", "size"),
    [
        ("0.10.2", 2, 1, 4), ("0.10.2", 2, 2, 7), ("0.10.2", 2, 8, 25), ("0.10.2", 64, 8, 64), ("0.10.0", 1, 1, 4),
        ("0.11.0", 2, 1, 4), ("0.11.1", 2, 1, None), ("0.11.2.dev20260901", 2, 1, None), ("0.12.0.1", 2, 8, None),
        ("1.0", 2, 8, None),
    ],
)  # fmt: skip
def test_pool_has_one_thread_more_than_calls_that_may_wait(version, cores, devices, size):
    assert thread_pool_size(version, cores, devices) == size


def test_pool_is_sized_for_the_jaxlibs_whose_lapack_calls_wait():
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None
    library = Path(spec.submodule_search_locations[0]) / "cpu" / "_lapack.so"
    # The function that gives the matrices of a batch to the pool's threads and waits for them.
    assert (b"ParallelBatchMap" in library.read_bytes()) == WAITS


@pytest.mark.parametrize(
    ("before", "flags", "num_cpu_devices", "after"),
    [
        ({}, "", -1, "4"),
        ({}, "", 2, "7"),
        ({}, "--xla_force_host_platform_device_count=3", -1, "10"),
        ({"PJRT_NPROC": "3"}, "", 2, "3"),  # the user's
        ({"PJRT_NPROC": "4", "KSIM_PJRT_NPROC": "4"}, "", 2, "7"),  # of the process that started this one
        ({"PJRT_NPROC": "3", "KSIM_PJRT_NPROC": "4"}, "", 2, "3"),  # the user's, in a script that such a one started
    ],
)
def test_pool_is_sized_for_the_devices_asked_for_and_never_over_the_users(
    monkeypatch, before, flags, num_cpu_devices, after
):
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    monkeypatch.setenv("XLA_FLAGS", flags)
    for name in ("PJRT_NPROC", "KSIM_PJRT_NPROC"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    os.environ.update(before)
    monkeypatch.setattr(threads, "JAXLIB_VERSION", "0.10.2")
    threads.size_thread_pool(num_cpu_devices)
    assert os.environ["PJRT_NPROC"] == after
    monkeypatch.setattr(threads, "JAXLIB_VERSION", "0.12.0")
    threads.size_thread_pool(num_cpu_devices)
    assert os.environ.get("PJRT_NPROC") == (after if before.get("PJRT_NPROC") == after else None)


def test_devices_asked_for_after_the_import_are_counted_when_a_task_makes_its_own():
    code = (
        "import os, ksim, jax; jax.config.update('jax_num_cpu_devices', 4);"
        "from ksim.parallel.devices import make_host_devices; make_host_devices(None);"
        "print(os.environ.get('PJRT_NPROC'))"
    )
    assert run("-c", code, XLA_FLAGS=None).stdout == f"{thread_pool_size(JAXLIB_VERSION, num_cores(), 4)}\n"


@needs_waiting_calls
def test_pool_too_small_for_the_devices_is_a_warning_that_names_a_size():
    code = "import jax; jax.devices(); from ksim.parallel.devices import select_devices; select_devices('all', None)"
    found = run("-c", code, num_devices=2, PJRT_NPROC="2")
    assert re.search(r"XLA's pool has 2 threads, but with 2 devices .* fewer than 7.*PJRT_NPROC=7", found.stderr)


LAPACK = {
    "cholesky", "triangular_solve", "lu", "qr", "geqrf", "householder_product", "eigh", "svd", "tridiagonal_solve",
}  # fmt: skip


def calls_at_once(jaxpr):
    """The most LAPACK calls of a program in flight at once: the largest set in which no call needs another."""
    weights, needs = [], []

    def visit(jaxpr, inputs):
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        read = lambda atom: frozenset() if is_literal(atom) else known.get(atom, frozenset())
        for eqn in jaxpr.eqns:
            arguments, called = [read(v) for v in eqn.invars], inner_jaxpr(eqn)
            if called is not None:
                results = visit(called.jaxpr, arguments)
            else:
                before = frozenset().union(*arguments)
                # Of a loop, one turn runs at a time; of branches, one runs.
                weight = max(
                    [eqn.primitive.name in LAPACK, *map(calls_at_once, jax.extend.core.jaxprs_in_params(eqn.params))]
                )
                if weight:
                    weights.append(int(weight))
                    needs.append(before)
                    before |= {len(needs) - 1}
                results = [before] * len(eqn.outvars)
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    visit(jaxpr, [frozenset()] * len(jaxpr.invars))

    def largest(nodes):
        if not nodes:
            return 0
        first, *rest = nodes
        beside = [node for node in rest if first not in needs[node]]
        return max(weights[first] + largest(beside), largest(rest))

    return largest(list(range(len(needs))))


def test_pool_is_expected_as_xla_sizes_it(monkeypatch):
    monkeypatch.setattr(threads, "num_cores", lambda: 2)
    for name, value, size in (("NPROC", "many", 2), ("NPROC", "5", 5), ("PJRT_NPROC", "7", 7)):
        monkeypatch.setenv(name, value)
        if name == "NPROC":
            monkeypatch.delenv("PJRT_NPROC", raising=False)
        assert threads.expected_pool_size() == size


@pytest.mark.long
def test_programs_of_mjx_have_no_more_lapack_calls_in_flight_than_the_pool_allows():
    # Of the mass matrix and the solver, and beside them of the integrator, which the biped does without.
    num_mjx = calls_at_once(jax.make_jaxpr(make_mjx())(jax.ShapeDtypeStruct((4, 128), jnp.float32)).jaxpr)
    assert num_mjx == 2
    env = BipedTask(BipedConfig(engine="mjx", num_devices=1)).environment
    key_e = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    state_e = jax.eval_shape(jax.vmap(env.reset), key_e)
    action_e = jax.ShapeDtypeStruct((4, env.action_size), jnp.float32)
    num_step = calls_at_once(jax.make_jaxpr(jax.vmap(env.step))(state_e, action_e).jaxpr)
    num_reset = calls_at_once(jax.make_jaxpr(jax.vmap(env.next_episode))(state_e, key_e).jaxpr)
    assert (num_step, num_reset) == (1, 1)
    assert max(num_mjx, num_step) + num_reset <= threads._CALLS_PER_DEVICE


def deadlocks(program, devices, pool, tmp_path):
    cell = Cell(JAXLIB_VERSION, program, num_cores(), devices, envs=512 * devices, pool=pool)
    for _ in range(3):
        end = run_cell(cell, sys.executable, tmp_path, seconds=3.0, stall_s=8.0)["end"]
        assert end in ("done", "deadlock")
        if end == "deadlock":
            return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("devices", scale([2], [1, 2]))
@pytest.mark.parametrize("program", scale(["callback"], ["factorize_3", "callback"]))
def test_programs_that_wait_do_not_deadlock_with_the_pool_of_the_rule(tmp_path, program, devices):
    assert not deadlocks(program, devices, "rule", tmp_path)


@pytest.mark.long
@needs_waiting_calls
def test_deadlock_is_found_where_it_is(tmp_path):
    assert deadlocks("factorize_2", 1, "2", tmp_path)
