"""The base class of randomizers."""

import operator
from abc import abstractmethod

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ksim.mdp.term import Context, Term
from ksim.types import Overrides


class AbstractRandomizer(Term):
    """New values of model fields, drawn at every reset.

    What native MuJoCo derives from these fields and MJX computes in every step (masses of subtrees, bounding volumes,
    frames that coincide) follows them. Constants that both engines take from the model (such as inverse weights, which
    only affect the softness of constraints) keep the values of the compiled model. A field that not every engine reads
    anew for each simulation is an error.
    """

    @abstractmethod
    def __call__(self, context: Context) -> Overrides:
        """Whole fields of MjModel, by name; what came before is in `context.overrides`."""

    def current(self, context: Context, field: str) -> Array:
        """A field as earlier randomizers have left it."""
        return current_field(context, field)


def current_field(context: Context, field: str) -> Array:
    """A field of the model as randomizers and events have left it."""
    return context.overrides.get(field, jnp.asarray(operator.attrgetter(field)(context.model.mj_model), jnp.float32))


def uniform(context: Context, bounds: tuple[float, float]) -> Array:
    """One uniform number of the term's own key."""
    return jax.random.uniform(context.key, minval=bounds[0], maxval=bounds[1])
