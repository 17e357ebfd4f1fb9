"""Ends of episodes."""

from abc import abstractmethod
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool

from ksim.mdp.term import Context, Term
from ksim.physics.names import base_orientation, base_position
from ksim.physics.rotations import rotate_inverse


class AbstractTermination(Term):
    """A reason for an episode to end.

    Attributes:
        truncates: The episode is only cut here, and what could still be earned counts (a time limit); otherwise it
            really ended (a fall).
    """

    truncates: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, context: Context) -> Bool[Array, ""]:
        """Whether the episode ends here."""


class TimeLimit(AbstractTermination):
    """The episode has lasted `seconds`; it is cut, not ended."""

    truncates = True
    seconds: float = 20.0

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return context.episode_step >= round(self.seconds / context.dt)


class BaseTooLow(AbstractTermination):
    """The base is lower than `height`, in m above the world's origin."""

    height: float

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return base_position(context.physics, context.model.names)[2] < self.height


class BaseTilted(AbstractTermination):
    """The base leans more than `max_tilt`, in rad, from the vertical."""

    max_tilt: float = 1.0

    def __call__(self, context: Context) -> Bool[Array, ""]:
        orientation = base_orientation(context.physics, context.model.names)
        gravity_3 = rotate_inverse(jnp.array([0.0, 0.0, -1.0]), orientation)
        return -gravity_3[2] < jnp.cos(self.max_tilt)
