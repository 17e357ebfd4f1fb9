"""Events during an episode, such as pushes."""

import dataclasses
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ksim.checks import check_range, check_ranges, check_rule, ranged
from ksim.errors import ConfigError
from ksim.mdp.randomizers import with_added_mass
from ksim.mdp.term import Context, Term
from ksim.physics.names import add_to_base_velocity
from ksim.types import Overrides, PhysicsState

Timer = tuple[Float[Array, ""], Bool[Array, ""]]
"""Seconds until the next event, and whether it happens in this step."""


class AbstractEvent(Term):
    """A change to the physics state, before the substeps of a control step."""

    @abstractmethod
    def __call__(self, context: Context) -> PhysicsState:
        """The state with the change, or the unchanged state."""

    def overrides(self, context: Context) -> Overrides:
        """Whole model fields that this event changes, by name, at a reset and at every step. None by default."""
        return {}


class AbstractTimedEvent(AbstractEvent):
    """An event that repeats.

    Attributes:
        interval_s: Range of the seconds between two events, drawn uniformly.
    """

    interval_s: eqx.AbstractVar[tuple[float, float]]

    def __check_init__(self) -> None:
        check_range(self, "interval_s", above=0.0)

    def init(self, context: Context) -> Timer:
        return _start_timer(context.key, self.interval_s)

    def update(self, context: Context) -> Timer:
        interval_key, _ = jax.random.split(context.key)
        return _advance_timer(context.memory, interval_key, self.interval_s, context.dt)


class PushVelocity(AbstractTimedEvent):
    """Every `interval_s` seconds (a range) the base's horizontal velocity jumps by `speed` (a range), in m/s.

    The direction is uniform. level: name of a curriculum that scales the speed; None for none.
    """

    interval_s: tuple[float, float] = (5.0, 10.0)
    speed: tuple[float, float] = ranged((0.0, 0.5), least=0.0)
    level: str | None = None

    def __call__(self, context: Context) -> PhysicsState:
        _, is_due = context.memory
        _, push_key = jax.random.split(context.key)
        push_3 = _horizontal(push_key, self.speed)
        if self.level is not None:
            push_3 *= context.level(self.level)
        return add_to_base_velocity(context.physics, context.model.names, is_due * push_3, jnp.zeros(3))


class PushForce(AbstractEvent):
    """Every `interval_s` seconds (a range) a horizontal force acts on a body's centre of mass for `duration_s`.

    It acts for at least one control step. force: its range, in N; the direction is uniform. body: the name of the body.
    """

    applies = ("xfrc_applied",)
    body: str
    interval_s: tuple[float, float] = ranged((5.0, 10.0), above=0.0)
    duration_s: float = 0.2
    force: tuple[float, float] = ranged((0.0, 50.0), least=0.0)

    def __check_init__(self) -> None:
        check_ranges(self)
        shortest = self.interval_s[0]
        rule = f"positive and at most the shortest of interval_s ({shortest})"
        check_rule(f"PushForce's duration_s ({self.duration_s})", 0 < self.duration_s <= shortest, rule)

    def init(self, context: Context) -> tuple[Timer, Array, Array]:
        return _start_timer(context.key, self.interval_s), jnp.zeros(3), jnp.zeros(())

    def update(self, context: Context) -> tuple[Timer, Array, Array]:
        timer, force_3, seconds_left = context.memory
        interval_key, push_key = jax.random.split(context.key)
        timer = _advance_timer(timer, interval_key, self.interval_s, context.dt)
        _, is_due = timer
        seconds_left = jnp.where(is_due, max(self.duration_s, context.dt), seconds_left - context.dt)
        return timer, jnp.where(is_due, _horizontal(push_key, self.force), force_3), seconds_left

    def __call__(self, context: Context) -> PhysicsState:
        _, force_3, seconds_left = context.memory
        index = context.model.names.index("body", self.body)
        if index == 0:
            raise ConfigError("Body 'world' cannot be pushed. Name a body of the robot.")
        is_pushed = seconds_left > 0.5 * context.dt
        applied = context.physics.applied
        xfrc_b6 = applied["xfrc_applied"].at[index, :3].add(is_pushed * force_3)
        return dataclasses.replace(context.physics, applied=applied | {"xfrc_applied": xfrc_b6})


class MassDrop(AbstractEvent):
    """The robot starts with a load on a body and drops it after a random time.

    body: the name of the body; the load sits at its centre of mass. mass: range of the load, in kg. after_s: range of
    seconds after which it drops.
    """

    body: str
    mass: tuple[float, float] = ranged((0.0, 3.0), least=0.0)
    after_s: tuple[float, float] = ranged((2.0, 10.0), above=0.0)

    def init(self, context: Context) -> tuple[Array, Array, Array]:
        mass_key, time_key = jax.random.split(context.key)
        load = jax.random.uniform(mass_key, minval=self.mass[0], maxval=self.mass[1])
        seconds_left = jax.random.uniform(time_key, minval=self.after_s[0], maxval=self.after_s[1])
        return load, seconds_left, load

    def update(self, context: Context) -> tuple[Array, Array, Array]:
        load, seconds_left, _ = context.memory
        seconds_left = seconds_left - context.dt
        is_due = (seconds_left < 0.5 * context.dt) & (load > 0)
        return jnp.where(is_due, 0.0, load), seconds_left, jnp.where(is_due, -load, 0.0)

    def overrides(self, context: Context) -> Overrides:
        _, _, added_mass = context.memory
        return with_added_mass(context, self.body, added_mass)

    def __call__(self, context: Context) -> PhysicsState:
        return context.physics


def _start_timer(key: PRNGKeyArray, interval_s: tuple[float, float]) -> Timer:
    """A timer with a time drawn from a range, in s."""
    return jax.random.uniform(key, minval=interval_s[0], maxval=interval_s[1]), jnp.bool_(False)


def _advance_timer(timer: Timer, key: PRNGKeyArray, interval_s: tuple[float, float], dt: float) -> Timer:
    """The timer one control step of `dt` seconds later; drawn anew where it is due."""
    seconds_left, _ = timer
    # Within half a step, or rounding would put a whole number of steps one off.
    is_due = seconds_left < 1.5 * dt
    drawn, _ = _start_timer(key, interval_s)
    return jnp.where(is_due, drawn, seconds_left - dt), is_due


def _horizontal(key: PRNGKeyArray, magnitude: tuple[float, float]) -> Float[Array, "3"]:
    """A horizontal vector of a magnitude drawn from a range, in a uniform direction."""
    low, high = jnp.array([magnitude, (-jnp.pi, jnp.pi)]).T
    length, angle = jax.random.uniform(key, (2,), minval=low, maxval=high)
    return length * jnp.stack([jnp.cos(angle), jnp.sin(angle), jnp.zeros(())])
