"""Observations of a reference motion: its phase, and its coming frames.

`command` is the name of a `MotionCommand`. `steps` are control steps after the frame that the next action is to reach;
beyond the end of the clip they are its last frame. They need the motion alone and the state of joints and base, so
that a policy can be deployed with the clips that its metadata hold.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.checks import check_field
from ksim.mdp.commands.motion import motion_frame
from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import base_of_qpos, base_orientation, base_position
from ksim.physics.rotations import inverse_quaternion, multiply_quaternions, rotate, rotate_inverse


class MotionPhase(AbstractObservation):
    """Fraction of the clip that is over, from 0 at its first frame to 1 at its last."""

    command: str
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, ""]:
        command, frame = motion_frame(context, self.command)
        motions = command.motions
        first, last = (jnp.asarray(x)[jnp.asarray(motions.clip)[frame]] for x in (motions.first, motions.last))
        return (frame - first) / (last - first).astype(jnp.float32)


class MotionJoints(AbstractObservation):
    """Positions of joints in coming frames, relative to the default pose, in rad. `joints`: names, default all."""

    command: str
    steps: tuple[int, ...] = (0,)
    joints: tuple[str, ...] | None = None
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        _check_steps(self)

    def __call__(self, context: Context) -> Float[Array, "s j"]:
        places = context.model.names.joint_qpos(self.joints)
        return _frames(context, self.command, self.steps, "qpos")[:, places] - context.model.default_qpos[places]


class MotionJointVelocities(AbstractObservation):
    """Velocities of joints in coming frames, in rad/s. `joints`: names, default all."""

    command: str
    steps: tuple[int, ...] = (0,)
    joints: tuple[str, ...] | None = None
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        _check_steps(self)

    def __call__(self, context: Context) -> Float[Array, "s j"]:
        return _frames(context, self.command, self.steps, "qvel")[:, context.model.names.joint_qvel(self.joints)]


class MotionBasePosition(AbstractObservation):
    """Positions of the base in coming frames, relative to the robot's, in the robot's base frame, in m."""

    command: str
    steps: tuple[int, ...] = (0,)
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        _check_steps(self)

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        names, physics = context.model.names, context.physics
        position, quat = base_position(physics, names), base_orientation(physics, names)

        def seen(qpos: Array) -> Array:
            return rotate_inverse(base_of_qpos(context.model.names, qpos)[0] - position, quat)

        return jax.vmap(seen)(_frames(context, self.command, self.steps, "qpos"))


class MotionBaseOrientation(AbstractObservation):
    """Directions of the base's x and y axes in coming frames, in the robot's base frame: six numbers each.

    The first two columns of a rotation matrix, which is continuous (Zhou et al. 2019, arXiv:1812.07035).
    """

    command: str
    steps: tuple[int, ...] = (0,)
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        _check_steps(self)

    def __call__(self, context: Context) -> Float[Array, "s 6"]:
        back = inverse_quaternion(base_orientation(context.physics, context.model.names))

        def seen(qpos: Array) -> Array:
            turn = multiply_quaternions(back, base_of_qpos(context.model.names, qpos)[1])
            return jnp.concatenate([rotate(axis, turn) for axis in jnp.eye(3)[:2]])

        return jax.vmap(seen)(_frames(context, self.command, self.steps, "qpos"))


def _check_steps(term: AbstractObservation) -> None:
    steps: tuple[int, ...] = term.steps  # type: ignore[attr-defined]
    is_met = bool(steps) and all(isinstance(step, int) and step >= 0 for step in steps)
    check_field(term, "steps", is_met, "whole numbers, at least 0")


def _frames(context: Context, command: str, steps: tuple[int, ...], name: str) -> Float[Array, "s n"]:
    """Rows of the motion library in coming frames."""
    term, frame = motion_frame(context, command)
    return jnp.asarray(getattr(term.motions, name))[term.ahead(frame, jnp.array(steps))]
