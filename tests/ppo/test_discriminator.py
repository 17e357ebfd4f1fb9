import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.ppo.amp import Discriminator, discriminator_loss, style_reward


def test_style_reward_is_1_for_the_reference_and_0_for_what_is_told_apart():
    # 1 - 0.25 (d - 1)^2, and not below 0.
    np.testing.assert_allclose(style_reward(jnp.array([1.0, 0.0, -1.0, -2.0, 2.0])), [1.0, 0.75, 0.0, 0.0, 0.75])


def linear(weight, bias):
    discriminator = Discriminator(1, [], key=jax.random.key(0))
    return jax.tree.unflatten(jax.tree.structure(discriminator), [jnp.array([weight]), jnp.array([bias])])


@pytest.mark.parametrize("penalty", [0.0, 10.0])
def test_discriminator_loss_is_least_squares_and_half_the_squared_slope(penalty):
    discriminator = linear([0.6, 0.8], 0.5)
    real, fake = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])
    loss, metrics = discriminator_loss(discriminator, real, fake, penalty)
    # Scores 1.1 and 1.3; the slope is (0.6, 0.8), of length 1.
    np.testing.assert_allclose(loss, 0.1**2 + 2.3**2 + 0.5 * penalty, rtol=1e-5)
    np.testing.assert_allclose(metrics["style/gradient_penalty"], 1.0, rtol=1e-5)
