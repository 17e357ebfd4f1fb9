"""squash=true, from training to export."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from examples.point_mass import PointMass, PointMassConfig, PointMassTask
from ksim.errors import ConfigError
from ksim.nn.networks import MIN_STD
from ksim.policy.load import load_policy
from tests.support.scale import only_in_full
from tests.support.still import Memoryless
from tests.support.tasks import point_mass_task, train_iterations


@pytest.mark.long
@only_in_full("a whole training")
def test_ppo_with_squashed_actions_solves_the_point_mass():
    _, history = train_iterations(PointMassTask(PointMassConfig(num_devices=1, squash=True)), 60)
    # As for actions without bounds, see end_to_end/test_learning.py.
    assert np.mean([m["episode/return"] for m in history[1:4]]) < -2
    assert np.mean([m["episode/return"] for m in history[-5:]]) > 4


@pytest.mark.long
@pytest.mark.parametrize("std", ["state_independent", "learned"])
def test_rollout_keeps_samples_and_gives_the_environment_their_hyperbolic_tangents(std):
    seen = []

    class Watched(PointMass):
        def step(self, state, action):
            jax.debug.callback(lambda x: seen.append(np.asarray(x)), action)
            return super().step(state, action)

    class Watching(PointMassTask):
        def get_environment(self, engine, num_devices):
            return Watched()

    config = PointMassConfig(
        num_envs=8, rollout_length=4, num_devices=1, squash=True, std=std, init_std=3.0, actor_sizes=[8]
    )
    task = Watching(config)
    state = task.initial_state()
    model = task.policy_of(state.learner)
    trajectory, _, _ = jax.jit(task._rollout)(model, state.envs.env_state, state.envs.model_carry, jax.random.key(1))
    jax.effects_barrier()
    given = np.sort(np.concatenate([x.ravel() for x in seen]))
    np.testing.assert_allclose(given, np.sort(np.tanh(trajectory.action).ravel()), rtol=1e-5)
    assert np.abs(trajectory.action).max() > 1 >= np.abs(given).max()


@pytest.mark.long
def test_exported_and_loaded_policies_are_squashed_like_the_live_one(tmp_path):
    onnx_step = pytest.importorskip("ksim.policy.export.exporter").onnx_step
    pytest.importorskip("onnxruntime")
    run_dir = tmp_path / "run"
    options = {"squash": True, "max_iterations": 2, "num_devices": 1}
    assert point_mass_task(run_dir=str(run_dir), **options).run().exit_code == 0
    assert point_mass_task(run_mode="export", checkpoint=str(run_dir), **options).run().exit_code == 0
    obs = 100 * jax.random.normal(jax.random.key(0), (16, 2))
    in_onnx, _ = onnx_step(run_dir / "export" / "policy.onnx")({"actor": np.asarray(obs)}, None)
    loaded = load_policy(run_dir)
    live = np.stack([loaded(x) for x in np.asarray(obs)])
    np.testing.assert_allclose(in_onnx, live, atol=1e-6)
    assert np.abs(live).max() <= 1
    assert '"action_bounds": [\n    -1.0,\n    1.0\n  ]' in (run_dir / "export" / "policy.json").read_text()


class Returning(Memoryless):
    """An actor-critic with a Gaussian, whatever the options say."""

    distribution: type = ksim.Gaussian

    def __call__(self, obs, carry):
        return ksim.ActorCriticOutput(self.distribution(jnp.zeros(1), jnp.ones(1)), jnp.zeros(())), carry


def custom(distribution, **options):
    class Mine(PointMassTask):
        def _get_initial_model(self, rng):
            return Returning(distribution)

    return Mine(PointMassConfig(num_envs=8, num_devices=1, **options))


def test_network_that_returns_a_gaussian_is_refused_with_squash_and_a_squashed_one_is_not():
    with pytest.raises(ConfigError, match=r"squash \(true\).*Mine._get_initial_model returns a Gaussian.*Squashed"):
        custom(ksim.Gaussian, squash=True).check()
    for squash in (True, False):
        custom(ksim.SquashedGaussian, squash=squash).check()


def test_network_that_returns_a_mean_is_squashed():
    class Mine(PointMassTask):
        def _get_initial_model(self, rng):
            return Mean()

    model = Mine(PointMassConfig(num_envs=8, num_devices=1, squash=True)).initial_learner().network
    output, _ = model({"actor": jnp.ones(2)}, None)
    np.testing.assert_allclose(output.distribution.mode(), np.tanh(2.0), rtol=1e-6)


class Mean(eqx.Module):
    def __call__(self, obs):
        return 2 * obs[:1], obs[0]


def test_standard_deviation_stays_above_the_option():
    for std in ("state_independent", "learned"):
        model = point_mass_task(min_std=0.3, init_std=0.3, std=std, num_devices=1).initial_learner().network
        low = eqx.tree_at(lambda model: model.head.log_std, model, jnp.full(1, -9.0))
        np.testing.assert_allclose(low({"actor": jnp.ones(2)}, None)[0].distribution.std, 0.3, rtol=1e-6)
    assert PointMassConfig().min_std == MIN_STD
    with pytest.raises(ConfigError, match=r"init_std=0.2\) must be from min_std \(0.3\) to 5"):
        point_mass_task(min_std=0.3, init_std=0.2, num_devices=1).check()
