import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.nn.distributions import Gaussian, SquashedGaussian
from ksim.ppo.losses import approximate_kl, clipped_policy_loss, rewarded_entropy, value_loss


def test_policy_loss_when_the_ratio_is_one_is_minus_the_mean_advantage():
    np.testing.assert_allclose(clipped_policy_loss(jnp.zeros(2), jnp.array([1.0, 3.0]), 0.2), -2.0)


def test_policy_loss_when_the_ratio_grows_is_clipped_only_where_that_would_pay():
    log_ratio = jnp.log(jnp.array([2.0, 2.0]))
    # Advantage 1: min(2, 1.2) = 1.2. Advantage -1: min(-2, -1.2) = -2.
    np.testing.assert_allclose(clipped_policy_loss(log_ratio, jnp.array([1.0, -1.0]), 0.2), -(1.2 - 2.0) / 2, rtol=1e-6)


def test_plain_value_loss_is_half_the_mean_squared_error():
    # (1 + 9) / 2 / 2 = 2.5
    np.testing.assert_allclose(value_loss(jnp.array([1.0, 3.0]), jnp.zeros(2), jnp.zeros(2), None), 2.5)


def test_clipped_value_loss_takes_the_worse_of_the_two_errors():
    # Value 3 moved from 0 towards the target 4; clipped to 0.5 its error is 3.5, not 1.
    loss = value_loss(jnp.array([3.0]), jnp.array([0.0]), jnp.array([4.0]), 0.5)
    np.testing.assert_allclose(loss, 0.5 * 3.5**2)


def test_approximate_kl_is_zero_without_a_change_and_positive_with_one():
    assert approximate_kl(jnp.zeros(3)) == 0
    # ratio 2: 2 - 1 - log 2
    np.testing.assert_allclose(approximate_kl(jnp.log(jnp.array([2.0]))), 1 - np.log(2), rtol=1e-6)


def test_entropy_bonus_raises_each_standard_deviation_up_to_1_and_lowers_none():
    slope = jax.grad(lambda log_std: rewarded_entropy(Gaussian(jnp.zeros(3), jnp.exp(log_std))))
    np.testing.assert_array_equal(slope(jnp.log(jnp.array([0.5, 1.0, 4.0]))), [1, 1, 0])


@pytest.mark.parametrize("std", [0.5, 1.0, 4.0])
def test_entropy_bonus_is_the_entropy_up_to_a_standard_deviation_of_1_and_where_actions_have_bounds(std):
    squashed, normal = (kind(jnp.full(2, 0.3), jnp.full(2, std)) for kind in (SquashedGaussian, Gaussian))
    assert rewarded_entropy(squashed) == squashed.entropy()
    expected = Gaussian(normal.mean, jnp.minimum(normal.std, 1)).entropy()
    np.testing.assert_allclose(rewarded_entropy(normal), expected, rtol=1e-6)
