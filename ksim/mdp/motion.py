"""Errors of motion tracking: bodies relative to a reference, in the frame of an anchor.

Derived fields, and with them these errors, describe the state before the last physics substep.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.mdp.commands import MotionCommand, motion_frame
from ksim.mdp.observations.kinematics import velocity_at
from ksim.mdp.term import Context
from ksim.physics.rotations import angle_between, inverse_quaternion, multiply_quaternions, turn_by, yaw_of


class AnchorFrame(NamedTuple):
    """The pose of an anchor body's reference after the motion is moved to the robot.

    The motion is moved horizontally so that the anchors are above each other, and turned about the vertical by the yaw
    between them; its heights stay. So what is left of a body's error is its pose, not how far the robot has drifted.

    Attributes:
        position: Of the robot's anchor in the world, in m, but at the reference's height.
        origin: Of the reference's anchor in the world, in m.
        yaw: By how much the reference is turned, in rad.
    """

    position: Float[Array, "3"]
    origin: Float[Array, "3"]
    yaw: Float[Array, ""]


class TrackedBodies(NamedTuple):
    """Bodies of the robot and of the reference, at one step.

    Attributes:
        body_n: The bodies' places in the model.
        frame: The frame that was commanded.
    """

    body_n: np.ndarray
    command: MotionCommand
    frame: Array

    def of_reference(self, name: str) -> Float[Array, "n k"]:
        """An array of the motion library in this frame, for these bodies."""
        return jnp.asarray(getattr(self.command.motions, name))[self.frame, self.body_n]


def tracked_bodies(context: Context, command: str, bodies: tuple[str, ...] | None) -> TrackedBodies:
    """The bodies of a reference that are tracked; None for all but the world."""
    names = context.model.names
    body_n = np.arange(1, context.model.mj_model.nbody)
    if bodies is not None:
        body_n = np.array([names.index("body", body) for body in bodies])
    return TrackedBodies(body_n, *motion_frame(context, command))


def tracked_anchor(context: Context, command: str, anchor: str | None) -> TrackedBodies:
    """The anchor alone; None for the base."""
    names = context.model.names
    body = names.base_body() if anchor is None else names.index("body", anchor)
    return TrackedBodies(np.array([body]), *motion_frame(context, command))


def anchor_frame(context: Context, command: str, anchor: str | None) -> AnchorFrame:
    """The frame of an anchor body; None for the base."""
    tracked = tracked_anchor(context, command, anchor)
    (position,), (quat,) = context.derived("xpos")[tracked.body_n], context.derived("xquat")[tracked.body_n]
    (origin,), (wanted,) = tracked.of_reference("body_pos"), tracked.of_reference("body_quat")
    # The yaw between them, not between their headings: those of a robot that lies down mean nothing.
    yaw = yaw_of(multiply_quaternions(quat, inverse_quaternion(wanted)))
    return AnchorFrame(jnp.append(position[:2], origin[2]), origin, yaw)


def position_errors(
    context: Context, command: str, anchor: str | None, bodies: tuple[str, ...] | None
) -> Float[Array, "n 3"]:
    """Positions of bodies relative to where the reference has them in the anchor's frame, in m."""
    frame, tracked = anchor_frame(context, command, anchor), tracked_bodies(context, command, bodies)
    wanted_n3 = frame.position + turn_by(tracked.of_reference("body_pos") - frame.origin, frame.yaw)
    return context.derived("xpos")[tracked.body_n] - wanted_n3


def orientation_errors(
    context: Context, command: str, anchor: str | None, bodies: tuple[str, ...] | None
) -> Float[Array, " n"]:
    """Angles between bodies and their references in the anchor's frame, in rad."""
    yaw, tracked = anchor_frame(context, command, anchor).yaw, tracked_bodies(context, command, bodies)
    turn = jnp.array([1.0, 0, 0, 0]) * jnp.cos(yaw / 2) + jnp.array([0, 0, 0, 1.0]) * jnp.sin(yaw / 2)
    wanted_n4 = jax.vmap(lambda quat: multiply_quaternions(turn, quat))(tracked.of_reference("body_quat"))
    return jax.vmap(angle_between)(context.derived("xquat")[tracked.body_n], wanted_n4)


def velocity_errors(
    context: Context, command: str, anchor: str | None, bodies: tuple[str, ...] | None, *, angular: bool
) -> Float[Array, "n 3"]:
    """Velocities of bodies in the world, less those of their references in the anchor's frame, in m/s or rad/s."""
    yaw, tracked = anchor_frame(context, command, anchor).yaw, tracked_bodies(context, command, bodies)
    wanted_n3 = turn_by(tracked.of_reference("body_ang_vel" if angular else "body_lin_vel"), yaw)
    if angular:
        return context.derived("cvel")[tracked.body_n, :3] - wanted_n3
    return velocity_at(context, context.derived("xpos")[tracked.body_n], tracked.body_n) - wanted_n3
