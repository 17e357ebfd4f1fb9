"""Base classes of rewards, and rewards made of others."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ksim.checks import check_field, ranged
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


class AbstractGaussianReward(AbstractReward):
    """1 without an error, falling off as a Gaussian of it.

    Attributes:
        std: The error at which the reward has dropped to exp(-1/2).
    """

    std: eqx.AbstractVar[float]

    @abstractmethod
    def squared_error(self, context: Context) -> Float[Array, ""]:
        """The squared error, in the square of the unit of `std`."""

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.exp(-self.squared_error(context) / (2 * self.std**2))


def asks_to_move(command: Float[Array, " n"]) -> Bool[Array, ""]:
    """Whether a velocity command is to move."""
    return jnp.linalg.norm(command) > MIN_COMMAND


class _Wrapper(AbstractReward):
    """Another reward, with its scale and its memory."""

    reward: eqx.AbstractVar[AbstractReward]

    @property
    def scale(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.reward.scale

    def init(self, context: Context) -> PyTree:
        return self.reward.init(context)

    def update(self, context: Context) -> PyTree:
        return self.reward.update(context)


class Clipped(_Wrapper):
    """Another reward whose value, before its scale, is clipped to `low` and `high`."""

    reward: AbstractReward
    low: float
    high: float

    def __check_init__(self) -> None:
        check_field(self, "low", self.low <= self.high, f"at most high ({self.high})")

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.clip(self.reward(context), self.low, self.high)


class ScaledByLevel(_Wrapper):
    """Another reward, scaled by a curriculum: by `start` at level 0, rising to 1 at level 1.

    level: name of the curriculum.
    """

    reward: AbstractReward
    level: str
    start: float = ranged(0.0, least=0.0, most=1.0)

    def __call__(self, context: Context) -> Float[Array, ""]:
        return self.reward(context) * (self.start + (1 - self.start) * context.level(self.level))


class Custom(AbstractReward):
    """The value of a function of the context.

    function: pure, from the `Context` of one env to a scalar. needs: derived fields of the physics state that the
    function reads, besides sensordata.
    """

    function: Callable[[Context], Float[Array, ""]]
    scale: float = 1.0
    needs: tuple[str, ...] = eqx.field(default=(), kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]

    def __call__(self, context: Context) -> Float[Array, ""]:
        return self.function(context)
