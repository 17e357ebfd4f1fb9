"""Randomization of the model, per env and episode, on every engine."""

from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ksim.mdp.term import Context, Term
from ksim.types import Overrides


class AbstractRandomizer(Term):
    """New values of model fields, drawn at every reset.

    The fields are written as they are: constants that MuJoCo derives from them when it compiles a model (such as
    inverse weights, which only shape the softness of constraints) keep the values of the compiled model.
    """

    @abstractmethod
    def __call__(self, context: Context) -> Overrides:
        """Whole fields of MjModel, by name; what came before is in `context.overrides`."""

    def current(self, context: Context, field: str) -> Array:
        """A field as earlier randomizers have left it."""
        return context.overrides.get(field, jnp.asarray(getattr(context.model.mj_model, field), jnp.float32))


class RandomFriction(AbstractRandomizer):
    """Sets the sliding friction of geoms to one uniform number from `friction`. `geoms`: names, default all."""

    friction: tuple[float, float] = (0.5, 1.2)
    geoms: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        model = context.model
        if self.geoms is None:
            indices = np.arange(model.mj_model.ngeom)
        else:
            indices = np.array([model.names.index("geom", name) for name in self.geoms])
        low, high = self.friction
        drawn = jax.random.uniform(context.key, minval=low, maxval=high)
        return {"geom_friction": self.current(context, "geom_friction").at[indices, 0].set(drawn)}


class RandomBodyMass(AbstractRandomizer):
    """Adds one uniform number from `added`, in kg, to the mass of a body; its inertia stays as it is."""

    body: str
    added: tuple[float, float] = (-1.0, 1.0)

    def __call__(self, context: Context) -> Overrides:
        index = context.model.names.index("body", self.body)
        low, high = self.added
        drawn = jax.random.uniform(context.key, minval=low, maxval=high)
        # Native MuJoCo divides by the mass of each subtree, which it does not sum anew.
        carrying = _with_ancestors(index, context.model.mj_model.body_parentid)
        return {
            "body_mass": self.current(context, "body_mass").at[index].add(drawn),
            "body_subtreemass": self.current(context, "body_subtreemass").at[carrying].add(drawn),
        }


def _with_ancestors(body: int, parents: np.ndarray) -> np.ndarray:
    chain = [body]
    while chain[-1] != 0:
        chain.append(int(parents[chain[-1]]))
    return np.array(chain)
