"""Rewards on feet and contacts."""

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float

from ksim.checks import check_range, check_ranges, ranged, required
from ksim.errors import ConfigError
from ksim.mdp.contacts import add_contact_sensors, check_parts, contact_forces, hardest_contacts
from ksim.mdp.rewards.base import AbstractReward, asks_to_move
from ksim.mdp.term import Context
from ksim.physics.names import find_in_spec
from ksim.physics.rotations import heading_frame


class UndesiredContact(AbstractReward):
    """Number of parts with a contact force above `threshold`, in N, from the ground or another part.

    bodies: names; a body counts with its own geoms. geoms: names. Contact sensors are added to the model.
    """

    bodies: tuple[str, ...] = ()
    geoms: tuple[str, ...] = ()
    threshold: float = ranged(1.0, least=0.0)
    scale: float = -1.0

    def __check_init__(self) -> None:
        check_parts(self)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_contact_sensors(spec, self.bodies, self.geoms)

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(contact_forces(context, self.bodies, self.geoms) > self.threshold).astype(jnp.float32)


class Stumble(AbstractReward):
    """Number of feet that hit an obstacle: horizontal force above `ratio` times the vertical force.

    Feet with a horizontal force up to `threshold`, in N, do not count. geoms: names of the feet's geoms; the strongest
    contact of each counts. Contact sensors are added to the model. ratio: choose it above the friction of the ground,
    or pushing off counts as stumbling.
    """

    geoms: tuple[str, ...]
    ratio: float = ranged(4.0, above=0.0)
    threshold: float = ranged(1.0, least=0.0)
    scale: float = -1.0

    def __check_init__(self) -> None:
        check_parts(self)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_contact_sensors(spec, geoms=self.geoms)

    def __call__(self, context: Context) -> Float[Array, ""]:
        force_g3 = hardest_contacts(context, self.geoms)
        sideways_g, vertical_g = jnp.linalg.norm(force_g3[:, :2], axis=1), jnp.abs(force_g3[:, 2])
        stumbles_g = (sideways_g > self.ratio * vertical_g) & (sideways_g > self.threshold)
        return jnp.sum(stumbles_g).astype(jnp.float32)


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

    Nothing is paid while commanded to stand. sensors: names of touch sensors, one per foot. sites: names of the
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
    distance: tuple[float, float] = required()
    scale: float = -1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        left, right = _site_indices(context, self.sites)
        position_s3 = context.derived("site_xpos")
        distance = heading_frame(context.base.orientation, position_s3[left] - position_s3[right])[1]
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
        # The horizontal part of the third column of a flat 3 x 3 matrix.
        z_axis_f2 = context.derived("site_xmat")[_site_indices(context, self.sites)][:, [2, 5]]
        tilt_f = jnp.sum(jnp.square(z_axis_f2), axis=1)
        counts_f = 1.0 if self.sensors is None else feet_in_contact(context, self.sensors)
        return jnp.sum(tilt_f * counts_f)


def foot_heights(context: Context, sites: tuple[str, ...]) -> Float[Array, " f"]:
    """Heights of sites above the ground, in m."""
    return context.height_above_ground(context.derived("site_xpos")[_site_indices(context, sites)])


def _site_indices(context: Context, sites: tuple[str, ...]) -> np.ndarray:
    return np.array([context.model.names.index("site", site) for site in sites])


class FeetAirTime(AbstractReward):
    """Air time of a foot beyond `threshold_s`, up to `max_s`, in s, paid when it lands.

    Nothing is paid while commanded to stand. sensors: names of touch sensors, one per foot. threshold_s and
    max_s: air times at which the reward starts and stops growing.
    """

    sensors: tuple[str, ...]
    command: str
    threshold_s: float = ranged(0.2, least=0.0)
    max_s: float = 0.5
    scale: float = 1.0

    def __check_init__(self) -> None:
        check_ranges(self)
        check_range(self, "max_s", least=self.threshold_s)

    def init(self, context: Context) -> tuple[Array, Array]:
        zeros_f = jnp.zeros(len(self.sensors))
        return zeros_f, zeros_f

    def update(self, context: Context) -> tuple[Array, Array]:
        air_time_f, _ = context.memory
        contact_f = feet_in_contact(context, self.sensors)
        air_time_f = air_time_f + context.dt
        # A foot that never left the ground has one step of air time here, and did not land.
        landed_after_f = jnp.where(contact_f & (air_time_f > 1.5 * context.dt), air_time_f, 0.0)
        return jnp.where(contact_f, 0.0, air_time_f), landed_after_f

    def __call__(self, context: Context) -> Float[Array, ""]:
        _, landed_after_f = context.memory
        earned_f = jnp.clip(landed_after_f, self.threshold_s, self.max_s) - self.threshold_s
        return jnp.sum(earned_f) * asks_to_move(context.command(self.command)) / context.dt


class AirTimeVariance(AbstractReward):
    """Variance over feet of their last swing times plus that of their last stance times, in s^2.

    0 while commanded to stand. sensors: names of touch sensors, one per foot. max_s: times are clipped
    to this, in s.
    """

    sensors: tuple[str, ...]
    command: str
    max_s: float = ranged(0.5, above=0.0)
    scale: float = -1.0

    def init(self, context: Context) -> tuple[Array, Array]:
        zeros_2f = jnp.zeros((2, len(self.sensors)))
        return zeros_2f, zeros_2f

    def update(self, context: Context) -> tuple[Array, Array]:
        lasting_2f, last_2f = context.memory
        contact_f = feet_in_contact(context, self.sensors)
        is_in_2f = jnp.stack([~contact_f, contact_f])
        ends_2f = ~is_in_2f & (lasting_2f > 0)
        return jnp.where(is_in_2f, lasting_2f + context.dt, 0.0), jnp.where(ends_2f, lasting_2f, last_2f)

    def __call__(self, context: Context) -> Float[Array, ""]:
        _, last_2f = context.memory
        variance = jnp.sum(jnp.var(jnp.minimum(last_2f, self.max_s), axis=1))
        return variance * asks_to_move(context.command(self.command))


class SingleSupport(AbstractReward):
    """1 while exactly one foot is down; while commanded to stand, 1 while all are.

    sensors: names of touch sensors, one per foot.
    """

    sensors: tuple[str, ...]
    command: str
    scale: float = 0.5

    def __call__(self, context: Context) -> Float[Array, ""]:
        num_down = jnp.sum(feet_in_contact(context, self.sensors))
        is_asked = asks_to_move(context.command(self.command))
        return (num_down == jnp.where(is_asked, 1, len(self.sensors))).astype(jnp.float32)


class FeetSlip(AbstractReward):
    """Squared horizontal velocity of feet in contact, in (m/s)^2, summed.

    sensors: names of touch sensors. sites: names of the feet's sites, in the same order; their velocity sensors are
    added to the model where it has none.
    """

    sensors: tuple[str, ...]
    sites: tuple[str, ...]
    scale: float = -0.25

    def __check_init__(self) -> None:
        check_pairs(self, self.sensors, self.sites)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_velocity_sensors(spec, self.sites)

    def __call__(self, context: Context) -> Float[Array, ""]:
        squared_f = jnp.sum(jnp.square(horizontal_velocity(context, self.sites)), axis=1)
        return jnp.sum(squared_f * feet_in_contact(context, self.sensors))


class ImpactForce(AbstractReward):
    """Excess of the contact forces of feet over `threshold`, in N, summed.

    sensors: names of touch sensors, one per foot. threshold: allowed force per foot, in N, such as the robot's weight.
    """

    sensors: tuple[str, ...]
    threshold: float = required(least=0.0)
    scale: float = -1e-3

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.maximum(context.sensors(self.sensors) - self.threshold, 0.0))


def feet_in_contact(context: Context, sensors: tuple[str, ...], threshold: float = 1.0) -> Bool[Array, " f"]:
    """Whether each foot's touch sensor reads more than `threshold`, in N."""
    return context.sensors(sensors) > threshold


def add_velocity_sensors(spec: mujoco.MjSpec, sites: tuple[str, ...]) -> None:
    """Adds to the model a sensor of each site's linear velocity in the world, where it has none."""
    for site in sites:
        find_in_spec(spec, "site", site)
        if spec.sensor(_velocity_sensor(site)) is None:
            spec.add_sensor(
                name=_velocity_sensor(site),
                type=mujoco.mjtSensor.mjSENS_FRAMELINVEL,
                objtype=mujoco.mjtObj.mjOBJ_SITE,
                objname=site,
            )


def horizontal_velocity(context: Context, sites: tuple[str, ...]) -> Float[Array, "f 2"]:
    """Horizontal velocity of sites in the world, in m/s, from the sensors that `add_velocity_sensors` adds."""
    return jnp.stack([context.sensor(_velocity_sensor(site))[:2] for site in sites])


def _velocity_sensor(site: str) -> str:
    return f"ksim_{site}_velocity"


def check_pairs(term: AbstractReward, sensors: tuple[str, ...], sites: tuple[str, ...]) -> None:
    """Raises ConfigError unless there are as many sensors as sites, one of each per foot."""
    if len(sensors) != len(sites):
        raise ConfigError(
            f"{type(term).__name__} has {len(sensors)} sensors and {len(sites)} sites. Name both for each foot."
        )
