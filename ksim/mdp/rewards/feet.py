"""Rewards of the gait: how feet lift, land and stand."""

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float

from ksim.mdp.rewards.base import AbstractReward, asks_to_move
from ksim.mdp.term import Context
from ksim.types import ConfigError, near_misses


class FeetAirTime(AbstractReward):
    """Seconds beyond `threshold_s` that a foot was in the air, paid when it lands, up to `max_s`.

    Nothing is paid while the command asks to stand. sensors: names of touch sensors, one per foot. threshold_s and
    max_s: seconds in the air that earn nothing, and beyond which nothing more is earned.
    """

    sensors: tuple[str, ...]
    command: str
    threshold_s: float = 0.2
    max_s: float = 0.5
    scale: float = 1.0

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
        is_asked = asks_to_move(context.command(self.command))
        return jnp.sum(earned_f) * is_asked / context.dt


class FeetPhase(AbstractReward):
    """Fraction of feet whose contact follows a clock, each down for `duty` of its turn.

    While the command asks to stand, the fraction of feet that are down. sensors: names of touch sensors, in the
    order of their phases. period_s: seconds per turn, as of the `PhaseClock` that the policy sees. offsets: by how
    much of a turn each foot is ahead of the clock; default evenly spread, so that two feet are half a turn apart.
    """

    sensors: tuple[str, ...]
    command: str
    period_s: float = 0.8
    duty: float = 0.55
    offsets: tuple[float, ...] | None = None
    scale: float = 1.0

    def __check_init__(self) -> None:
        if self.offsets is not None and len(self.offsets) != len(self.sensors):
            raise ConfigError(
                f"Offsets ({len(self.offsets)}) of FeetPhase must be as many as its sensors ({len(self.sensors)}). "
                "Give one per foot, in the same order."
            )

    def __call__(self, context: Context) -> Float[Array, ""]:
        num_feet = len(self.sensors)
        offset_f = jnp.arange(num_feet) / num_feet if self.offsets is None else jnp.asarray(self.offsets)
        phase_f = (context.episode_step * context.dt / self.period_s + offset_f) % 1.0
        is_asked = asks_to_move(context.command(self.command))
        should_be_down_f = (phase_f < self.duty) | ~is_asked
        return jnp.mean(feet_in_contact(context, self.sensors) == should_be_down_f)


class FeetSlip(AbstractReward):
    """Squared horizontal velocity, in (m/s)^2, of feet that are in contact, summed.

    sensors: names of touch sensors. sites: names of the feet's sites, in the same order; their velocity sensors are
    added to the model where it has none.
    """

    sensors: tuple[str, ...]
    sites: tuple[str, ...]
    scale: float = -0.25

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_velocity_sensors(spec, self.sites)

    def __call__(self, context: Context) -> Float[Array, ""]:
        squared_f = jnp.sum(jnp.square(_horizontal_velocity(context, self.sites)), axis=1)
        return jnp.sum(squared_f * feet_in_contact(context, self.sensors))


class FootClearance(AbstractReward):
    """Squared shortfall, in m^2, of the height of feet from `target`, weighted by their speed, in m/s, summed.

    A foot that moves fast must be high; one that rests may be low. sites: names of the feet's sites, whose height is
    above the world's origin, in m; their velocity sensors are added to the model where it has none.
    """

    needs = ("site_xpos",)
    sites: tuple[str, ...]
    target: float = 0.08
    scale: float = -2.0

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_velocity_sensors(spec, self.sites)

    def __call__(self, context: Context) -> Float[Array, ""]:
        indices = np.array([context.model.names.index("site", site) for site in self.sites])
        height_f = context.derived("site_xpos")[indices, 2]
        shortfall_f = jnp.square(jnp.maximum(self.target - height_f, 0.0))
        speed_f = jnp.linalg.norm(_horizontal_velocity(context, self.sites), axis=1)
        return jnp.sum(shortfall_f * speed_f)


class ImpactForce(AbstractReward):
    """Force, in N, by which the contact of feet exceeds `threshold`, summed.

    sensors: names of touch sensors, one per foot. threshold: N that a foot may press with, such as the robot's weight.
    """

    sensors: tuple[str, ...]
    threshold: float
    scale: float = -1e-3

    def __call__(self, context: Context) -> Float[Array, ""]:
        force_f = context.sensors(self.sensors)
        return jnp.sum(jnp.maximum(force_f - self.threshold, 0.0))


def feet_in_contact(context: Context, sensors: tuple[str, ...], threshold: float = 1.0) -> Bool[Array, " f"]:
    """Whether each foot's touch sensor reads more than `threshold`, in N."""
    return context.sensors(sensors) > threshold


def add_velocity_sensors(spec: mujoco.MjSpec, sites: tuple[str, ...]) -> None:
    """Adds to the model a sensor of each site's linear velocity in the world, where it has none."""
    for site in sites:
        if spec.site(site) is None:
            raise ConfigError(f"The model has no site {site!r}. {near_misses(site, [s.name for s in spec.sites])}")
        if spec.sensor(_velocity_sensor(site)) is None:
            spec.add_sensor(
                name=_velocity_sensor(site),
                type=mujoco.mjtSensor.mjSENS_FRAMELINVEL,
                objtype=mujoco.mjtObj.mjOBJ_SITE,
                objname=site,
            )


def _horizontal_velocity(context: Context, sites: tuple[str, ...]) -> Float[Array, "f 2"]:
    return jnp.stack([context.sensor(_velocity_sensor(site))[:2] for site in sites])


def _velocity_sensor(site: str) -> str:
    return f"ksim_{site}_velocity"
