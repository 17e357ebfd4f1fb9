"""Randomization of the world: friction and gravity."""

import jax
import mujoco
import numpy as np

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.randomizers.base import AbstractRandomizer, uniform
from ksim.mdp.term import Context
from ksim.physics.contacts import decides_friction
from ksim.types import Overrides


class RandomFriction(AbstractRandomizer):
    """Sets the sliding friction of geoms to one uniform number from `friction`. `geoms`: names, default all.

    In a contact MuJoCo uses the friction of the geom with the higher priority, or the larger friction of the two: for
    slippery ground, make the feet slippery too. A `<pair>` has a friction of its own: it is set to the same number if
    one of its geoms is among these.
    """

    friction: tuple[float, float] = (0.5, 1.2)
    geoms: tuple[str, ...] | None = None

    def __check_init__(self) -> None:
        check_range(self, "friction", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        model = context.model
        mj_model = model.mj_model
        if self.geoms is None:
            indices = np.arange(mj_model.ngeom)
        else:
            indices = np.array([model.names.index("geom", name) for name in self.geoms])
        is_ours = np.isin(mj_model.pair_geom1, indices) | np.isin(mj_model.pair_geom2, indices)
        pairs = np.flatnonzero(is_ours & (mj_model.pair_dim > 1))
        if not len(pairs) and not decides_friction(mj_model, indices, self.friction[1]):
            which = "any geom" if self.geoms is None else ", ".join(map(repr, self.geoms))
            raise ConfigError(
                f"RandomFriction of {which} changes no contact: in none that can happen does its friction, at most "
                f"{self.friction[1]:g}, decide. It collides with nothing, or only with geoms of a higher priority or a "
                "larger friction. Name those geoms, or change contype, conaffinity or priority in the MJCF file."
            )
        drawn = uniform(context, self.friction)
        changed = {"geom_friction": self.current(context, "geom_friction").at[indices, 0].set(drawn)}
        if len(pairs):
            sliding = self.current(context, "pair_friction").at[pairs[:, None], np.arange(2)].set(drawn)
            changed["pair_friction"] = sliding
        return changed


class RandomGravity(AbstractRandomizer):
    """Adds uniform numbers from [-magnitude, magnitude], in m/s^2, to each component of gravity."""

    magnitude: float = 0.2

    def __check_init__(self) -> None:
        check_range(self, "magnitude", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        if context.model.mj_model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY:
            raise ConfigError(
                'RandomGravity changes nothing: the model has <flag gravity="disable"/>. Remove it from the MJCF file.'
            )
        offset_3 = jax.random.uniform(context.key, (3,), minval=-self.magnitude, maxval=self.magnitude)
        return {"opt.gravity": self.current(context, "opt.gravity") + offset_3}
