"""What commands have in common."""

from abc import abstractmethod

from jaxtyping import Array, Float

from ksim.mdp.term import Context, Term


class AbstractCommand(Term):
    """What the robot is asked to do, as a vector that may change during the episode."""

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, " n"]:
        """The command in force."""
