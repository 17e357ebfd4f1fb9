"""The same seed on 1, 2, 4 and 8 devices, and in two processes of two devices each, by pmap and by shard_map.

Some of what comes of it must be the same bit for bit, the rest up to rounding.
"""

import jax
import numpy as np
import pytest

from tests.support.recorded import NUM_ITERATIONS, compiled, run, run_job
from tests.support.scale import only_in_full, scale
from tests.support.tasks import BipedConfig, BipedTask, CartPoleConfig, CartPoleTask, train_iterations

AHEAD = (".next_start.is_ready", ".next_start.packed")
"""Leaves that depend on the other envs of a device: when a start is prepared ahead. The starts do not depend."""
TWO_BY_TWO = "two processes of two devices"
WAYS = (
    *(("mlp", n, "pmap") for n in scale((8,), (2, 4, 8, TWO_BY_TWO))),
    *(("mlp", n, "shard_map") for n in scale((TWO_BY_TWO,), (2, 8, TWO_BY_TWO))),
    *(("gru", n, "pmap") for n in scale((), (2, 4, 8, TWO_BY_TWO))),
)
"""Ways to train: the model, the devices, and the layout."""
in_every_way = pytest.mark.parametrize("way", WAYS, ids=str)
pytestmark = pytest.mark.long


def on_one(way):
    """The same training on one device."""
    return way[0], 1, "pmap"


class Runs(dict):
    """The same training in different ways: each is run when first asked for."""

    def __init__(self, directory):
        super().__init__()
        self._directory = directory

    def __missing__(self, way):
        model, num_devices, layout = way
        options = {"model": model, "layout": layout}
        self[way] = self._in_a_job(**options) if num_devices == TWO_BY_TWO else self._here(num_devices, **options)
        return self[way]

    def _here(self, num_devices, **options):
        task = CartPoleTask(CartPoleConfig(num_devices=num_devices, **options))
        start = task.initial_state()
        return run(task, start, compiled(task, start))

    def _in_a_job(self, **options):
        return run_job(self._directory, "cart_pole", NUM_ITERATIONS, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    # Not a parameter of the fixture: `parametrize` with other arguments beside it would make it anew for each test.
    return Runs(tmp_path_factory.mktemp("job"))


def largest_relative_difference(tree, reference):
    """The largest difference of any leaf, relative to the largest number of that leaf."""
    relative = lambda x, y: np.abs(np.asarray(x) - y).max() / np.abs(y).max()
    return max(jax.tree.leaves(jax.tree.map(relative, tree, reference)))


@in_every_way
def test_parameters_and_statistics_are_the_same_after_20_iterations(runs, way):
    # Sums in another order differ by about 1e-7. Where a gradient is as small as Adam's eps, Adam makes more of it,
    # once and for all: seed 0 has about 1e-6 at the end; the worst of five others 3e-5, in a leaf of small numbers.
    learner, reference = runs[way].learner, runs[on_one(way)].learner
    assert reference.iteration == NUM_ITERATIONS
    assert largest_relative_difference(learner.params, reference.params) < 1e-5
    assert largest_relative_difference(learner.normalizer, reference.normalizer) < 1e-5


@in_every_way
def test_seeds_lengths_and_commands_of_every_env_are_exactly_the_same(runs, way):
    envs, reference = runs[way].envs, runs[on_one(way)].envs
    for path in (
        ".env_state.inner.key",
        ".env_state.inner.commands['place']",
        ".env_state.inner.episode_step",
        ".env_state.inner.levels['lean']",
        ".env_state.inner.next_levels['lean']",
        ".env_state.inner.levels_above_one['lean']",
        ".env_state.terminated",
        ".env_state.truncated",
        ".episode_length",
        ".next_start.key",
        ".next_start.number",
    ):
        np.testing.assert_array_equal(envs[path], reference[path], err_msg=path)


@in_every_way
def test_states_of_every_env_are_the_same(runs, way):
    envs, reference = runs[way].envs, runs[on_one(way)].envs
    for path, expected in reference.items():
        if path.startswith(AHEAD):
            continue
        # Rounding is of the size of an array's largest numbers: accelerations are of the order of 10.
        atol = 1e-5 * max(1.0, np.max(np.abs(expected), initial=0.0))
        np.testing.assert_allclose(envs[path], expected, rtol=1e-4, atol=atol, err_msg=path)


@in_every_way
def test_minibatches_are_exactly_the_same_envs(runs, way):
    np.testing.assert_array_equal(runs[way].minibatches, runs[on_one(way)].minibatches)
    assert len(np.unique(runs[on_one(way)].minibatches[:4])) == 32


@in_every_way
def test_metrics_of_every_iteration_are_the_same(runs, way):
    for iteration, (metrics, expected) in enumerate(zip(runs[way].history, runs[on_one(way)].history, strict=True)):
        assert {name for name in metrics if "/device_" not in name} == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-5, atol=2e-6, err_msg=f"{name} of {iteration}")


@pytest.mark.parametrize("model", ["mlp", "gru"])
def test_the_training_has_all_that_could_tell_devices_apart(runs, model):
    alone = runs[model, 1, "pmap"]
    history, first = alone.history, alone.history[0]
    column = lambda name: np.array([metrics[name] for metrics in history])
    steps = np.diff(column("policy/learning_rate"))
    assert (steps > 0).any()
    assert (steps < 0).any()
    assert (np.diff(column("curriculum/reach")) > 0).any()
    assert (np.diff(column("curriculum/balance")) != 0).any()
    assert (np.diff(column("curriculum/lean")) != 0).any()
    assert (column("curriculum/lean/max") > column("curriculum/lean/min")).any()
    assert (column("termination/time_limit") > 0).any()
    assert (column("termination/pole_fell") > 0).any()
    assert (column("policy/bad_updates") == 0).all()
    assert first["loss/value"] > history[-1]["loss/value"]
    envs = alone.envs
    for path in (
        ".env_state.inner.commands['place']",
        ".env_state.inner.overrides['body_mass']",
        ".env_state.inner.overrides['dof_damping']",
    ):
        assert len(np.unique(envs[path], axis=0)) > 16, path


BIPED = {"engine": "mujoco", "num_envs": 16}


def biped_history(num_devices):
    return train_iterations(BipedTask(BipedConfig(num_devices=num_devices, **BIPED)), 3)[1]


def assert_same_rewards(history, reference):
    for metrics, expected in zip(history, reference, strict=True):
        for name in ("rollout/reward", "reward/alive", "reward/track_linear_velocity", "episode/return"):
            np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def biped_on_one():
    return biped_history(1)


def test_rewards_under_contacts_are_the_same_for_three_iterations(biped_on_one):
    assert_same_rewards(biped_history(4), biped_on_one)


@only_in_full("as the same on four devices, and two processes of a cart-pole")
def test_rewards_under_contacts_are_the_same_in_two_processes_of_two_devices(biped_on_one, tmp_path):
    assert_same_rewards(run_job(tmp_path, "biped", 3, **BIPED).history, biped_on_one)
