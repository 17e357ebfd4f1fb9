"""Training on a GPU: the same results as on a CPU, state that stays on the device, memory that is reused.

Skipped where JAX has no GPU. KSIM_GPU_TESTS=cpu tries the tests themselves on a CPU, where its first device stands in
for the GPU.
"""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.parallel.layout import PmapDevices
from ksim.parallel.placement import unwrap_keys
from ksim.physics.contact_sizes import ContactSizes
from ksim.physics.engine import control_step
from ksim.physics.mjx import MjxEngine
from ksim.physics.mujoco import MujocoEngine
from ksim.physics.select import make_engine
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.train.timing import TracedStep, scalars
from tests.support.robots import biped_model
from tests.support.tasks import BipedConfig, BipedTask, CartPoleConfig, CartPoleTask, point_mass_task

PLATFORM = os.environ.get("KSIM_GPU_TESTS", "gpu")

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def device():
    try:
        return jax.devices(PLATFORM)[0]
    except RuntimeError:
        pytest.skip("JAX has no GPU here. KSIM_GPU_TESTS=cpu runs these tests on a CPU.")


def iterations(task, num_iterations):
    """The state and metrics after each of so many iterations, as in a run."""
    task.check()
    state = task.layout.place(task.initial_state())
    step = TracedStep(task.layout, task.make_train_step(task.layout.axis_name), state, donate=True).compile(state)
    history = []
    for _ in range(num_iterations):
        state, metrics, _ = step(state)
        history.append(scalars(task.layout.first(metrics)))
    return state, history


def assert_same_histories(first, second, *, rtol, atol):
    for metrics, expected in zip(first, second, strict=True):
        for name in ("rollout/reward", "loss/value", "loss/total", "policy/kl", "episode/length"):
            np.testing.assert_allclose(metrics[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


def test_first_iterations_on_a_gpu_are_those_on_a_cpu():
    # The random numbers are the same; matrix products are of full precision by default, in another order. Where a CPU
    # stands in, MJX would only take minutes to compile twice.
    options = {"num_envs": 16, "engine": {"gpu": "mjx", "cpu": "mujoco"}[PLATFORM], "num_devices": 1}
    with jax.default_matmul_precision("highest"):
        _, history = iterations(CartPoleTask(CartPoleConfig(**options)), 3)
        _, on_cpu = iterations(CartPoleTask(CartPoleConfig(devices="cpu", **options)), 3)
    assert_same_histories(history, on_cpu, rtol=1e-3, atol=1e-4)


def test_one_device_pmapped_gives_the_results_of_the_jitted_step(device):
    jitted, pmapped = (point_mass_task(num_devices=1) for _ in range(2))
    assert jitted.layout.devices == [device]
    pmapped.layout = PmapDevices([device], pmapped.device_axis)
    _, history = iterations(jitted, 5)
    _, mapped = iterations(pmapped, 5)
    assert_same_histories(history, mapped, rtol=1e-4, atol=1e-5)


def placed(**options):
    """A placed state of a task of one device, and its step as a run makes it."""
    task = point_mass_task(num_devices=1, **options)
    state = task.layout.place(task.initial_state())
    step = TracedStep(task.layout, task.make_train_step(None), state, donate=True).compile(state)
    return step(state)[0], step


def test_no_state_crosses_between_host_and_device_in_an_iteration():
    state, step = placed()
    with jax.transfer_guard("disallow_explicit"):
        for _ in range(2):
            state, _, _ = step(state)
        state, metrics, _ = step(state)
    assert np.isfinite(float(metrics["loss/value"]))
    if PLATFORM == "gpu":  # a CPU's arrays are the host's
        with jax.transfer_guard("disallow_explicit"), pytest.raises(Exception, match="Disallowed"):
            np.asarray(state.learner.iteration)


def pointers(tree):
    """Bytes by the address at which a device holds them."""
    return {leaf.unsafe_buffer_pointer(): leaf.nbytes for leaf in jax.tree.leaves(unwrap_keys(tree)) if leaf.nbytes}


def test_donated_state_is_gone_and_the_next_one_lies_in_its_memory(device):
    state, step = placed(num_envs=64, actor_sizes=[64, 64], critic_sizes=[64, 64])
    before, old = pointers(state), state
    state, _, _ = step(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(unwrap_keys((old.envs, old.learner))))
    after = pointers(state)
    reused = sum(size for place, size in after.items() if place in before)
    assert reused >= 0.9 * sum(after.values())
    if device.memory_stats() is not None:
        jax.block_until_ready(state)
        in_use = device.memory_stats()["bytes_in_use"]
        for _ in range(5):
            state, _, _ = step(state)
        jax.block_until_ready(state)
        assert device.memory_stats()["bytes_in_use"] <= 1.01 * in_use


def test_run_picks_its_engine_trains_and_evaluates_in_native_mujoco(tmp_path):
    config = dataclasses.replace(BipedConfig(num_devices=1, max_iterations=2), eval_at_end=True, run_dir="run")
    task = BipedTask(config)
    assert task.layout.platform == PLATFORM
    result = task.run()
    assert result.exit_code == 0
    assert isinstance(task.environment, MdpEnvironment)
    assert isinstance(task.environment.engine, {"gpu": MjxEngine, "cpu": MujocoEngine}[PLATFORM])
    assert (tmp_path / "run" / "evaluations.jsonl").read_text()


def test_default_precision_of_matrix_products_is_that_of_32_bits():
    # TF32 has 10 bits of mantissa: an error of about 1e-3.
    x = jax.random.normal(jax.random.key(0), (256, 256))
    with jax.default_matmul_precision(point_mass_task(num_devices=1).config.matmul_precision):
        product = jax.jit(jnp.matmul)(x, x)
    exact = np.asarray(x, np.float64) @ np.asarray(x, np.float64)
    assert np.abs(np.asarray(product) - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.fixture
def warp():
    return pytest.importorskip("warp")


def test_warp_moves_a_robot_as_native_mujoco_does(warp):
    # On a GPU, calls of kernels in loops have shared buffers: stacked outputs and sliced controls are part of the test.
    model = biped_model()
    engines = (
        make_engine("warp", model, ("xpos",), sizes=ContactSizes(16, 64)),
        make_engine("mujoco", model, ("xpos",)),
    )
    ctrl_etu = 0.3 * jax.random.normal(jax.random.key(0), (64, 20, model.mj_model.nu))
    qvel_ev = 0.1 * jax.random.normal(jax.random.key(1), (64, model.mj_model.nv))

    def motion(engine, qvel, ctrl_tu):
        start = engine.forward(dataclasses.replace(model.start(), qvel=qvel), ctrl_tu[0], {})

        def step(state, ctrl):
            state, _ = control_step(engine, state, ctrl, {})
            return state, (state.qpos, state.derived["xpos"])

        return jax.lax.scan(step, start, ctrl_tu)[1]

    by_warp, by_native = (jax.jit(jax.vmap(functools.partial(motion, engine)))(qvel_ev, ctrl_etu) for engine in engines)
    # A contact may come a substep earlier in one of them.
    for actual, expected in zip(by_warp, by_native, strict=True):
        error_et = np.abs(np.asarray(actual - expected)).reshape(64, 20, -1).max(axis=2)
        assert np.median(error_et[:, -1]) < 1e-3
        assert error_et[:, :3].max() < 1e-3


def test_warp_trains_and_counts_the_contacts_that_it_drops(warp):
    options = {"num_envs": 16, "engine": "warp", "num_devices": 1}
    _, history = iterations(BipedTask(BipedConfig(**options)), 2)
    assert all(metrics["dropped/contacts"] == metrics["dropped/constraints"] == 0.0 for metrics in history)
    assert np.isfinite(history[-1]["loss/value"])
    task = BipedTask(BipedConfig(**options, warp_contacts=1, warp_constraints=2))
    _, history = iterations(task, 2)
    assert history[-1]["dropped/constraints"] > 0
    assert "Set warp_constraints=4" in task.environment.problem(history[-1])
