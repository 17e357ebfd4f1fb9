"""Rewards for tracking a reference motion.

After BeyondMimic (Liao et al. 2025, arXiv:2508.08241) and DeepMimic (Peng et al. 2018, arXiv:1804.02717). `command` is
the name of a `MotionCommand`, `anchor` a body whose frame the others are compared in (default: the base), and `bodies`
are the names of those that count (default: all).
"""

from abc import abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.checks import check_range
from ksim.mdp.commands.motion import motion_frame
from ksim.mdp.motion import orientation_errors, position_errors, tracked_anchor, velocity_errors
from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import Context
from ksim.physics.rotations import angle_between


class AbstractMotionReward(AbstractReward):
    """1 where the robot is as in the reference, falling off as a Gaussian."""

    def __check_init__(self) -> None:
        check_range(self, "std", above=0.0)

    @abstractmethod
    def squared_error(self, context: Context) -> Float[Array, ""]:
        """The squared error, in the square of the unit of `std`."""

    def __call__(self, context: Context) -> Float[Array, ""]:
        std: float = self.std  # type: ignore[attr-defined]
        return jnp.exp(-self.squared_error(context) / (2 * std**2))


class TrackAnchorPosition(AbstractMotionReward):
    """1 when the anchor is at its reference in the world, falling off as a Gaussian.

    std: distance, in m, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xpos",)
    command: str
    anchor: str | None = None
    std: float = 0.2
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        tracked = tracked_anchor(context, self.command, self.anchor)
        return jnp.sum(jnp.square(context.derived("xpos")[tracked.body_n] - tracked.of_reference("body_pos")))


class TrackAnchorOrientation(AbstractMotionReward):
    """1 when the anchor is oriented as its reference in the world, falling off as a Gaussian.

    std: angle, in rad, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xquat",)
    command: str
    anchor: str | None = None
    std: float = 0.3
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        tracked = tracked_anchor(context, self.command, self.anchor)
        return jnp.square(
            angle_between(context.derived("xquat")[tracked.body_n][0], tracked.of_reference("body_quat")[0])
        )


class TrackBodyPositions(AbstractMotionReward):
    """1 when bodies are where their references are in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the distances, in m, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xpos", "xquat")
    command: str
    anchor: str | None = None
    bodies: tuple[str, ...] | None = None
    std: float = 0.2
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        error_n3 = position_errors(context, self.command, self.anchor, self.bodies)
        return jnp.mean(jnp.sum(jnp.square(error_n3), axis=1))


class TrackBodyOrientations(AbstractMotionReward):
    """1 when bodies are oriented as their references in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the angles, in rad, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xpos", "xquat")
    command: str
    anchor: str | None = None
    bodies: tuple[str, ...] | None = None
    std: float = 0.3
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        return jnp.mean(jnp.square(orientation_errors(context, self.command, self.anchor, self.bodies)))


class TrackBodyVelocities(AbstractMotionReward):
    """1 when bodies move as their references in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the velocity errors, in m/s, at which the reward has dropped to exp(-1/2).
    """

    needs = ("cvel", "subtree_com", "xpos", "xquat")
    command: str
    anchor: str | None = None
    bodies: tuple[str, ...] | None = None
    std: float = 0.7
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        error_n3 = velocity_errors(context, self.command, self.anchor, self.bodies, angular=False)
        return jnp.mean(jnp.sum(jnp.square(error_n3), axis=1))


class TrackBodyAngularVelocities(AbstractMotionReward):
    """1 when bodies turn as their references in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the errors, in rad/s, at which the reward has dropped to exp(-1/2).
    """

    needs = ("cvel", "subtree_com", "xpos", "xquat")
    command: str
    anchor: str | None = None
    bodies: tuple[str, ...] | None = None
    std: float = 2.2
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        error_n3 = velocity_errors(context, self.command, self.anchor, self.bodies, angular=True)
        return jnp.mean(jnp.sum(jnp.square(error_n3), axis=1))


class TrackMotionJoints(AbstractMotionReward):
    """1 when joints are where the motion has them, falling off as a Gaussian.

    joints: names, default all. std: root mean square of the joints' errors, in rad, at which the reward has dropped to
    exp(-1/2).
    """

    command: str
    joints: tuple[str, ...] | None = None
    std: float = 0.3
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        command, frame = motion_frame(context, self.command)
        places = context.model.names.joint_qpos(self.joints)
        wanted_j = jnp.asarray(command.motions.qpos)[frame, places]
        return jnp.mean(jnp.square(context.physics.qpos[places] - wanted_j))


class TrackMotionJointVelocities(AbstractMotionReward):
    """1 when joints move as in the motion, falling off as a Gaussian.

    joints: names, default all. std: root mean square of the joints' errors, in rad/s, at which the reward has dropped
    to exp(-1/2).
    """

    command: str
    joints: tuple[str, ...] | None = None
    std: float = 2.0
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        command, frame = motion_frame(context, self.command)
        places = context.model.names.joint_qvel(self.joints)
        wanted_j = jnp.asarray(command.motions.qvel)[frame, places]
        return jnp.mean(jnp.square(context.physics.qvel[places] - wanted_j))
