"""Ends of episodes."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Bool, Float

from ksim.checks import ranged, required
from ksim.errors import ConfigError
from ksim.mdp.commands import motion_frame
from ksim.mdp.contacts import add_contact_sensors, check_parts, contact_forces
from ksim.mdp.motion import position_errors
from ksim.mdp.term import Context, Term
from ksim.physics.names import base_of_qpos
from ksim.physics.rotations import angle_between, rotate_inverse


class AbstractTermination(Term):
    """A condition that ends an episode.

    Attributes:
        truncates: True truncates the episode, so the value of the next state is bootstrapped (a time limit). False
            terminates it (a fall).
    """

    truncates: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, context: Context) -> Bool[Array, ""]:
        """Whether the episode ends here."""


class TimeLimit(AbstractTermination):
    """The episode has lasted `seconds`; it is truncated."""

    truncates = True
    seconds: float = ranged(20.0, above=0.0)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return context.episode_step >= round(self.seconds / context.dt)


class BaseTooLow(AbstractTermination):
    """The base is lower than `height`, in m above the ground."""

    height: float

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return context.height_above_ground(context.base.position) < self.height


class BaseTooHigh(AbstractTermination):
    """The base is higher than `height`, in m above the ground, such as when thrown into the air."""

    height: float

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return context.height_above_ground(context.base.position) > self.height


class BaseTooFast(AbstractTermination):
    """The base moves faster than `max_lin_vel`, in m/s, or turns faster than `max_ang_vel`, in rad/s."""

    max_lin_vel: float = ranged(10.0, above=0.0)
    max_ang_vel: float = ranged(20.0, above=0.0)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        is_too_fast = jnp.linalg.norm(context.base.lin_vel_world) > self.max_lin_vel
        return is_too_fast | (jnp.linalg.norm(context.base.ang_vel_body) > self.max_ang_vel)


class TooFar(AbstractTermination):
    """The base is farther than `distance`, in m, from the world's origin, horizontally; the episode is truncated."""

    truncates = True
    distance: float = required(above=0.0)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return jnp.linalg.norm(context.base.position[:2]) > self.distance


class FarFromStart(AbstractTermination):
    """The base is farther than `distance`, in m, from where its episode began, horizontally; the episode is truncated.

    With half the side of a tile, an environment of `TerrainCurriculum` moves up as soon as its robot has crossed.
    """

    truncates = True
    distance: float = required(above=0.0)

    def init(self, context: Context) -> Float[Array, "2"]:
        return context.base.position[:2]

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return jnp.linalg.norm(context.base.position[:2] - context.memory) > self.distance


class OffTerrain(AbstractTermination):
    """The base is within `margin`, in m, of the edge of the heightfield, or beyond it; the episode is truncated."""

    truncates = True
    margin: float = ranged(1.0, least=0.0)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        half_size = context.model.ground.half_size
        if half_size is None:
            raise ConfigError("OffTerrain needs a heightfield. Define get_terrain, or leave the term out.")
        position_2 = context.base.position[:2]
        return jnp.any(jnp.abs(position_2 - context.model.ground.center) > half_size - self.margin)


class JointOutOfRange(AbstractTermination):
    """A joint is more than `margin`, in rad, beyond its limits. `joints`: names, default all."""

    joints: tuple[str, ...] | None = None
    margin: float = ranged(0.1, least=0.0)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        names = context.model.names
        low, high = names.joint_range(self.joints).T
        position_j = context.physics.qpos[names.joint_qpos(self.joints)]
        return jnp.any((position_j < low - self.margin) | (position_j > high + self.margin))


class JointTooFast(AbstractTermination):
    """A joint moves faster than `max_vel`, in rad/s. `joints`: names, default all."""

    max_vel: float = required(above=0.0)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Bool[Array, ""]:
        velocity_j = context.physics.qvel[context.model.names.joint_qvel(self.joints)]
        return jnp.any(jnp.abs(velocity_j) > self.max_vel)


class BodyContact(AbstractTermination):
    """A part that must not touch anything has a contact force above `threshold`, in N.

    bodies: names; a body counts with its own geoms. geoms: names. Contact sensors are added to the model.
    """

    bodies: tuple[str, ...] = ()
    geoms: tuple[str, ...] = ()
    threshold: float = ranged(1.0, least=0.0)

    def __check_init__(self) -> None:
        check_parts(self)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_contact_sensors(spec, self.bodies, self.geoms)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return jnp.any(contact_forces(context, self.bodies, self.geoms) > self.threshold)


class SensorAbove(AbstractTermination):
    """A sensor reads more than `threshold` in any component, such as a touch sensor on the trunk."""

    sensor: str
    threshold: float = 1.0

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return jnp.any(context.sensor(self.sensor) > self.threshold)


class BaseTilted(AbstractTermination):
    """The base is tilted by more than `max_tilt`, in rad, from the vertical."""

    max_tilt: float = ranged(1.0, above=0.0, most=math.pi)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        gravity_3 = rotate_inverse(jnp.array([0.0, 0.0, -1.0]), context.base.orientation)
        return -gravity_3[2] < jnp.cos(self.max_tilt)


class MotionEnded(AbstractTermination):
    """The motion has reached the last frame of its clip; the episode is truncated. `command`: a MotionCommand."""

    truncates = True
    command: str

    def __call__(self, context: Context) -> Bool[Array, ""]:
        command, frame = motion_frame(context, self.command)
        return jnp.any(frame == jnp.asarray(command.motions.last))


class BaseOffMotion(AbstractTermination):
    """The base is farther than `distance`, in m, from the motion's base, or turned from it by more than `max_angle`.

    command: a MotionCommand. distance: in the world. max_angle: between the orientations, in rad.
    """

    command: str
    distance: float = ranged(0.5, above=0.0)
    max_angle: float = ranged(1.0, above=0.0, most=math.pi)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        command, frame = motion_frame(context, self.command)
        position, quat = base_of_qpos(context.model.names, jnp.asarray(command.motions.qpos)[frame])
        off_m = jnp.linalg.norm(context.base.position - position)
        return (off_m > self.distance) | (angle_between(context.base.orientation, quat) > self.max_angle)


class BodyOffMotion(AbstractTermination):
    """A body is farther than `distance`, in m, from its position in the motion, both in the frame of the anchor.

    command: a MotionCommand. bodies: names, default all. anchor: name of a body, default the base.
    """

    needs = ("xpos", "xquat")
    command: str
    bodies: tuple[str, ...] | None = None
    anchor: str | None = None
    distance: float = ranged(0.4, above=0.0)

    def __call__(self, context: Context) -> Bool[Array, ""]:
        error_n3 = position_errors(context, self.command, self.anchor, self.bodies)
        return jnp.any(jnp.linalg.norm(error_n3, axis=1) > self.distance)


class Custom(AbstractTermination):
    """A function of the context is true.

    function: pure, from the `Context` of one env to a boolean scalar. truncates: whether the episode is truncated.
    needs: derived fields of the physics state that the function reads, besides sensordata.
    """

    function: Callable[[Context], Bool[Array, ""]]
    truncates: bool = eqx.field(default=False, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    needs: tuple[str, ...] = eqx.field(default=(), kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]

    def __call__(self, context: Context) -> Bool[Array, ""]:
        return self.function(context)
