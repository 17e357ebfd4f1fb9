import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from examples.point_mass import PointMassConfig, PointMassTask
from ksim import ConfigError
from ksim.checkpoint.format import read_checkpoint
from ksim.nn import AbstractActorCritic, ActorCriticOutput, Gaussian
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.layout import PmapDevices, SingleDevice
from ksim.policy.load import PROGRAM, policy_context, task_on_one_device
from tests.support.checkpoints import newest, save_learner, saved_learner
from tests.support.processes import finish, start
from tests.support.scale import long, scale
from tests.support.tasks import point_mass_task

SMALL = {"num_envs": 8, "num_devices": 1, "eval_at_end": False, "plots": False, "tensorboard": False}


@pytest.fixture(scope="module", params=["mlp", *scale([], long(("gru",)))])
def trained(request, tmp_path_factory):
    """A task and the directory of its run."""
    run_dir = tmp_path_factory.mktemp(request.param) / "run"
    task = point_mass_task(num_devices=1, max_iterations=2, model=request.param, memory_size=4, run_dir=str(run_dir))
    task.run()
    return task, run_dir


def task_model(task, run_dir):
    learner = saved_learner(task, run_dir)
    leaves = iter(jax.tree.leaves(learner.params))
    network = jax.tree.map(
        lambda x: jnp.asarray(next(leaves)) if eqx.is_array(x) else x, task.initial_learner().network
    )
    return NormalizedActorCritic(network, jax.tree.map(jnp.asarray, learner.normalizer))


@pytest.mark.long
def test_policy_acts_as_the_task_would_have_it_act(trained):
    policy, model = ksim.load_policy(trained[1]), task_model(*trained)
    assert (policy.obs_sizes, policy.action_size, policy.iteration) == ({"actor": 2}, 1, 2)
    obs_tn = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    for _ in range(2):
        policy.reset()
        carry = model.initial_carry()
        for obs_n in obs_tn:
            output, carry = model({"actor": jnp.asarray(obs_n)}, carry)
            np.testing.assert_allclose(policy(obs_n), output.distribution.mode(), rtol=1e-5, atol=1e-6)


def test_several_robots_are_rows(trained):
    policy = ksim.load_policy(trained[1] / "checkpoints" / "2")
    obs_bn = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)
    action_ba, memory = policy.step({"actor": obs_bn})
    again_ba, _ = policy.step(obs_bn, memory)
    for i, obs_n in enumerate(obs_bn):
        action_a, own = policy.step(obs_n)
        np.testing.assert_allclose(action_ba[i], action_a, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(again_ba[i], policy.step(obs_n, own)[0], rtol=1e-5, atol=1e-6)


def test_policy_needs_nothing_of_the_code_that_trained_it(trained, tmp_path):
    program = (
        "import sys, numpy as np, ksim\n"
        f"action = ksim.load_policy({str(trained[1])!r})(np.zeros(2))\n"
        "assert action.shape == (1,)\n"
        "assert not {name.split('.')[0] for name in sys.modules} & {'examples', 'tests', 'viser', 'onnx'}\n"
    )
    code, output = finish(start("-c", program, cwd=tmp_path))
    assert code == 0, output


def test_policy_by_the_code_of_its_task_acts_as_its_program(trained):
    policy, by_code = ksim.load_policy(trained[1]), ksim.load_policy(trained[1], task=PointMassTask)
    assert (by_code.obs_sizes, by_code.action_size, by_code.iteration) == ({"actor": 2}, 1, 2)
    assert by_code.document == policy.document
    for obs_n in np.random.default_rng(2).normal(size=(2, 2)).astype(np.float32):
        np.testing.assert_allclose(by_code(obs_n), policy(obs_n), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("changed", [{"activation": "relu"}, {"squash": True}, {"normalize_observations": False}])
def test_option_that_makes_the_policy_another_is_refused_when_it_is_evaluated(trained, changed):
    task, run_dir = trained
    config = dataclasses.replace(task.config, run_mode="eval", checkpoint=str(run_dir), run_dir=None, **changed)
    (name, value), *_ = changed.items()
    with pytest.raises(ConfigError, match=rf"{name} \({value}\) would make the policy another: .* trained with"):
        type(task)(config).run()


@pytest.mark.parametrize("obs", [np.zeros(3), np.zeros((1, 1, 2)), {"critic": np.zeros(2)}, 1.0])
def test_observation_of_another_shape_is_refused(trained, obs):
    with pytest.raises(ConfigError, match=r"'actor' must have shape \(2,\) or \(robots, 2\)"):
        ksim.load_policy(trained[1])(obs)


class Remembers(AbstractActorCritic):
    """A policy that learns the memory it starts with, of a size that is a plain field."""

    start: jax.Array
    size: int

    def initial_carry(self):
        return self.start, jnp.ones(self.size)

    def __call__(self, obs, carry):
        start, ones = carry
        # Of itself too: no episode of the test ends, through whose start there would be a gradient.
        mean = jnp.sum(start + self.start) + ones + jnp.sum(obs["actor"])
        return ActorCriticOutput(Gaussian(mean, jnp.ones(self.size)), jnp.sum(start)), carry


class RemembersTask(PointMassTask):
    def _get_initial_model(self, rng):
        return Remembers(jnp.zeros(3), 1)


@pytest.mark.long
def test_episode_starts_with_the_memory_that_was_learned(tmp_path):
    run_dir = tmp_path / "run"
    task = RemembersTask(PointMassConfig(rollout_length=4, max_iterations=2, run_dir=str(run_dir), **SMALL))
    assert task.run().exit_code == 0
    model = task_model(task, run_dir)
    assert isinstance(model.network, Remembers)
    assert np.abs(model.network.start).min() > 0
    obs_n = np.array([0.3, -0.2], np.float32)
    expected, _ = model({"actor": jnp.array(obs_n)}, model.initial_carry())
    np.testing.assert_allclose(ksim.load_policy(run_dir)(obs_n), expected.distribution.mode(), rtol=1e-5)


class Asking(AbstractActorCritic):
    """A policy that asks Python on its way."""

    inner: AbstractActorCritic

    def initial_carry(self):
        return self.inner.initial_carry()

    def __call__(self, obs, carry):
        shape = jax.ShapeDtypeStruct((2,), jnp.float32)
        told = jax.pure_callback(lambda x: x, shape, jax.lax.stop_gradient(obs["actor"]), vmap_method="expand_dims")
        return self.inner({"actor": told}, carry)


@pytest.mark.long
def test_policy_that_cannot_be_exported_is_said_when_it_is_wanted(tmp_path):
    class Task(PointMassTask):
        def _get_initial_model(self, rng):
            return Asking(super()._get_initial_model(rng))

    config = PointMassConfig(rollout_length=2, max_iterations=1, run_dir="run", **SMALL)
    assert Task(config).run().exit_code == 0
    assert PROGRAM not in read_checkpoint(newest(tmp_path / "run")).arrays
    assert "no program of the policy" in (tmp_path / "run" / "process_0.log").read_text()
    with pytest.raises(ConfigError, match=r"holds no program of its policy.*load_policy\(path, task="):
        ksim.load_policy("run")
    assert ksim.load_policy("run", task=Task)(np.zeros(2)).shape == (1,)


def test_checkpoint_of_a_learner_alone_has_no_program(tmp_path):
    task = point_mass_task(num_devices=1)
    save_learner(task, tmp_path / "run", 1, task.initial_learner().state)
    with pytest.raises(ConfigError, match="holds no program of its policy"):
        ksim.load_policy(tmp_path / "run")


def test_task_on_one_device_is_a_copy_in_the_environment_of_evaluations():
    task = point_mass_task(num_devices=2)
    environment, sizes = task.environment, task.obs_sizes
    twin = task_on_one_device(task)
    assert isinstance(twin.layout, SingleDevice)
    assert twin.environment is twin.eval_environment
    assert twin.obs_sizes == sizes
    # The one that trains has seen nothing of it.
    assert isinstance(task.layout, PmapDevices)
    assert task.environment is environment
    assert twin.config is task.config


def test_context_of_an_environment_of_the_users_own_is_on_the_trainings_first_device():
    task = point_mass_task(num_devices=2, engine="mjx")
    context = policy_context(task)
    assert context.env is task.eval_environment
    assert context.device is context.training_device is task.layout.devices[0]
    assert context.training_engine == "mjx"
