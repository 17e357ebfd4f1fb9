import itertools

import jax.numpy as jnp
import numpy as np

from ksim.ppo.losses import generalized_advantages, normalize_advantages

GAMMA, LAMBDA = 0.9, 0.7


def brute_force(reward, value, next_value, terminated, done):
    """Eq. 16 as it stands: the sum over later temporal-difference errors, up to the end of the episode."""
    num_steps = len(reward)
    advantage = np.zeros(num_steps)
    for t in range(num_steps):
        for k in range(t, num_steps):
            bootstrap = 0.0 if terminated[k] else next_value[k]
            delta = reward[k] + GAMMA * bootstrap - value[k]
            advantage[t] += (GAMMA * LAMBDA) ** (k - t) * delta
            if done[k]:
                break
    return advantage


def test_advantages_over_every_pattern_of_ends_equal_the_brute_force_sum():
    # Each of 4 steps goes on, terminates or is truncated: 3^4 patterns, one per env.
    patterns = np.array(list(itertools.product(["on", "terminated", "truncated"], repeat=4)))
    rng = np.random.default_rng(0)
    reward, value, next_value = rng.normal(size=(3, *patterns.shape))
    terminated, done = patterns == "terminated", patterns != "on"
    expected = [brute_force(*row) for row in zip(reward, value, next_value, terminated, done, strict=True)]
    actual = generalized_advantages(
        *(jnp.asarray(x, jnp.float32) for x in (reward, value, next_value)),
        jnp.asarray(terminated),
        jnp.asarray(done),
        gamma=GAMMA,
        gae_lambda=LAMBDA,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_normalized_advantages_have_mean_zero_and_variance_one():
    advantage_et, variance = normalize_advantages(jnp.arange(12.0).reshape(3, 4), None)
    np.testing.assert_allclose(jnp.mean(advantage_et), 0.0, atol=1e-6)
    np.testing.assert_allclose(jnp.var(advantage_et), 1.0, rtol=1e-5)
    np.testing.assert_allclose(variance, (12**2 - 1) / 12, rtol=1e-5)


def test_advantages_are_divided_by_no_less_than_the_least_divisor():
    given = jnp.arange(12.0).reshape(3, 4)
    for min_std in (1.0, 20.0):
        advantage_et, _ = normalize_advantages(given, None, min_std=min_std)
        np.testing.assert_allclose(advantage_et, (given - 5.5) / max(jnp.std(given), min_std), rtol=1e-5)
