"""What happens to a robot during an episode."""

from abc import abstractmethod

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ksim.mdp.term import Context, Term, check_range
from ksim.physics.names import add_to_base_velocity
from ksim.types import PhysicsState


class AbstractEvent(Term):
    """A change to the physics state, before the substeps of a control step."""

    @abstractmethod
    def __call__(self, context: Context) -> PhysicsState:
        """The state with the change, or as it was."""


class PushVelocity(AbstractEvent):
    """Every `interval_s` seconds (a range) the base's horizontal velocity jumps by `speed` (a range), in m/s.

    The direction is uniform.
    """

    interval_s: tuple[float, float] = (5.0, 10.0)
    speed: tuple[float, float] = (0.0, 0.5)

    def __check_init__(self) -> None:
        check_range(self, "interval_s", above=0.0)
        check_range(self, "speed", least=0.0)

    def init(self, context: Context) -> tuple[Array, Array]:
        return self._draw_interval(context.key), jnp.bool_(False)

    def update(self, context: Context) -> tuple[Array, Array]:
        seconds_left, _ = context.memory
        # Within half a step, or rounding would put a whole number of steps one off.
        is_due = seconds_left < 1.5 * context.dt
        interval_key, _ = jax.random.split(context.key)
        seconds_left = jnp.where(is_due, self._draw_interval(interval_key), seconds_left - context.dt)
        return seconds_left, is_due

    def __call__(self, context: Context) -> PhysicsState:
        _, is_due = context.memory
        _, push_key = jax.random.split(context.key)
        low, high = jnp.array([self.speed, (-jnp.pi, jnp.pi)]).T
        speed, angle = jax.random.uniform(push_key, (2,), minval=low, maxval=high)
        push_3 = speed * jnp.stack([jnp.cos(angle), jnp.sin(angle), jnp.zeros(())])
        return add_to_base_velocity(context.physics, context.model.names, is_due * push_3, jnp.zeros(3))

    def _draw_interval(self, key: PRNGKeyArray) -> Array:
        low, high = self.interval_s
        return jax.random.uniform(key, minval=low, maxval=high)
