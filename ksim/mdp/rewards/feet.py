"""Rewards for feet on the ground: air time, slip and contact forces."""

import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Bool, Float

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.rewards.base import AbstractReward, asks_to_move
from ksim.mdp.term import Context
from ksim.physics.names import find_in_spec


class FeetAirTime(AbstractReward):
    """Air time of a foot beyond `threshold_s`, up to `max_s`, in s, paid when it lands.

    Nothing is paid while the command is to stand. sensors: names of touch sensors, one per foot. threshold_s and
    max_s: air times at which the reward starts and stops growing.
    """

    sensors: tuple[str, ...]
    command: str
    threshold_s: float = 0.2
    max_s: float = 0.5
    scale: float = 1.0

    def __check_init__(self) -> None:
        check_range(self, "threshold_s", least=0.0)
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
        is_asked = asks_to_move(context.command(self.command))
        return jnp.sum(earned_f) * is_asked / context.dt


class AirTimeVariance(AbstractReward):
    """Variance over feet of their last swing times plus that of their last stance times, in s^2.

    0 while the command is to stand. sensors: names of touch sensors, one per foot. max_s: times are clipped
    to this, in s.
    """

    sensors: tuple[str, ...]
    command: str
    max_s: float = 0.5
    scale: float = -1.0

    def __check_init__(self) -> None:
        check_range(self, "max_s", above=0.0)

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
    """1 while exactly one foot is down; while the command is to stand, 1 while all are.

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
    threshold: float
    scale: float = -1e-3

    def __check_init__(self) -> None:
        check_range(self, "threshold", least=0.0)

    def __call__(self, context: Context) -> Float[Array, ""]:
        force_f = context.sensors(self.sensors)
        return jnp.sum(jnp.maximum(force_f - self.threshold, 0.0))


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
