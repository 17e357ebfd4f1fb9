import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.extend.core
import jaxlib
import pytest

from benchmarks.deadlock import Cell, run_cell
from ksim.host.machine import num_cores
from ksim.host.threads import _CALLS_PER_DEVICE, thread_pool_size
from ksim.policy.jaxprs import inner_jaxpr, is_literal
from tests.processes import environment
from tests.tasks import BipedConfig, BipedTask

WAITS = thread_pool_size(jaxlib.__version__, num_cores=1, num_host_devices=1) is not None
needs_waiting_calls = pytest.mark.skipif(not WAITS, reason="LAPACK calls of this jaxlib do not wait for the pool")


@pytest.mark.parametrize(
    ("version", "cores", "devices", "size"),
    [
        ("0.10.2", 2, 1, 4),
        ("0.10.2", 2, 2, 7),
        ("0.10.2", 2, 8, 25),
        ("0.10.2", 64, 8, 64),
        ("0.10.0", 1, 1, 4),
        ("0.11.1", 2, 1, 4),
        ("0.11.2", 2, 1, None),
        ("0.11.2.dev20260901", 2, 1, None),
        ("0.12.0.1", 2, 8, None),
        ("1.0", 2, 8, None),
    ],
)
def test_pool_has_one_thread_more_than_calls_that_may_wait(version, cores, devices, size):
    assert thread_pool_size(version, cores, devices) == size


def test_pool_is_sized_for_the_jaxlibs_whose_lapack_calls_wait():
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None
    library = Path(spec.submodule_search_locations[0]) / "cpu" / "_lapack.so"
    # The function that gives the matrices of a batch to the pool's threads and waits for them.
    assert (b"ParallelBatchMap" in library.read_bytes()) == WAITS


def pool_size(code, num_devices=1, **changes):
    code = f"import os; {code}; print(os.environ.get('PJRT_NPROC'))"
    return subprocess.check_output([sys.executable, "-c", code], env=environment(num_devices, **changes), text=True)


def rule(devices):
    return f"{thread_pool_size(jaxlib.__version__, num_cores(), devices)}\n"


def test_import_sizes_the_pool_for_the_devices_that_the_user_asks_for():
    assert pool_size("import ksim", num_devices=2) == rule(2)
    assert pool_size("import ksim", XLA_FLAGS=None, JAX_NUM_CPU_DEVICES="3") == rule(3)


def test_making_devices_after_the_import_sizes_the_pool_again():
    later = "from ksim.parallel.devices import make_host_devices; make_host_devices({})"
    assert pool_size(later.format(5), XLA_FLAGS=None) == rule(5)
    own = "import ksim, jax; jax.config.update('jax_num_cpu_devices', 4);"
    assert pool_size(own + later.format(None), XLA_FLAGS=None) == rule(4)


def test_users_pool_is_left_alone_and_that_of_another_process_of_ksim_is_not():
    code = "from ksim.parallel.devices import make_host_devices; make_host_devices(5)"
    assert pool_size(code, XLA_FLAGS=None, PJRT_NPROC="3") == "3\n"
    assert pool_size(code, XLA_FLAGS=None, PJRT_NPROC="3", KSIM_PJRT_NPROC="3") == rule(5)


@needs_waiting_calls
def test_pool_too_small_for_the_devices_is_a_warning_that_names_a_size():
    code = "import jax; jax.devices(); from ksim.parallel.devices import select_devices; select_devices('all', None)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment(2, PJRT_NPROC="2"), capture_output=True, text=True, check=True
    )
    assert re.search(r"XLA's pool has 2 threads, but with 2 devices .* fewer than 7.*PJRT_NPROC=7", found.stderr)
    code = "import ksim; from ksim.parallel.devices import select_devices; select_devices('all', None)"
    found = subprocess.run([sys.executable, "-c", code], env=environment(2), capture_output=True, text=True, check=True)
    assert found.stderr == ""


LAPACK = {
    "cholesky",
    "triangular_solve",
    "lu",
    "qr",
    "geqrf",
    "householder_product",
    "eigh",
    "svd",
    "tridiagonal_solve",
}


def calls_at_once(jaxpr):
    """How many LAPACK calls of a program may be in flight at once: the largest set without one that needs another."""
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


def test_program_of_mjx_has_fewer_lapack_calls_in_flight_than_the_pool_allows():
    task = BipedTask(BipedConfig(engine="mjx", num_devices=1))
    step = task.make_train_step(None)
    jaxpr = jax.make_jaxpr(step)(task.initial_state())
    assert 2 <= calls_at_once(jaxpr.jaxpr) <= _CALLS_PER_DEVICE


def deadlocks(program, devices, pool, tmp_path, runs=3):
    cell = Cell(jaxlib.__version__, program, num_cores(), devices, envs=512, pool=pool)
    ends = [run_cell(cell, sys.executable, tmp_path, seconds=3.0, stall_s=8.0)["end"] for _ in range(runs)]
    assert set(ends) <= {"done", "deadlock"}
    return ends.count("deadlock")


@pytest.mark.long
@pytest.mark.parametrize(("program", "devices"), itertools.product(["factorize_3", "callback"], [1, 2, 4]))
def test_programs_that_wait_do_not_deadlock_with_the_pool_of_the_rule(tmp_path, program, devices):
    assert deadlocks(program, devices, "rule", tmp_path) == 0


@pytest.mark.long
@needs_waiting_calls
def test_deadlock_is_found_where_it_is(tmp_path):
    assert deadlocks("factorize_3", 2, "2", tmp_path) > 0
