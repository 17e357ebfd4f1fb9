"""Rewards for positions of feet: swing height, distance and tilt.

Derived fields, and with them these rewards, describe the state before the last physics substep.
"""

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.checks import check_range
from ksim.mdp.rewards.base import AbstractReward, asks_to_move
from ksim.mdp.rewards.feet import add_velocity_sensors, check_pairs, feet_in_contact, horizontal_velocity
from ksim.mdp.term import Context
from ksim.physics.names import base_orientation
from ksim.physics.rotations import heading_frame


class FootClearance(AbstractReward):
    """Squared shortfall, in m^2, of the height of feet from `target`, weighted by their speed, in m/s, summed.

    A fast foot must be high; a resting foot may be low. sites: names of the feet's sites, whose height is
    above the ground, in m; velocity sensors are added to the model if missing.
    """

    needs = ("site_xpos",)
    sites: tuple[str, ...]
    target: float = 0.08
    scale: float = -2.0

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_velocity_sensors(spec, self.sites)

    def __call__(self, context: Context) -> Float[Array, ""]:
        height_f = foot_heights(context, self.sites)
        shortfall_f = jnp.square(jnp.maximum(self.target - height_f, 0.0))
        speed_f = jnp.linalg.norm(horizontal_velocity(context, self.sites), axis=1)
        return jnp.sum(shortfall_f * speed_f)


class FootApexHeight(AbstractReward):
    """Squared error, in m^2, of the highest point of a foot's swing from `target`, in m, paid when it lands.

    Nothing is paid while the command is to stand. sensors: names of touch sensors, one per foot. sites: names of the
    feet's sites, in the same order, whose height is above the ground.
    """

    needs = ("site_xpos",)
    sensors: tuple[str, ...]
    sites: tuple[str, ...]
    command: str
    target: float = 0.1
    scale: float = -10.0

    def __check_init__(self) -> None:
        check_pairs(self, self.sensors, self.sites)

    def init(self, context: Context) -> tuple[Array, Array]:
        return jnp.full(len(self.sites), -jnp.inf, jnp.float32), jnp.zeros(len(self.sites))

    def update(self, context: Context) -> tuple[Array, Array]:
        apex_f, _ = context.memory
        contact_f = feet_in_contact(context, self.sensors)
        # A foot that was already down has no apex.
        landed_f = contact_f & jnp.isfinite(apex_f)
        paid_f = jnp.where(landed_f, jnp.square(apex_f - self.target), 0.0)
        apex_f = jnp.maximum(apex_f, foot_heights(context, self.sites))
        return jnp.where(contact_f, -jnp.inf, apex_f), paid_f

    def __call__(self, context: Context) -> Float[Array, ""]:
        _, paid_f = context.memory
        return jnp.sum(paid_f) * asks_to_move(context.command(self.command)) / context.dt


class FeetDistance(AbstractReward):
    """Excess, in m, of the sideways distance of two feet outside the range `distance`.

    sites: names of the left and of the right foot's site. The distance is along the left of the base's heading, and
    negative if feet are crossed.
    """

    needs = ("site_xpos",)
    sites: tuple[str, str]
    distance: tuple[float, float]
    scale: float = -1.0

    def __check_init__(self) -> None:
        check_range(self, "distance")

    def __call__(self, context: Context) -> Float[Array, ""]:
        left, right = _site_indices(context, self.sites)
        position_s3 = context.derived("site_xpos")
        orientation = base_orientation(context.physics, context.model.names)
        distance = heading_frame(orientation, position_s3[left] - position_s3[right])[1]
        low, high = self.distance
        return jnp.maximum(low - distance, 0.0) + jnp.maximum(distance - high, 0.0)


class FeetFlat(AbstractReward):
    """Squared sine of the tilt of each foot, summed. `sites`: names; their z axes are the soles' normals.

    sensors: names of touch sensors in the same order, to count only feet in contact; default all feet.
    """

    needs = ("site_xmat",)
    sites: tuple[str, ...]
    sensors: tuple[str, ...] | None = None
    scale: float = -0.5

    def __check_init__(self) -> None:
        if self.sensors is not None:
            check_pairs(self, self.sensors, self.sites)

    def __call__(self, context: Context) -> Float[Array, ""]:
        # Of a flat 3 x 3 matrix the horizontal part of its third column.
        z_axis_f2 = context.derived("site_xmat")[_site_indices(context, self.sites)][:, [2, 5]]
        tilt_f = jnp.sum(jnp.square(z_axis_f2), axis=1)
        counts_f = 1.0 if self.sensors is None else feet_in_contact(context, self.sensors)
        return jnp.sum(tilt_f * counts_f)


def foot_heights(context: Context, sites: tuple[str, ...]) -> Float[Array, " f"]:
    """Heights of sites above the ground, in m."""
    return context.height_above_ground(context.derived("site_xpos")[_site_indices(context, sites)])


def _site_indices(context: Context, sites: tuple[str, ...]) -> np.ndarray:
    return np.array([context.model.names.index("site", site) for site in sites])
