import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.learn.statistics import episode_metrics, running_episodes
from ksim.types import Trajectory


def make_trajectory(reward, done, terminated):
    blank = jnp.zeros_like(reward)
    return Trajectory(
        obs={}, action=blank[..., None], log_prob=blank, value=blank, next_value=blank,
        reward=reward, terminated=terminated, done=done, metrics={},
    )  # fmt: skip


def metrics_over(num_devices, reward, done, terminated, so_far):
    def one_device(reward, done, terminated, so_far):
        length = jnp.zeros(reward.shape[0], jnp.int32)
        (return_et, length_et), _ = running_episodes(reward, done, so_far, length)
        return episode_metrics(return_et, length_et, make_trajectory(reward, done, terminated), "device")

    split = [x.reshape(num_devices, -1, *x.shape[1:]) for x in (reward, done, terminated, so_far)]
    metrics = jax.vmap(one_device, axis_name="device")(*split)
    return {name: float(x[0]) for name, x in metrics.items()}


def test_episode_that_spans_rollouts_counts_what_came_before():
    reward, done = jnp.array([[1.0, 2.0, 4.0]]), jnp.array([[False, True, False]])
    (return_et, length_et), (return_e, length_e) = running_episodes(
        reward, done, jnp.array([10.0]), jnp.array([5], jnp.int32)
    )
    # 10 + 1 + 2 = 13 after 5 + 2 = 7 steps; then a new one with 4 after 1 step.
    np.testing.assert_allclose([return_et[0, 1], length_et[0, 1]], [13.0, 7])
    np.testing.assert_allclose([return_e[0], length_e[0]], [4.0, 1])


def test_episode_metrics_are_over_all_devices():
    reward = jnp.array([[1.0], [3.0], [5.0], [7.0]])
    done = jnp.array([[True], [True], [False], [True]])
    terminated = jnp.array([[True], [False], [False], [False]])
    one, two = (metrics_over(n, reward, done, terminated, jnp.zeros(4)) for n in (1, 2))
    assert one == two
    # Returns 1, 3 and 7: mean 11/3.
    np.testing.assert_allclose(two["episode/return"], 11 / 3, rtol=1e-6)
    assert (two["episode/count"], two["episode/return_min"], two["episode/return_max"]) == (3, 1, 7)
    np.testing.assert_allclose(two["episode/terminated_fraction"], 1 / 3, rtol=1e-6)


def test_mean_length_of_many_long_episodes_does_not_overflow():
    length_et = jnp.full((4, 1), 2**30, jnp.int32)
    ends = jnp.ones((4, 1), bool)
    metrics = episode_metrics(jnp.zeros((4, 1)), length_et, make_trajectory(jnp.zeros((4, 1)), ends, ends), None)
    assert metrics["episode/length"] == 2**30


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_spread_of_returns_when_their_mean_is_large_is_exact(offset):
    reward = offset + jnp.array([[1.0], [3.0], [100.0], [8.0]])
    done = jnp.array([[True], [True], [False], [True]])
    for num_devices in (1, 2):
        metrics = metrics_over(num_devices, reward, done, done, jnp.zeros(4))
        # Returns 1, 3 and 8 beyond the offset: mean 4, variance (9 + 1 + 16) / 3.
        np.testing.assert_allclose(metrics["episode/return_std"], np.sqrt(26 / 3), rtol=1e-5)


def test_episode_metrics_when_none_finished_are_not_a_number():
    none = jnp.zeros((2, 1), bool)
    metrics = metrics_over(2, jnp.ones((2, 1)), none, none, jnp.zeros(2))
    assert metrics["episode/count"] == 0
    assert np.isnan([metrics[f"episode/{name}"] for name in ("return", "return_std", "return_max", "length")]).all()
