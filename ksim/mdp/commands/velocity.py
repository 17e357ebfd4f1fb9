"""Velocity commands."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.checks import check_range
from ksim.mdp.commands.base import AbstractDrawnCommand, Range
from ksim.mdp.term import Context
from ksim.physics.names import base_ang_vel_world, base_heading_velocity, base_orientation
from ksim.physics.rotations import wrap_angle, yaw_of
from ksim.types import Metrics


class VelocityCommand(AbstractDrawnCommand):
    """Forward and leftward velocity, in m/s, and yaw rate, in rad/s, in the robot's level heading frame.

    Drawn uniformly from the ranges every `resample_s` seconds (a range); with probability `standing_fraction` the
    command is to stand. With probability `heading_fraction` a moving command has a heading in the world, drawn from
    `heading`, in rad: its yaw rate is `heading_stiffness`, in 1/s, times the heading error, within `yaw_rate`.
    max_lin_acceleration, in m/s^2, and max_yaw_acceleration, in rad/s^2, limit how fast the command approaches the
    drawn value, from standing at the start of an episode; None for no limit.
    """

    forward: Range = (0.0, 1.0)
    leftward: Range = (-0.3, 0.3)
    yaw_rate: Range = (-0.5, 0.5)
    resample_s: Range = (4.0, 8.0)
    standing_fraction: float = 0.1
    heading_fraction: float = 0.0
    heading: Range = (-math.pi, math.pi)
    heading_stiffness: float = 0.5
    max_lin_acceleration: float | None = None
    max_yaw_acceleration: float | None = None

    def __check_init__(self) -> None:
        for field in ("forward", "leftward", "yaw_rate", "heading"):
            check_range(self, field)
        for field in ("standing_fraction", "heading_fraction"):
            check_range(self, field, least=0.0, most=1.0)
        check_range(self, "heading_stiffness", above=0.0)
        for field in ("max_lin_acceleration", "max_yaw_acceleration"):
            if getattr(self, field) is not None:
                check_range(self, field, above=0.0)

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, " d"]:
        low, high = jnp.array([self.forward, self.leftward, self.yaw_rate, (0.0, 1.0)]).T
        drawn_4: Array = jax.random.uniform(key, (4,), minval=low, maxval=high)
        is_standing = drawn_4[3] < self.standing_fraction
        drawn_3 = jnp.where(is_standing, 0.0, drawn_4[:3])
        if self.heading_fraction == 0.0:
            return drawn_3
        # Drawn with another key, so that velocities are the same as without headings.
        low, high = jnp.array([self.heading, (0.0, 1.0)]).T
        heading, share = jax.random.uniform(jax.random.fold_in(key, 0), (2,), minval=low, maxval=high)
        has_heading = (share < self.heading_fraction) & ~is_standing
        return jnp.stack([*drawn_3, heading, has_heading.astype(jnp.float32)])

    def follow(
        self, drawn: Float[Array, " d"], before: Float[Array, "3"] | None, context: Context
    ) -> Float[Array, "3"]:
        target_3 = drawn[:3]
        if self.heading_fraction > 0.0:
            error = wrap_angle(drawn[3] - yaw_of(base_orientation(context.physics, context.model.names)))
            yaw_rate = jnp.clip(self.heading_stiffness * error, *self.yaw_rate)
            target_3 = jnp.stack([drawn[0], drawn[1], jnp.where(drawn[4] > 0, yaw_rate, drawn[2])])
        start_3 = jnp.zeros(3) if before is None else before
        return jnp.concatenate(
            [
                _towards(target_3[:2], start_3[:2], self.max_lin_acceleration, context.dt),
                _towards(target_3[2:], start_3[2:], self.max_yaw_acceleration, context.dt),
            ]
        )

    def ranges(self) -> dict[str, Range]:
        return {"forward, m/s": self.forward, "leftward, m/s": self.leftward, "yaw rate, rad/s": self.yaw_rate}

    def mirrored(self, command: Float[Array, "3"]) -> Float[Array, "3"]:
        return command * jnp.array([1.0, -1.0, -1.0])

    def errors(self, context: Context, command: Float[Array, "3"]) -> Metrics:
        names = context.model.names
        lin_vel_3 = base_heading_velocity(context.physics, names)
        yaw_rate = base_ang_vel_world(context.physics, names)[2]
        return {
            "lin_vel_m_s": jnp.linalg.norm(lin_vel_3[:2] - command[:2]),
            "yaw_rate_rad_s": jnp.abs(yaw_rate - command[2]),
        }


def _towards(
    target_n: Float[Array, " n"], before_n: Float[Array, " n"], max_rate: float | None, dt: float
) -> Float[Array, " n"]:
    """`before` moved towards `target`, straight, by no more than `max_rate` allows in `dt` seconds."""
    if max_rate is None:
        return target_n
    step_n = target_n - before_n
    distance = jnp.linalg.norm(step_n)
    return jnp.where(
        distance <= max_rate * dt, target_n, before_n + step_n * max_rate * dt / jnp.maximum(distance, 1e-9)
    )
