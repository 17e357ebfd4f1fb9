"""PPO from end to end: it solves a small environment, and the robots' results do not depend on the devices."""

import chex
import jax
import numpy as np
import pytest

from examples.point_mass import PointMassConfig, PointMassTask
from examples.quadruped import QuadrupedConfig, QuadrupedTask
from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask
from tests.support.scale import long, only_in_full, scale
from tests.support.tasks import train_iterations


@pytest.fixture
def optimized():
    """Programs are optimized as a user's are, unlike those of other tests."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.parametrize(
    ("model", "num_devices"),
    [("mlp", 1), *long(*scale([("gru", 2)], [("gru", 2), ("mlp", 2), ("gru", 1)]))],
)
def test_ppo_solves_the_point_mass(model, num_devices):
    task = PointMassTask(PointMassConfig(num_devices=num_devices, model=model, memory_size=16))
    _, history = train_iterations(task, 60)
    # At rest in the origin a step earns 0.1, an episode of 50 steps 5; at random it earns less than -2.
    assert np.mean([m["episode/return"] for m in history[1:4]]) < -2
    assert np.mean([m["episode/return"] for m in history[-5:]]) > 4


@pytest.mark.long
@only_in_full("compiles the humanoid for one and for four devices")
@pytest.mark.usefixtures("optimized")
def test_humanoid_earns_the_same_on_one_and_four_devices():
    histories = {}
    for num_devices in (1, 4):
        config = HumanoidWalkingDistributedConfig(num_envs=16, num_devices=num_devices, engine="mujoco", symmetry="off")
        _, histories[num_devices] = train_iterations(HumanoidWalkingDistributedTask(config), 2)
    for name, expected in histories[1][0].items():
        if name.startswith(("reward/", "rollout/reward", "termination/")):
            np.testing.assert_allclose(histories[4][0][name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
    assert np.isfinite(histories[4][1]["loss/total"])


@pytest.mark.long
@only_in_full("compiles MJX for whole robots")
@pytest.mark.parametrize(
    ("make_task", "make_config", "options"),
    [
        (HumanoidWalkingDistributedTask, HumanoidWalkingDistributedConfig, {"symmetry": "off"}),
        # On its terrain the engines find contacts in other places.
        (QuadrupedTask, QuadrupedConfig, {"ground": "flat"}),
    ],
)
def test_robot_sees_the_same_under_both_engines(make_task, make_config, options):
    states = []
    for engine in ("mujoco", "mjx"):
        task = make_task(make_config(num_envs=4, num_devices=1, engine=engine, **options))
        states.append(task.initial_state().envs.env_state)
    for group, first in states[0].obs.items():
        np.testing.assert_allclose(states[1].obs[group], first, rtol=2e-3, atol=2e-3, err_msg=group)
    chex.assert_trees_all_close(*(s.metrics for s in states), rtol=2e-3, atol=2e-3)
