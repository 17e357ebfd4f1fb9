"""The base class of observations."""

import inspect
from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.term import Context, Term


class AbstractObservation(Term):
    """A vector that the policy or the critic sees.

    Attributes:
        noise: Added to the value; None for the exact value.
    """

    noise: AbstractNoise | None = eqx.field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "noise" in inspect.get_annotations(cls):  # declared again, and so without its keyword
            cls.noise = eqx.field(default=cls.__dict__.get("noise"), kw_only=True)

    @property
    def mirror_s(self) -> float:
        """By how many seconds the time of a mirrored robot is ahead, for clocks of gaits whose sides step in turns."""
        return 0.0

    def exact(self) -> "AbstractObservation":
        """The same observation of a perfect sensor: wrappers leave out the noise and the errors that they add."""
        return self

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, "..."]:
        """The exact value; of any shape, flattened into the group's vector."""
