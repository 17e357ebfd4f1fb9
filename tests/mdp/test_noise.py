import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp.noise import GaussianNoise, UniformNoise
from ksim.mdp.observations import BaseHeight
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from tests.mdp.contexts import biped, draws
from tests.robots import ACTUATORS

VALUE_3 = jnp.array([1.0, -2.0, 0.0])


def errors(noise):
    """What the noise adds to a value, for 1000 keys."""
    return np.asarray(draws(lambda key: noise(VALUE_3, key) - VALUE_3, 1000))


def test_uniform_noise_when_added_fills_its_bounds_and_stays_within():
    error_n3 = errors(UniformNoise(magnitude=0.5))
    assert (np.abs(error_n3) <= 0.5 + 1e-6).all()
    np.testing.assert_allclose(error_n3.min(0), -0.5, atol=0.01)
    np.testing.assert_allclose(error_n3.max(0), 0.5, atol=0.01)


def test_uniform_noise_when_added_is_even():
    error_n3 = errors(UniformNoise(magnitude=0.5))
    # Half of it lies within a half of the bounds, up to sqrt(0.25 / 3000) = 0.009.
    assert abs((np.abs(error_n3) < 0.25).mean() - 0.5) < 0.04


def test_gaussian_noise_when_added_has_its_std_and_no_bias():
    error_n3 = errors(GaussianNoise(std=0.2))
    # The standard errors are 0.2 / sqrt(1000) = 0.006 and 0.2 / sqrt(2000) = 0.004.
    np.testing.assert_allclose(error_n3.mean(0), 0.0, atol=0.03)
    np.testing.assert_allclose(error_n3.std(0), 0.2, atol=0.02)


@pytest.mark.parametrize("noise", [UniformNoise(magnitude=0.5), GaussianNoise(std=0.2)])
def test_noise_when_value_has_components_is_drawn_for_each_apart(noise):
    # The standard error of a correlation over 1000 draws is 1 / sqrt(1000) = 0.03.
    correlation_33 = np.corrcoef(errors(noise).T)
    assert (np.abs(correlation_33 - np.eye(3)) < 0.15).all()


@pytest.mark.parametrize("noise", [UniformNoise(magnitude=0.5), GaussianNoise(std=0.2)])
def test_noise_when_key_is_the_same_is_the_same(noise):
    key = jax.random.key(0)
    np.testing.assert_array_equal(noise(VALUE_3, key), noise(VALUE_3, key))


@functools.cache
def episode_under_noise():
    """Three heights in each group over some steps: two noisy ones and an exact one."""
    noise = UniformNoise(magnitude=0.1)
    noisy = {"first": BaseHeight(noise=noise), "second": BaseHeight(noise=noise)}
    none = {kind: {} for kind in ("rewards", "commands", "terminations", "resets", "events", "randomizers")}
    groups = {"actor": noisy, "critic": {"exact": BaseHeight()}}
    mdp = Mdp(observations=groups, **none, actuators=ACTUATORS)
    env = MdpEnvironment(mdp, mdp.make_engine("mujoco", biped()))
    step, states = jax.jit(env.step), [jax.jit(env.reset)(jax.random.key(0))]
    for _ in range(5):
        states.append(step(states[-1], jnp.zeros(2)))
    heights_t = np.array([state.inner.physics.qpos[2] for state in states])
    return heights_t, np.array([s.obs["actor"] for s in states]), np.array([s.obs["critic"] for s in states])


def test_observation_when_it_has_noise_is_off_by_no_more_than_that_and_exact_without():
    heights_t, actor_t2, critic_t1 = episode_under_noise()
    np.testing.assert_array_equal(critic_t1[:, 0], heights_t)
    assert (np.abs(actor_t2 - heights_t[:, None]) <= 0.1 + 1e-6).all()


def test_observation_when_it_has_noise_draws_it_anew_for_each_step_and_term():
    heights_t, actor_t2, _ = episode_under_noise()
    assert len(np.unique(actor_t2 - heights_t[:, None])) == actor_t2.size
