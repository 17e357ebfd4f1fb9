"""The base class of rewards."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ksim.mdp.term import Context, Term

MIN_COMMAND = 0.1
"""Norm of a velocity command, in m/s and rad/s, up to which it is a command to stand."""


class AbstractReward(Term):
    """A reward per second: a step adds `scale * value * ctrl_dt`, so weights do not depend on the control rate.

    Attributes:
        scale: Weight; negative for a penalty.
    """

    scale: eqx.AbstractVar[float]

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, ""]:
        """The value before `scale`, a scalar."""


def asks_to_move(command: Float[Array, " n"]) -> Bool[Array, ""]:
    """Whether a velocity command is to move."""
    return jnp.linalg.norm(command) > MIN_COMMAND
