"""Rewards for following commands and reference motions."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.checks import ranged
from ksim.errors import ConfigError
from ksim.mdp.commands import motion_frame
from ksim.mdp.motion import orientation_errors, position_errors, tracked_anchor, velocity_errors
from ksim.mdp.rewards.base import AbstractGaussianReward, AbstractReward, asks_to_move
from ksim.mdp.term import Context
from ksim.physics.rotations import angle_between, roll_pitch_of, wrap_angle, yaw_of


class TrackLinearVelocity(AbstractGaussianReward):
    """1 when the horizontal velocity meets the command, falling off as a Gaussian.

    The velocity is the base's, in the level frame that shares its heading; the command's first two components are
    its forward and leftward targets, in m/s. std: error, in m/s, at which the reward has dropped to exp(-1/2).
    """

    command: str
    std: float = ranged(0.25, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(jnp.square(context.base.heading_velocity[:2] - context.command(self.command)[:2]))


class TrackHeading(AbstractGaussianReward):
    """1 when the base's heading meets the command, falling off as a Gaussian.

    The command's first component is the heading in the world, in rad: 0 along the x axis. std: error, in rad, at
    which the reward has dropped to exp(-1/2); errors are in [-pi, pi].
    """

    command: str
    std: float = ranged(0.5, above=0.0)
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        return jnp.square(wrap_angle(yaw_of(context.base.orientation) - context.command(self.command)[0]))


class TrackHeight(AbstractGaussianReward):
    """1 when the base's height meets the command, falling off as a Gaussian.

    The command's first component is the height above the ground, in m. std: error, in m, at which the reward
    has dropped to exp(-1/2).
    """

    command: str
    std: float = ranged(0.05, above=0.0)
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        height = context.height_above_ground(context.base.position)
        return jnp.square(height - context.command(self.command)[0])


class StandStill(AbstractReward):
    """Sum of the distances of joints from the default pose, in rad, while commanded to stand; else 0.

    command: a velocity command. joints: names, default all.
    """

    command: str
    joints: tuple[str, ...] | None = None
    scale: float = -0.2

    def __call__(self, context: Context) -> Float[Array, ""]:
        places = context.model.names.joint_qpos(self.joints)
        distance_j = jnp.abs(context.physics.qpos[places] - context.model.default_qpos[places])
        return jnp.where(asks_to_move(context.command(self.command)), 0.0, jnp.sum(distance_j))


class TrackYawRate(AbstractGaussianReward):
    """1 when the yaw rate meets the command, falling off as a Gaussian.

    The command's third component is the yaw rate about the vertical, in rad/s. std: error, in rad/s, at which the
    reward has dropped to exp(-1/2).
    """

    command: str
    std: float = ranged(0.25, above=0.0)
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        return jnp.square(context.base.ang_vel_world[2] - context.command(self.command)[2])


class TrackRollPitch(AbstractGaussianReward):
    """1 when roll and pitch of the base meet the command, falling off as a Gaussian.

    The command's first two components are roll (to the right) and pitch (nose down), in rad. std: error, in rad, at
    which the reward has dropped to exp(-1/2).
    """

    command: str
    std: float = ranged(0.2, above=0.0)
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        error_2 = wrap_angle(roll_pitch_of(context.base.orientation) - context.command(self.command)[:2])
        return jnp.sum(jnp.square(error_2))


class TrackJointPose(AbstractGaussianReward):
    """1 when joint positions meet the command, falling off as a Gaussian.

    The command's components are the positions of `joints` (names, default all), in rad, in their order. std: root mean
    square of the joints' errors, in rad, at which the reward has dropped to exp(-1/2).
    """

    command: str
    joints: tuple[str, ...] | None = None
    std: float = ranged(0.3, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        position_j = context.physics.qpos[context.model.names.joint_qpos(self.joints)]
        target_j = _of_size(context, self.command, position_j.size, "one for each joint")
        return jnp.mean(jnp.square(position_j - target_j))


class TrackPosition(AbstractGaussianReward):
    """1 when the position of a site meets the command, falling off as a Gaussian, as for a reaching hand.

    The command is the site's position relative to the base, in the base's frame, in m; for a robot without a free
    joint, in the world. std: distance, in m, at which the reward has dropped to exp(-1/2).
    """

    needs = ("site_xpos",)
    command: str
    site: str
    std: float = ranged(0.1, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        names = context.model.names
        site_3 = context.derived("site_xpos")[names.index("site", self.site)]
        position_3 = context.base.relative_or_world(site_3)
        return jnp.sum(jnp.square(position_3 - _of_size(context, self.command, 3, "x, y and z")))


def _of_size(context: Context, command: str, size: int, what: str) -> Float[Array, " n"]:
    value = context.command(command)
    if value.shape != (size,):
        raise ConfigError(f"Command {command!r} must have {size} components ({what}), but has shape {value.shape}.")
    return value


class _TrackAnchor(AbstractGaussianReward):
    """Tracking of one body of a motion. `command`: a `MotionCommand`. `anchor`: the body, default the base."""

    command: str
    anchor: str | None = None


class _TrackBodies(_TrackAnchor):
    """Tracking of bodies of a motion in the frame of the anchor. `bodies`: names, default all."""

    bodies: tuple[str, ...] | None = None


class TrackAnchorPosition(_TrackAnchor):
    """1 when the anchor is at its reference in the world, falling off as a Gaussian.

    std: distance, in m, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xpos",)
    std: float = ranged(0.2, above=0.0)
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        tracked = tracked_anchor(context, self.command, self.anchor)
        return jnp.sum(jnp.square(context.derived("xpos")[tracked.body_n] - tracked.of_reference("body_pos")))


class TrackAnchorOrientation(_TrackAnchor):
    """1 when the anchor is oriented as its reference in the world, falling off as a Gaussian.

    std: angle, in rad, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xquat",)
    std: float = ranged(0.3, above=0.0)
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        tracked = tracked_anchor(context, self.command, self.anchor)
        return jnp.square(
            angle_between(context.derived("xquat")[tracked.body_n][0], tracked.of_reference("body_quat")[0])
        )


class TrackBodyPositions(_TrackBodies):
    """1 when bodies are where their references are in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the distances, in m, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xpos", "xquat")
    std: float = ranged(0.2, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        error_n3 = position_errors(context, self.command, self.anchor, self.bodies)
        return jnp.mean(jnp.sum(jnp.square(error_n3), axis=1))


class TrackBodyOrientations(_TrackBodies):
    """1 when bodies are oriented as their references in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the angles, in rad, at which the reward has dropped to exp(-1/2).
    """

    needs = ("xpos", "xquat")
    std: float = ranged(0.3, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        return jnp.mean(jnp.square(orientation_errors(context, self.command, self.anchor, self.bodies)))


class TrackBodyVelocities(_TrackBodies):
    """1 when bodies move as their references in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the velocity errors, in m/s, at which the reward has dropped to exp(-1/2).
    """

    needs = ("cvel", "subtree_com", "xpos", "xquat")
    std: float = ranged(0.7, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        error_n3 = velocity_errors(context, self.command, self.anchor, self.bodies, angular=False)
        return jnp.mean(jnp.sum(jnp.square(error_n3), axis=1))


class TrackBodyAngularVelocities(_TrackBodies):
    """1 when bodies turn as their references in the anchor's frame, falling off as a Gaussian.

    std: root mean square of the errors, in rad/s, at which the reward has dropped to exp(-1/2).
    """

    needs = ("cvel", "subtree_com", "xpos", "xquat")
    std: float = ranged(2.2, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        error_n3 = velocity_errors(context, self.command, self.anchor, self.bodies, angular=True)
        return jnp.mean(jnp.sum(jnp.square(error_n3), axis=1))


class TrackMotionJoints(AbstractGaussianReward):
    """1 when joints are where the motion has them, falling off as a Gaussian.

    joints: names, default all. std: root mean square of the joints' errors, in rad, at which the reward has dropped to
    exp(-1/2).
    """

    command: str
    joints: tuple[str, ...] | None = None
    std: float = ranged(0.3, above=0.0)
    scale: float = 1.0

    def squared_error(self, context: Context) -> Float[Array, ""]:
        command, frame = motion_frame(context, self.command)
        places = context.model.names.joint_qpos(self.joints)
        wanted_j = jnp.asarray(command.motions.qpos)[frame, places]
        return jnp.mean(jnp.square(context.physics.qpos[places] - wanted_j))


class TrackMotionJointVelocities(AbstractGaussianReward):
    """1 when joints move as in the motion, falling off as a Gaussian.

    joints: names, default all. std: root mean square of the joints' errors, in rad/s, at which the reward has dropped
    to exp(-1/2).
    """

    command: str
    joints: tuple[str, ...] | None = None
    std: float = ranged(2.0, above=0.0)
    scale: float = 0.5

    def squared_error(self, context: Context) -> Float[Array, ""]:
        command, frame = motion_frame(context, self.command)
        places = context.model.names.joint_qvel(self.joints)
        wanted_j = jnp.asarray(command.motions.qvel)[frame, places]
        return jnp.mean(jnp.square(context.physics.qvel[places] - wanted_j))
