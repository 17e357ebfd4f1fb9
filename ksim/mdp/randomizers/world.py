"""Randomization of the world: friction and gravity."""

import jax
import numpy as np

from ksim.checks import check_range
from ksim.mdp.randomizers.base import AbstractRandomizer, uniform
from ksim.mdp.term import Context
from ksim.types import Overrides


class RandomFriction(AbstractRandomizer):
    """Sets the sliding friction of geoms to one uniform number from `friction`. `geoms`: names, default all.

    In a contact MuJoCo uses the larger friction of the two geoms: for slippery ground, make the feet slippery too.
    """

    friction: tuple[float, float] = (0.5, 1.2)
    geoms: tuple[str, ...] | None = None

    def __check_init__(self) -> None:
        check_range(self, "friction", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        model = context.model
        if self.geoms is None:
            indices = np.arange(model.mj_model.ngeom)
        else:
            indices = np.array([model.names.index("geom", name) for name in self.geoms])
        drawn = uniform(context, self.friction)
        return {"geom_friction": self.current(context, "geom_friction").at[indices, 0].set(drawn)}


class RandomGravity(AbstractRandomizer):
    """Adds uniform numbers from [-magnitude, magnitude], in m/s^2, to each component of gravity."""

    magnitude: float = 0.2

    def __check_init__(self) -> None:
        check_range(self, "magnitude", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        offset_3 = jax.random.uniform(context.key, (3,), minval=-self.magnitude, maxval=self.magnitude)
        return {"opt.gravity": self.current(context, "opt.gravity") + offset_3}
