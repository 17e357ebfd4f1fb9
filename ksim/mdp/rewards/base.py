"""What rewards have in common."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float

from ksim.mdp.term import Context, Term


class AbstractReward(Term):
    """A reward, earned per second: a step adds `scale * value * ctrl_dt`, so that weights survive a new control rate.

    Attributes:
        scale: Weight; negative for a penalty.
    """

    scale: eqx.AbstractVar[float]

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, ""]:
        """The value before `scale`, a scalar."""
