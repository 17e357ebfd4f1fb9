"""Observations of the model's sensors."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context


class SensorReading(AbstractObservation):
    """Readings of a named sensor, in its own unit and frame."""

    sensor: str
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.sensor(self.sensor)


class FootForce(AbstractObservation):
    """Contact force on each foot, in N. sensors: names of touch sensors, one per foot."""

    sensors: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " f"]:
        return context.sensors(self.sensors)


class FootAirTime(AbstractObservation):
    """Time that each foot has been in the air, in s; 0 in contact.

    sensors: names of touch sensors, one per foot. threshold: force, in N, above which a foot is in contact.
    """

    sensors: tuple[str, ...]
    threshold: float = 1.0
    noise: AbstractNoise | None = None

    def init(self, context: Context) -> Float[Array, " f"]:
        return jnp.zeros(len(self.sensors))

    def update(self, context: Context) -> Float[Array, " f"]:
        force_f = context.sensors(self.sensors)
        return jnp.where(force_f > self.threshold, 0.0, context.memory + context.dt)

    def __call__(self, context: Context) -> Float[Array, " f"]:
        return context.memory


class FootContact(AbstractObservation):
    """1 for each foot in contact, else 0.

    sensors: names of touch sensors, one per foot. threshold: force, in N, above which a foot is in contact.
    """

    sensors: tuple[str, ...]
    threshold: float = 1.0
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, " f"]:
        force_f = context.sensors(self.sensors)
        return (force_f > self.threshold).astype(force_f.dtype)
