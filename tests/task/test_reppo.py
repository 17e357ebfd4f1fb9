"""Tasks trained by REPPO."""

from dataclasses import fields

import numpy as np
import pytest

import ksim
from ksim.errors import ConfigError
from ksim.task.ppo import PPOConfig
from ksim.task.reppo import PPO_ALONE
from tests.support.tasks import PathwiseConfig, PathwiseTask, pathwise, train_iterations


@pytest.mark.long
def test_reppo_solves_the_point_mass():
    options = {"num_envs": 64, "rollout_length": 24, "actor_sizes": [32], "critic_sizes": [32]}
    task = pathwise(num_devices=1, num_batches=16, learning_rate=1e-3, **options)
    _, history = train_iterations(task, 60)
    assert np.mean([m["episode/return"] for m in history[1:4]]) < -1
    # At rest in the origin a step earns 0.1, an episode of 50 steps 5.
    assert np.mean([m["episode/return"] for m in history[-5:]]) > 4
    assert all(m["policy/bad_updates"] == 0 for m in history)
    assert history[-1]["rollout/explained_variance"] > 0.8
    assert np.mean([m["policy/near_fraction"] for m in history[-5:]]) > 0.8


OTHER = {
    **{"clip_param": 0.1, "value_clip": 0.2, "value_loss_coef": 0.5, "entropy_coef": 0.1, "desired_kl": 0.01},
    **{"min_learning_rate": 1e-6, "max_learning_rate": 1e-2, "normalize_values": False, "model": "gru"},
    **{
        "memory_size": 32,
        "activation": "tanh",
        "std": "learned",
        "squash": True,
        "symmetry": "augment",
        "symmetry_coef": 2.0,
        "remat": True,
    },
}


@pytest.mark.parametrize("name", PPO_ALONE)
def test_option_of_ppo_alone_is_refused_by_its_name(name):
    with pytest.raises(ConfigError, match=rf"{name} \({OTHER[name]}\) is an option of PPO"):
        pathwise(**{name: OTHER[name]})


def test_discount_that_leaves_no_weight_for_the_entropy_is_refused():
    with pytest.raises(ConfigError, match=r"gamma \(1\) must be below 1 for REPPO"):
        pathwise(gamma=1)


def test_options_of_ppo_alone_are_options_of_ppo():
    assert {*PPO_ALONE} == {*OTHER} < {option.name for option in fields(PPOConfig)}


def test_other_network_is_refused_with_the_one_that_is_needed():
    class Plain(PathwiseTask):
        def _get_initial_model(self, rng):
            return ksim.MlpActorCritic(self.obs_sizes, self.environment.action_size, key=rng)

    with pytest.raises(ConfigError, match=r"must return a ksim.ppo.reppo.ReppoNetwork.*returned MlpActorCritic"):
        Plain(PathwiseConfig(num_devices=1)).check()


def test_task_with_a_learner_of_its_own_is_refused():
    class Own(ksim.PPOTask[PathwiseConfig]):
        def get_learner(self, network, axis_name):
            return super().get_learner(network, axis_name)

    class Both(PathwiseTask, Own):
        pass

    with pytest.raises(ConfigError, match=r"Both: REPPOTask must stand before a task of PPO, but .*Own.get_learner\)"):
        Both(PathwiseConfig(num_devices=1)).check()
