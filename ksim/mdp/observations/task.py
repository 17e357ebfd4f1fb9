"""Observations of commands, clocks, last actions and reference motions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.checks import check_field, ranged, required
from ksim.mdp.commands import motion_frame
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import base_of_qpos
from ksim.physics.rotations import inverse_quaternion, multiply_quaternions, rotate, rotate_inverse, wrap_angle, yaw_of


class CommandValue(AbstractObservation):
    """The value of a command, in the command's own unit and frame."""

    command: str

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.command(self.command)


class LastAction(AbstractObservation):
    """The last action, before any scaling."""

    def __call__(self, context: Context) -> Float[Array, " a"]:
        return context.action


class PreviousAction(AbstractObservation):
    """The action before the last one, before any scaling; zeros after a reset."""

    def __call__(self, context: Context) -> Float[Array, " a"]:
        return context.previous_action


class ActionHistory(AbstractObservation):
    """The last `steps` actions, before any scaling, newest first; zeros before the first action."""

    steps: int = required(least=1)

    def init(self, context: Context) -> Float[Array, "t a"]:
        return jnp.zeros((self.steps, *context.action.shape))

    def update(self, context: Context) -> Float[Array, "t a"]:
        return jnp.concatenate([context.action[None], context.memory[:-1]])

    def __call__(self, context: Context) -> Float[Array, "t a"]:
        return context.memory


class HeadingError(AbstractObservation):
    """Angle, in rad, by which the base must turn left to reach the commanded heading, in [-pi, pi].

    command: a command whose first component is a heading in the world, in rad, such as a HeadingCommand.
    """

    command: str

    def __call__(self, context: Context) -> Float[Array, ""]:
        return wrap_angle(context.command(self.command)[0] - yaw_of(context.base.orientation))


class TimeLeft(AbstractObservation):
    """Time left until a time limit of `seconds`, in s, so that a critic can predict truncation."""

    seconds: float = 20.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        return self.seconds - context.episode_step * context.dt


class PhaseClock(AbstractObservation):
    """Sine and cosine of a clock that turns once per `period_s` from the start of the episode.

    side_offset: fraction of a period by which left and right feet step apart, for mirror images: 0.5 for walking,
    trotting and pacing, 0 for gaits in which they step together.
    """

    period_s: float = ranged(0.8, above=0.0)
    side_offset: float = ranged(0.5, least=0.0, most=1.0)

    @property
    def mirror_s(self) -> float:
        return self.side_offset * self.period_s

    def __call__(self, context: Context) -> Float[Array, "2"]:
        angle = 2 * jnp.pi * context.episode_step * context.dt / self.period_s
        return jnp.stack([jnp.sin(angle), jnp.cos(angle)])


class GaitClock(AbstractObservation):
    """Sine and cosine of each foot's phase in a commanded gait, all sines first.

    command: a GaitCommand. Its frequency turns the clock from 0 at the start of the episode; a foot is ahead of the
    clock by its offset. A foot's stance begins at phase 0.
    """

    command: str

    def init(self, context: Context) -> tuple[Array, Array]:
        return jnp.zeros(()), context.command(self.command)[0]

    def update(self, context: Context) -> tuple[Array, Array]:
        # The step that led here went by the command that was in force before.
        turns, frequency = context.memory
        return (turns + frequency * context.dt) % 1.0, context.command(self.command)[0]

    def __call__(self, context: Context) -> Float[Array, "2 f"]:
        turns, _ = context.memory
        offset_f = jnp.concatenate([jnp.zeros(1), context.command(self.command)[2:]])
        angle_f = 2 * jnp.pi * (turns + offset_f)
        return jnp.stack([jnp.sin(angle_f), jnp.cos(angle_f)])


class MotionPhase(AbstractObservation):
    """Fraction of the clip that is over, from 0 at its first frame to 1 at its last."""

    command: str

    def __call__(self, context: Context) -> Float[Array, ""]:
        command, frame = motion_frame(context, self.command)
        motions = command.motions
        first, last = (jnp.asarray(x)[jnp.asarray(motions.clip)[frame]] for x in (motions.first, motions.last))
        return (frame - first) / (last - first).astype(jnp.float32)


class _OfFrames(AbstractObservation):
    """Coming frames of the motion of a `MotionCommand`. `steps`: how many control steps ahead each is."""

    command: str
    steps: tuple[int, ...] = (0,)

    def __check_init__(self) -> None:
        is_met = bool(self.steps) and all(isinstance(step, int) and step >= 0 for step in self.steps)
        check_field(self, "steps", is_met, "whole numbers, at least 0")

    def frames(self, context: Context, name: str) -> Float[Array, "s n"]:
        """Their rows of an array of the motion library."""
        term, frame = motion_frame(context, self.command)
        return jnp.asarray(getattr(term.motions, name))[term.ahead(frame, jnp.array(self.steps))]


class MotionJoints(_OfFrames):
    """Positions of joints in coming frames, relative to the default pose, in rad. `joints`: names, default all."""

    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Float[Array, "s j"]:
        places = context.model.names.joint_qpos(self.joints)
        return self.frames(context, "qpos")[:, places] - context.model.default_qpos[places]


class MotionJointVelocities(_OfFrames):
    """Velocities of joints in coming frames, in rad/s. `joints`: names, default all."""

    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Float[Array, "s j"]:
        return self.frames(context, "qvel")[:, context.model.names.joint_qvel(self.joints)]


class MotionBasePosition(_OfFrames):
    """Positions of the base in coming frames, relative to the robot's, in the robot's base frame, in m."""

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        position, quat = context.base.position, context.base.orientation

        def seen(qpos: Array) -> Array:
            return rotate_inverse(base_of_qpos(context.model.names, qpos)[0] - position, quat)

        return jax.vmap(seen)(self.frames(context, "qpos"))


class MotionBaseOrientation(_OfFrames):
    """Directions of the base's x and y axes in coming frames, in the robot's base frame: six numbers each.

    The first two columns of a rotation matrix, which is continuous (Zhou et al. 2019, arXiv:1812.07035).
    """

    def __call__(self, context: Context) -> Float[Array, "s 6"]:
        back = inverse_quaternion(context.base.orientation)

        def seen(qpos: Array) -> Array:
            turn = multiply_quaternions(back, base_of_qpos(context.model.names, qpos)[1])
            return jnp.concatenate([rotate(axis, turn) for axis in jnp.eye(3)[:2]])

        return jax.vmap(seen)(self.frames(context, "qpos"))
