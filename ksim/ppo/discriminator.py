"""A discriminator between transitions of a reference and of a policy, and the style reward from its score."""

from collections.abc import Sequence

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.nn.heads import DenseStack, orthogonal_linear
from ksim.types import Metrics


class Discriminator(eqx.Module):
    """An MLP from the features of two consecutive states to a score: 1 for the reference, -1 for the policy."""

    stack: DenseStack
    score: eqx.nn.Linear

    def __init__(self, num_features: int, hidden_sizes: Sequence[int], *, key: PRNGKeyArray) -> None:
        """Initialises the network. `num_features` is the number of features of one state."""
        stack_key, score_key = jax.random.split(key)
        self.stack = DenseStack(2 * num_features, hidden_sizes, key=stack_key)
        self.score = orthogonal_linear([2 * num_features, *hidden_sizes][-1], 1, 1.0, key=score_key)

    def __call__(self, pair: Float[Array, " f2"]) -> Float[Array, ""]:
        """The score of a transition, given as the normalised features of a state and of its successor."""
        return self.score(self.stack(pair))[0]


def style_reward(score: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """Rewards from 0 to 1 for the scores of transitions, Peng et al. 2021 (arXiv:2104.02180), eq. 7."""
    return jnp.maximum(0.0, 1 - 0.25 * jnp.square(score - 1))


def discriminator_loss(
    discriminator: Discriminator,
    real_bf: Float[Array, "b f2"],
    fake_bf: Float[Array, "b f2"],
    gradient_penalty: float,
) -> tuple[Float[Array, ""], Metrics]:
    """Least squares with a gradient penalty on real transitions, Peng et al. 2021 (arXiv:2104.02180), eqs. 6 and 8.

    Args:
        real_bf: Normalised transitions of the reference.
        fake_bf: Normalised transitions of the policy, from this and earlier iterations.
        gradient_penalty: Weight of the penalty.
    """
    chex.assert_equal_shape([real_bf, fake_bf])
    real_b, slope_bf = jax.vmap(jax.value_and_grad(discriminator))(real_bf)
    fake_b = jax.vmap(discriminator)(fake_bf)
    penalty = jnp.mean(jnp.sum(jnp.square(slope_bf), axis=-1))
    loss = jnp.mean(jnp.square(real_b - 1)) + jnp.mean(jnp.square(fake_b + 1)) + 0.5 * gradient_penalty * penalty
    return loss, {
        "loss/discriminator": loss,
        "style/gradient_penalty": penalty,
        "style/score_of_reference": jnp.mean(real_b),
        "style/score_of_policy": jnp.mean(fake_b),
    }
