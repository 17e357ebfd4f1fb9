import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp.noise import (
    Chain,
    Clipped,
    DriftingBias,
    DroppedSamples,
    GaussianBias,
    GaussianNoise,
    Quantized,
    ScaleError,
    UniformBias,
    UniformNoise,
)
from ksim.mdp.observations import BaseHeight, Delayed
from ksim.rollout.environment import check_environment
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from tests.support.contexts import biped, draws
from tests.support.robots import ACTUATORS

VALUE_3 = jnp.array([1.0, -2.0, 0.0])


def errors(noise):
    """The differences that the noise adds to a value, for 1000 keys."""
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


# Noise that remembers, loses or rounds.

DT = 0.02
EVERY_NOISE = [
    UniformNoise(magnitude=0.5),
    GaussianNoise(std=0.2),
    Quantized(resolution=0.1),
    Clipped(low=-1.0, high=1.0),
    UniformBias(magnitude=0.5),
    GaussianBias(std=0.2),
    DriftingBias(std_per_root_s=0.5, initial_std=0.1),
    ScaleError(magnitude=0.1),
    DroppedSamples(probability=0.5),
    Chain((UniformBias(magnitude=0.5), GaussianNoise(std=0.2), DroppedSamples(probability=0.5))),
]
every_noise = pytest.mark.parametrize("noise", EVERY_NOISE, ids=lambda noise: type(noise).__name__)


def noisy_values(noise, *values, key=None):
    """The values of an episode with noise."""
    key = jax.random.key(0) if key is None else key
    first, memory = noise.start(jnp.asarray(values[0]), jax.random.fold_in(key, 0))
    noisy = [first]
    for t, value in enumerate(values[1:], start=1):
        after, memory = noise.step(jnp.asarray(value), memory, jax.random.fold_in(key, t), DT)
        noisy.append(after)
    return jnp.stack(noisy)


@every_noise
def test_noise_when_a_value_follows_keeps_its_shape_and_dtype_and_its_memorys_structure(noise):
    first, memory = noise.start(VALUE_3, jax.random.key(0))
    second, after = noise.step(VALUE_3, memory, jax.random.key(1), DT)
    assert (first.shape, first.dtype) == (second.shape, second.dtype) == (VALUE_3.shape, VALUE_3.dtype)
    chex.assert_trees_all_equal_shapes_and_dtypes(memory, after)


@every_noise
def test_noise_when_called_is_the_first_value_of_an_episode(noise):
    key = jax.random.key(0)
    np.testing.assert_array_equal(noise(VALUE_3, key), noise.start(VALUE_3, key)[0])


ROUNDING, CUTTING = Quantized(resolution=0.5), Clipped(low=-0.6, high=0.6)
# fmt: off
EPISODES = {
    "quantized: to the nearest multiple": (Quantized(resolution=0.25), [[0.1, 0.13, -0.4, 1.0]], [[0, 0.25, -0.5, 1]]),
    "clipped: at its ends": (Clipped(low=-1.5, high=0.5), [VALUE_3], [[0.5, -1.5, 0]]),
    "dropped: none": (DroppedSamples(0.0), [1.0, 2.0, 3.0], [1, 2, 3]),
    "dropped: all but the first": (DroppedSamples(1.0), [1.0, 2.0, 3.0], [1, 1, 1]),
    # 0.9 is rounded to 1 and then cut; cut first it would be 0.6, which is rounded to 0.5.
    "chain: cuts what was rounded": (Chain((ROUNDING, CUTTING)), [[0.9]], [[np.float32(0.6)]]),
    "chain: rounds what was cut": (Chain((CUTTING, ROUNDING)), [[0.9]], [[0.5]]),
}
# fmt: on


@pytest.mark.parametrize(("noise", "values", "expected"), EPISODES.values(), ids=EPISODES)
def test_values_of_an_episode_under_noise_without_chance(noise, values, expected):
    np.testing.assert_array_equal(noisy_values(noise, *values), expected)


@pytest.mark.parametrize(
    ("noise", "std"), [(UniformBias(magnitude=0.5), 0.5 / np.sqrt(3)), (GaussianBias(std=0.2), 0.2)]
)
def test_bias_when_an_episode_goes_on_stays_and_differs_between_episodes(noise, std):
    bias_nt3 = np.asarray(draws(lambda key: noisy_values(noise, *[VALUE_3] * 3, key=key) - VALUE_3, 1000))
    np.testing.assert_allclose(bias_nt3, np.broadcast_to(bias_nt3[:, :1], bias_nt3.shape), atol=1e-6)
    # The standard error of a standard deviation is std / sqrt(2000) = 0.02 std.
    np.testing.assert_allclose(bias_nt3[:, 0].std(0), std, rtol=0.1)
    np.testing.assert_allclose(bias_nt3[:, 0].mean(0), 0, atol=0.15 * std)


@pytest.mark.parametrize(
    ("noise", "std_t"),
    [
        # 0 at the start; 0.5 * sqrt(2 * 0.02) = 0.1 after two steps, and twice that after eight.
        (DriftingBias(std_per_root_s=0.5), {0: 0.0, 2: 0.1, 8: 0.2}),
        (DriftingBias(std_per_root_s=0.0, initial_std=0.3), {0: 0.3, 1: 0.3}),
    ],
)
def test_drifting_bias_spreads_from_its_initial_std_with_the_root_of_time(noise, std_t):
    drift_nt = np.asarray(draws(lambda key: noisy_values(noise, *[0.0] * 9, key=key), 1000))
    np.testing.assert_allclose(drift_nt.std(0)[list(std_t)], list(std_t.values()), rtol=0.1)


def test_scale_error_when_the_value_changes_keeps_its_factor():
    value_nt = np.asarray(draws(lambda key: noisy_values(ScaleError(magnitude=0.1), 1.0, 2.0, -3.0, key=key), 1000))
    factor_n = value_nt[:, 0]
    np.testing.assert_allclose(value_nt, factor_n[:, None] * [1, 2, -3], rtol=1e-5)
    np.testing.assert_allclose([factor_n.min(), factor_n.max()], [0.9, 1.1], atol=0.01)


def test_dropped_samples_when_one_is_lost_repeat_the_last_that_came_in_all_components():
    value_t = np.arange(200.0)
    seen_t2 = np.asarray(noisy_values(DroppedSamples(0.25), *[[x, -x] for x in value_t]))
    is_lost_t = seen_t2[:, 0] != value_t
    np.testing.assert_array_equal(seen_t2[1:][is_lost_t[1:]], seen_t2[:-1][is_lost_t[1:]])
    np.testing.assert_array_equal(seen_t2[:, 1], -seen_t2[:, 0])
    # The standard error is sqrt(0.25 * 0.75 / 200) = 0.03.
    assert abs(is_lost_t.mean() - 0.25) < 0.12


def test_chain_when_two_noises_are_alike_draws_them_apart():
    # Two uniform numbers from [-0.5, 0.5] have a variance of 2 / 12; the same one twice would have 4 / 12.
    error_n3 = errors(Chain((UniformNoise(magnitude=0.5), UniformNoise(magnitude=0.5))))
    np.testing.assert_allclose(error_n3.var(), 2 / 12, rtol=0.1)


def test_chain_when_its_noises_remember_keeps_each_memory():
    noise = Chain((UniformBias(magnitude=0.5), ScaleError(magnitude=0.1)))
    value_t = noisy_values(noise, 1.0, 1.0, 3.0)
    # (x + bias) * factor: the same at the same value, and as much more as the factor of the difference.
    np.testing.assert_allclose(value_t[1], value_t[0], rtol=1e-6)
    assert 1.8 <= value_t[2] - value_t[1] <= 2.2


def test_observation_when_its_noise_remembers_keeps_the_memory_over_the_steps_and_draws_anew_at_a_reset():
    none = {kind: {} for kind in ("rewards", "commands", "terminations", "resets", "events", "randomizers")}
    bias = UniformBias(magnitude=0.1)
    groups = {"actor": {"height": BaseHeight(noise=bias), "late": Delayed(BaseHeight(noise=bias), steps=(0, 0))}}
    mdp = Mdp(observations=groups, **none, actuators=ACTUATORS)
    env = MdpEnvironment(mdp, mdp.make_engine("mujoco", biped()))
    check_environment(env)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    episodes = []
    for seed in (0, 1):
        states = [reset(jax.random.key(seed))]
        for _ in range(3):
            states.append(step(states[-1], jnp.zeros(2)))
        assert "observation/actor/height/noise" in states[0].inner.memories
        height_t = np.array([state.inner.physics.qpos[2] for state in states])
        episodes.append(np.array([state.obs["actor"] for state in states]) - height_t[:, None])
    for bias_t2 in episodes:
        np.testing.assert_allclose(bias_t2, np.broadcast_to(bias_t2[0], bias_t2.shape), atol=1e-6)
    # Two episodes and two terms have four biases.
    assert len(np.unique([bias_t2[0] for bias_t2 in episodes])) == 4
