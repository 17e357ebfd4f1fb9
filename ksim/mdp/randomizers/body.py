"""Randomization of masses, centres of mass and inertias."""

import jax
import numpy as np
from jaxtyping import Array

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.randomizers.base import AbstractRandomizer, current_field, uniform
from ksim.mdp.term import Context
from ksim.types import Overrides


class RandomBodyMass(AbstractRandomizer):
    """Adds one uniform number from `added`, in kg, to the mass of a body; its inertia is unchanged."""

    body: str
    added: tuple[float, float] = (-1.0, 1.0)

    def __check_init__(self) -> None:
        check_range(self, "added")

    def __call__(self, context: Context) -> Overrides:
        index = movable_body(context, self.body)
        mass = context.model.mj_model.body_mass[index]
        if mass + self.added[0] <= 0:
            raise ConfigError(
                f"RandomBodyMass of {self.body!r} adds {self.added[0]} kg to {mass:g} kg, which must stay positive."
            )
        return with_added_mass(context, self.body, uniform(context, self.added))


class RandomMassFactor(AbstractRandomizer):
    """Multiplies mass and inertia of each of some bodies by its own uniform number from `factor`.

    The size of a body is unchanged; its density changes. bodies: names.
    """

    bodies: tuple[str, ...]
    factor: tuple[float, float] = (0.9, 1.1)

    def __check_init__(self) -> None:
        check_range(self, "factor", above=0.0)

    def __call__(self, context: Context) -> Overrides:
        indices = np.array([movable_body(context, name, weighs=True) for name in self.bodies])
        factor_n = jax.random.uniform(context.key, indices.shape, minval=self.factor[0], maxval=self.factor[1])
        before_b = self.current(context, "body_mass")
        mass_b = before_b.at[indices].multiply(factor_n)
        # Native MuJoCo divides by the mass of each subtree, which it does not sum anew.
        parents = context.model.mj_model.body_parentid
        subtree_b = self.current(context, "body_subtreemass")
        for index in indices.tolist():
            subtree_b = subtree_b.at[_with_ancestors(index, parents)].add(mass_b[index] - before_b[index])
        inertia = self.current(context, "body_inertia").at[indices].multiply(factor_n[:, None])
        return {"body_mass": mass_b, "body_subtreemass": subtree_b, "body_inertia": inertia}


class RandomCenterOfMass(AbstractRandomizer):
    """Moves the centre of mass of a body by uniform numbers up to `max_offset`, in m, along each of its axes."""

    body: str
    max_offset: float = 0.02

    def __check_init__(self) -> None:
        check_range(self, "max_offset", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        index = movable_body(context, self.body, weighs=True)
        if context.model.mj_model.body_simple[index]:
            raise ConfigError(
                f"Body {self.body!r} moves nothing else: native MuJoCo has compiled its inertia as the same in every "
                "pose, and its centre of mass cannot be randomized. Choose a body with a joint to another."
            )
        offset_3 = jax.random.uniform(context.key, (3,), minval=-self.max_offset, maxval=self.max_offset)
        return {"body_ipos": self.current(context, "body_ipos").at[index].add(offset_3)}


class RandomInertia(AbstractRandomizer):
    """Multiplies the moments of inertia of a body by one uniform number from `factor`; its mass is unchanged."""

    body: str
    factor: tuple[float, float] = (0.9, 1.1)

    def __check_init__(self) -> None:
        check_range(self, "factor", above=0.0)

    def __call__(self, context: Context) -> Overrides:
        index = movable_body(context, self.body, weighs=True)
        return {"body_inertia": self.current(context, "body_inertia").at[index].multiply(uniform(context, self.factor))}


def with_added_mass(context: Context, body: str, mass: Array) -> Overrides:
    """The fields of the model with `mass`, in kg, added at the centre of mass of a body; its inertia is unchanged."""
    index = movable_body(context, body)
    # Native MuJoCo divides by the mass of each subtree, which it does not sum anew.
    carrying = _with_ancestors(index, context.model.mj_model.body_parentid)
    return {
        "body_mass": current_field(context, "body_mass").at[index].add(mass),
        "body_subtreemass": current_field(context, "body_subtreemass").at[carrying].add(mass),
    }


def movable_body(context: Context, name: str, *, weighs: bool = False) -> int:
    """The index of a body whose inertia matters.

    Args:
        weighs: Whether it must have a mass: a multiple of none, or none elsewhere, changes nothing.

    Raises:
        ConfigError: The model has no such body, or its inertia moves nothing.
    """
    mj_model = context.model.mj_model
    index = context.model.names.index("body", name)
    if mj_model.body_weldid[index] == 0:
        raise ConfigError(f"Body {name!r} cannot move, so its mass does not matter. Name a moving body of the robot.")
    if weighs and mj_model.body_mass[index] == 0:
        raise ConfigError(f"Body {name!r} has no mass, so randomizing it changes nothing. Name a body with a mass.")
    return index


def _with_ancestors(body: int, parents: np.ndarray) -> np.ndarray:
    chain = [body]
    while chain[-1] != 0:
        chain.append(int(parents[chain[-1]]))
    return np.array(chain)
