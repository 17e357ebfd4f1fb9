"""The squashed Gaussian, beside numerical integrals in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from ksim.nn import Gaussian, SquashedGaussian
from ksim.nn.distributions import log_slope_of_tanh

CASES = [(mean, std) for mean in (0.0, -0.7, 2.0) for std in (0.05, 0.4, 1.0)]


def squashed(mean, std):
    return SquashedGaussian(mean=jnp.array([mean]), std=jnp.array([std]))


def samples_and_probabilities(mean, std, num=4001):
    """Samples on a grid, and the probability of the actions around each, from the normal distribution function."""
    edges = np.linspace(-8, 8, num + 1)
    below = 0.5 * (1 + erf(edges / np.sqrt(2)))
    return mean + std * (edges[1:] + edges[:-1]) / 2, np.diff(below), np.diff(np.tanh(mean + std * edges))


@pytest.mark.parametrize(("mean", "std"), CASES)
def test_density_of_squashed_actions_times_their_widths_is_their_probability(mean, std):
    sample_n, probability_n, width_n = samples_and_probabilities(mean, std)
    log_prob_n = jax.vmap(squashed(mean, std).log_prob)(jnp.asarray(sample_n, jnp.float32)[:, None])
    found_n = np.exp(np.asarray(log_prob_n, np.float64)) * width_n
    np.testing.assert_allclose(found_n.sum(), 1, rtol=1e-4)
    np.testing.assert_allclose(found_n, probability_n, rtol=2e-3, atol=1e-9)


@pytest.mark.parametrize(("mean", "std"), CASES)
def test_entropy_of_squashed_actions_is_the_integral(mean, std):
    _, probability_n, width_n = samples_and_probabilities(mean, std)
    likely = probability_n > 1e-13
    expected = -np.sum(probability_n[likely] * np.log(probability_n[likely] / width_n[likely]))
    np.testing.assert_allclose(squashed(mean, std).entropy(), expected, atol=2e-3)


def test_gradient_of_the_entropy_pushes_a_saturated_mean_back_and_a_small_std_up():
    entropy = lambda mean, std: squashed(mean, std).entropy()
    of_mean, of_std = jax.grad(entropy, argnums=(0, 1))(1.5, 0.3)
    numerical = [(entropy(1.51, 0.3) - entropy(1.49, 0.3)) / 0.02, (entropy(1.5, 0.31) - entropy(1.5, 0.29)) / 0.02]
    np.testing.assert_allclose([of_mean, of_std], numerical, rtol=1e-2)
    assert of_mean < 0 < of_std


def test_log_density_and_entropy_are_sums_over_components():
    mean, std = jnp.array([0.3, -1.0]), jnp.array([0.5, 0.2])
    sample = jnp.array([0.4, -0.9])
    both, parts = SquashedGaussian(mean, std), [squashed(mean[i], std[i]) for i in range(2)]
    np.testing.assert_allclose(both.log_prob(sample), sum(p.log_prob(sample[i : i + 1]) for i, p in enumerate(parts)))
    np.testing.assert_allclose(both.entropy(), sum(p.entropy() for p in parts), rtol=1e-6)


@pytest.mark.parametrize("sample", [-60.0, -12.0, 12.0, 60.0])
def test_density_and_gradients_are_finite_where_actions_round_to_their_bounds(sample):
    np.testing.assert_allclose(squashed(0.0, 1.0).action(jnp.array([sample])), np.sign(sample), rtol=1e-6)
    density = lambda mean, std, sample: squashed(mean, std).log_prob(jnp.array([sample]))
    gradients = jax.grad(density, argnums=(0, 1, 2))(0.9 * sample, 0.5, sample)
    entropy_gradients = jax.grad(lambda mean, std: squashed(mean, std).entropy(), argnums=(0, 1))(sample, 5.0)
    assert np.isfinite([density(0.9 * sample, 0.5, sample), *gradients, *entropy_gradients]).all()


def test_slope_of_tanh_is_exact_around_zero_and_in_its_tails():
    x_n = np.array([-30.0, -5.0, -1e-3, 0.0, 0.5, 30.0])
    exact_n = -2 * np.logaddexp(x_n, -x_n) + 2 * np.log(2)  # log of 1 / cosh(x)^2
    np.testing.assert_allclose(log_slope_of_tanh(jnp.asarray(x_n, jnp.float32)), exact_n, rtol=1e-5, atol=1e-6)


def test_ratio_of_squashed_policies_is_that_of_their_gaussians_even_at_the_bounds():
    # At a sample of 14 the action rounds to 1, from which the sample could not be found again.
    old, new = (jnp.array([12.0]), jnp.array([2.0])), (jnp.array([12.5]), jnp.array([1.5]))
    sample = jnp.array([14.0])
    ratios = [kind(*new).log_prob(sample) - kind(*old).log_prob(sample) for kind in (Gaussian, SquashedGaussian)]
    # log(2 / 1.5) - 0.5 (1.5 / 1.5)^2 + 0.5 (2 / 2)^2 = log(4 / 3)
    np.testing.assert_allclose(ratios, np.log(4 / 3), rtol=1e-5)


def test_samples_become_actions_inside_the_bounds_and_the_mode_is_that_of_the_mean():
    distribution = SquashedGaussian(jnp.full(1000, 0.5), jnp.full(1000, 2.0))
    sample = distribution.sample(jax.random.key(0))
    action = distribution.action(sample)
    np.testing.assert_allclose(action, np.tanh(sample), rtol=1e-5)
    assert (np.abs(action) <= 1).all()
    assert distribution.bounds == (-1, 1)
    np.testing.assert_allclose(distribution.mode(), np.tanh(0.5), rtol=1e-6)
