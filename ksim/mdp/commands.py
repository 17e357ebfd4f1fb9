"""Commands: base class, velocity, posture, targets, gait, motion, wrappers."""

import math
from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ksim.checks import check_field, check_range, ranged, required
from ksim.errors import ConfigError, get_named
from ksim.keys import MOTION_START
from ksim.mdp.term import Context, Term
from ksim.motion.library import MotionLibrary
from ksim.physics.names import base_of_qpos
from ksim.physics.rotations import angle_between, roll_pitch_of, wrap_angle, yaw_of
from ksim.types import Metrics

Range = tuple[float, float]


class AbstractCommand(Term):
    """A vector that tells the robot what to do. It may change during the episode.

    Attributes:
        has_course: Whether the command follows a fixed course to the episode's end, as a motion does. Viewers let the
            user set other commands, and restart a truncated episode with a course.
    """

    has_course: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, " n"]:
        """The command in force."""

    def ranges(self) -> dict[str, Range]:
        """The range of each number of the command, by a label (`forward, m/s`); empty by default.

        Viewers show a slider for each.
        """
        return {}

    def mirrored(self, command: Float[Array, " n"]) -> Float[Array, " n"] | None:
        """The command that asks a mirrored robot for the mirrored motion; None, the default, where it is not known."""
        return None

    def groups(self) -> tuple[str, ...]:
        """Kinds of episodes that evaluations also report apart, such as the clips of a motion; none by default."""
        return ()

    def group(self, command: Float[Array, " n"]) -> Int[Array, ""]:
        """The kind of the episode, as an index into `groups`; it stays the same during an episode."""
        return jnp.int32(0)

    def shown_pose(self, command: Float[Array, " n"]) -> Float[Array, " q"] | None:
        """Generalized positions that the command asks for, which videos show as a ghost; None, the default: none."""
        return None

    def errors(self, context: Context, command: Float[Array, " n"]) -> Metrics:
        """The errors of the robot, by name with a unit (`lin_vel_m_s`); empty by default.

        They are logged as `error/<command>/<name>`, and evaluations report them.
        """
        return {}


class AbstractDrawnCommand(AbstractCommand):
    """A command drawn at the reset, and again each time its duration is over.

    Attributes:
        resample_s: Range of the duration of a command, in seconds, drawn uniformly.
    """

    resample_s: eqx.AbstractVar[Range]

    def __check_init__(self) -> None:
        check_range(self, "resample_s", least=0.0)

    @abstractmethod
    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, " d"]:
        """Draws the next command."""

    def follow(
        self, drawn: Float[Array, " d"], before: Float[Array, " n"] | None, context: Context
    ) -> Float[Array, " n"]:
        """The command in force, from what was drawn and from the one `before` (None at a reset); by default `drawn`."""
        return drawn

    def init(self, context: Context) -> PyTree:
        drawn, seconds_left = self._draw_with_time(context)
        return self.follow(drawn, None, context), seconds_left, drawn

    def update(self, context: Context) -> PyTree:
        before, seconds_left, drawn = context.memory
        seconds_left = seconds_left - context.dt
        new, new_seconds = self._draw_with_time(context)
        # Within half a step, or rounding would put a whole number of steps one off.
        is_over = seconds_left < 0.5 * context.dt
        drawn, seconds_left = jnp.where(is_over, new, drawn), jnp.where(is_over, new_seconds, seconds_left)
        return self.follow(drawn, before, context), seconds_left, drawn

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.memory[0]

    def _draw_with_time(self, context: Context) -> tuple[Array, Array]:
        command_key, time_key = jax.random.split(context.key)
        low, high = self.resample_s
        return self.draw(command_key, context), jax.random.uniform(time_key, minval=low, maxval=high)


class _UniformCommand(AbstractDrawnCommand):
    """A command whose numbers are drawn uniformly from `ranges`."""

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, " n"]:
        low_n, high_n = jnp.array([*self.ranges().values()]).T
        return jax.random.uniform(key, low_n.shape, minval=low_n, maxval=high_n)


class VelocityCommand(AbstractDrawnCommand):
    """Forward and leftward velocity, in m/s, and yaw rate, in rad/s, in the robot's level heading frame.

    Drawn uniformly from the ranges every `resample_s` seconds (a range); with probability `standing_fraction` the
    command is to stand. With probability `heading_fraction` a moving command has a heading in the world, drawn from
    `heading`, in rad: its yaw rate is `heading_stiffness`, in 1/s, times the heading error, within `yaw_rate`.
    max_lin_acceleration, in m/s^2, and max_yaw_acceleration, in rad/s^2, limit how fast the command approaches the
    drawn value, from standing at the start of an episode; None for no limit.
    """

    forward: Range = ranged((0.0, 1.0))
    leftward: Range = ranged((-0.3, 0.3))
    yaw_rate: Range = ranged((-0.5, 0.5))
    resample_s: Range = (4.0, 8.0)
    standing_fraction: float = ranged(0.1, least=0.0, most=1.0)
    heading_fraction: float = ranged(0.0, least=0.0, most=1.0)
    heading: Range = ranged((-math.pi, math.pi))
    heading_stiffness: float = ranged(0.5, above=0.0)
    max_lin_acceleration: float | None = ranged(None, above=0.0)
    max_yaw_acceleration: float | None = ranged(None, above=0.0)

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
            error = wrap_angle(drawn[3] - yaw_of(context.base.orientation))
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
        return {
            "lin_vel_m_s": jnp.linalg.norm(context.base.heading_velocity[:2] - command[:2]),
            "yaw_rate_rad_s": jnp.abs(context.base.ang_vel_world[2] - command[2]),
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


class HeadingCommand(_UniformCommand):
    """Heading in the world, in rad: 0 along the x axis. Drawn uniformly every `resample_s` seconds (a range)."""

    heading: Range = ranged((-math.pi, math.pi))
    resample_s: Range = (4.0, 8.0)

    def ranges(self) -> dict[str, Range]:
        return {"heading, rad": self.heading}

    def mirrored(self, command: Float[Array, "1"]) -> Float[Array, "1"]:
        return -command

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        return {"heading_rad": jnp.abs(wrap_angle(yaw_of(context.base.orientation) - command[0]))}


class HeightCommand(_UniformCommand):
    """Height of the base above the ground, in m. Drawn uniformly every `resample_s` seconds (a range)."""

    height: Range = required()
    resample_s: Range = (4.0, 8.0)

    def ranges(self) -> dict[str, Range]:
        return {"height, m": self.height}

    def mirrored(self, command: Float[Array, "1"]) -> Float[Array, "1"]:
        return command

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        return {"height_m": jnp.abs(context.height_above_ground(context.base.position) - command[0])}


class RollPitchCommand(_UniformCommand):
    """Roll (to the right) and pitch (nose down) of the base, in rad.

    Drawn uniformly from the ranges every `resample_s` seconds (a range).
    """

    roll: Range = ranged((-0.2, 0.2))
    pitch: Range = ranged((-0.2, 0.2))
    resample_s: Range = (4.0, 8.0)

    def ranges(self) -> dict[str, Range]:
        return {"roll, rad": self.roll, "pitch, rad": self.pitch}

    def mirrored(self, command: Float[Array, "2"]) -> Float[Array, "2"]:
        return command * jnp.array([-1.0, 1.0])

    def errors(self, context: Context, command: Float[Array, "2"]) -> Metrics:
        roll, pitch = roll_pitch_of(context.base.orientation)
        return {"roll_rad": jnp.abs(roll - command[0]), "pitch_rad": jnp.abs(pitch - command[1])}


class JointPoseCommand(AbstractDrawnCommand):
    """Positions of joints, in rad (m for slides). Drawn uniformly every `resample_s` seconds (a range).

    joints: names, default all; each must have limits. fraction: largest fraction of the way from the default
    pose to either limit: 0 for the default pose only, 1 for the whole range of the joint.
    """

    joints: tuple[str, ...] | None = None
    fraction: float = ranged(0.5, least=0.0, most=1.0)
    resample_s: Range = (4.0, 8.0)

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, " j"]:
        names = context.model.names
        limits_j2 = names.joint_range(self.joints)
        if not np.isfinite(limits_j2).all():
            every = self.joints or names.joints
            unlimited = [every[i] for i in np.flatnonzero(~np.isfinite(limits_j2).all(axis=1))]
            raise ConfigError(
                f"JointPoseCommand draws within the limits of joints, but {', '.join(unlimited)} has none. "
                "Name others in `joints`, or give it a range in the MJCF file."
            )
        rest_j = context.model.default_qpos[names.joint_qpos(self.joints)]
        low_j, high_j = (rest_j + self.fraction * (limit_j - rest_j) for limit_j in limits_j2.T)
        return jax.random.uniform(key, rest_j.shape, minval=low_j, maxval=high_j)

    def errors(self, context: Context, command: Float[Array, " j"]) -> Metrics:
        position_j = context.physics.qpos[context.model.names.joint_qpos(self.joints)]
        return {"joint_position_rad": jnp.mean(jnp.abs(position_j - command))}


class CartesianCommand(_UniformCommand):
    """Position of a body or a site relative to the base, in the base's frame, in m, such as for a reaching hand.

    For a robot without a free joint, its position in the world. Drawn uniformly from a box every `resample_s` seconds
    (a range). x, y, z: the box's ranges. body, site: the name of one of them.
    """

    x: Range = required()
    y: Range = required()
    z: Range = required()
    body: str | None = None
    site: str | None = None
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        if (self.body is None) == (self.site is None):
            raise ConfigError(
                f"CartesianCommand has body={self.body!r} and site={self.site!r}. Give the name of one, not of both."
            )

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("xpos",) if self.site is None else ("site_xpos",)

    def ranges(self) -> dict[str, Range]:
        return {"x, m": self.x, "y, m": self.y, "z, m": self.z}

    def errors(self, context: Context, command: Float[Array, "3"]) -> Metrics:
        names = context.model.names
        if self.site is not None:
            position_3 = context.derived("site_xpos")[names.index("site", self.site)]
        else:
            position_3 = context.derived("xpos")[names.index("body", str(self.body))]
        return {"position_m": jnp.linalg.norm(context.base.relative_or_world(position_3) - command)}


class GaitCommand(_UniformCommand):
    """Gait: step frequency, in Hz, fraction of a period that a foot is down, and phase offsets of the feet.

    Drawn uniformly from the ranges every `resample_s` seconds (a range). frequency: steps per second of each
    foot; `GaitClock` integrates it. duty: from 0 to 1. offsets: range for each foot but the first, as a fraction of a
    period ahead of the first foot: (0.5, 0.5) for two feet that alternate.
    """

    frequency: Range = ranged((1.0, 2.0), least=0.0)
    duty: Range = ranged((0.5, 0.6), least=0.0, most=1.0)
    offsets: tuple[Range, ...] = ((0.5, 0.5),)
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        are_ranges = all(len(offset) == 2 and offset[0] <= offset[1] for offset in self.offsets)
        check_field(self, "offsets", are_ranges, "pairs of two numbers, the smaller first")

    def ranges(self) -> dict[str, Range]:
        offsets = {f"offset of foot {i}, turns": offset for i, offset in enumerate(self.offsets, start=2)}
        return {"frequency, Hz": self.frequency, "duty": self.duty} | offsets


class MotionCommand(AbstractCommand):
    """The frame of a motion library that the robot is to reach with the next action; it moves on with each step.

    An episode starts anywhere in any clip, and stays in the clip; give the reset `ToMotion` and the termination
    `MotionEnded`. Every frame has the same probability, or by adaptive sampling those shortly before failures have a
    larger one (BeyondMimic, Liao et al. 2025, arXiv:2508.08241): with the failure rates r_b of the bins, as the
    curriculum `AdaptiveStarts` estimates them, a start is in bin b with probability

        uniform * (bin's share of all frames) + (1 - uniform) * s_b / sum(s),   s_b = sum_u decay^u r_{b+u},

    where u runs over the next `horizon` bins of the same clip.

    motions: the clips. starts: name of the curriculum of failure rates; None for equal probabilities. at_beginning:
    start at the first frame of a random clip, as in evaluations. uniform: share of starts at random frames. decay:
    weight of each further bin. horizon: bins ahead that count.
    """

    has_course = True
    motions: MotionLibrary = eqx.field(static=True)
    starts: str | None = None
    at_beginning: bool = False
    uniform: float = ranged(0.1, above=0.0, most=1.0)
    decay: float = ranged(0.8, above=0.0, most=1.0)
    horizon: int = ranged(3, least=1)

    def init(self, context: Context) -> Int[Array, ""]:
        return self.start(context) + 1

    def update(self, context: Context) -> Int[Array, ""]:
        return self.ahead(context.memory, 1)

    def __call__(self, context: Context) -> Float[Array, "1"]:
        return context.memory.astype(jnp.float32)[None]

    def start(self, context: Context) -> Int[Array, ""]:
        """The frame in which the episode starts: never the last one of a clip."""
        if context.episode_key is None:
            raise ConfigError("MotionCommand needs the key of the episode, which this environment does not give.")
        motions, key = self.motions, jax.random.fold_in(context.episode_key, MOTION_START)
        if self.at_beginning:
            return jnp.asarray(motions.first)[jax.random.randint(key, (), 0, len(motions.first))]
        bin_at, frame_at = jax.random.uniform(key, (2,))
        reached_b = jnp.cumsum(self.probabilities(context))
        index = jnp.sum(reached_b[:-1] <= bin_at * reached_b[-1])
        size = jnp.asarray(motions.bin_size)[index]
        return jnp.asarray(motions.bin_first)[index] + jnp.minimum((frame_at * size).astype(jnp.int32), size - 1)

    def probabilities(self, context: Context) -> Float[Array, " b"]:
        """Probability that an episode starts in each bin."""
        share_b = jnp.asarray(self.motions.bin_size / self.motions.bin_size.sum(), jnp.float32)
        if self.starts is None:
            return share_b
        after_hb, is_same_clip_hb = self.motions.following_bins(self.horizon)
        weight_h1 = self.decay ** jnp.arange(self.horizon, dtype=jnp.float32)[:, None]
        soon_b = jnp.sum(weight_h1 * context.level(self.starts)[after_hb] * is_same_clip_hb, axis=0)
        total = jnp.sum(soon_b)
        failing_b = jnp.where(total > 0, soon_b / jnp.where(total > 0, total, 1.0), share_b)
        return self.uniform * share_b + (1 - self.uniform) * failing_b

    def ahead(self, frame: Int[Array, ""], steps: int | Int[Array, "*n"]) -> Int[Array, "*n"]:
        """The frame, or frames, so many steps later, within the clip."""
        last = jnp.asarray(self.motions.last)[jnp.asarray(self.motions.clip)[frame]]
        return jnp.minimum(frame + steps, last)

    def groups(self) -> tuple[str, ...]:
        return self.motions.names

    def group(self, command: Float[Array, "1"]) -> Int[Array, ""]:
        return jnp.asarray(self.motions.clip)[command[0].astype(jnp.int32)]

    def shown_pose(self, command: Float[Array, "1"]) -> Float[Array, " q"]:
        return jnp.asarray(self.motions.qpos)[command[0].astype(jnp.int32)]

    def errors(self, context: Context, command: Float[Array, "1"]) -> Metrics:
        names, qpos = context.model.names, self.shown_pose(command)
        places = names.joint_qpos()
        wanted = base_of_qpos(names, qpos)
        return {
            "joint_position_rad": jnp.mean(jnp.abs(context.physics.qpos[places] - qpos[places])),
            "root_position_m": jnp.linalg.norm(context.base.position - wanted[0]),
            "root_orientation_rad": angle_between(context.base.orientation, wanted[1]),
        }


def motion_command(context: Context, command: str) -> MotionCommand:
    """The term of a motion command; raises ConfigError if there is none, or it is of another kind."""
    term = get_named(context.command_terms, command, "command")
    if not isinstance(term, MotionCommand):
        raise ConfigError(f"Command {command!r} must be a MotionCommand, but is a {type(term).__name__}.")
    return term


def motion_frame(context: Context, command: str) -> tuple[MotionCommand, Int[Array, ""]]:
    """A motion command and the frame that it asks for; raises as `motion_command`."""
    return motion_command(context, command), context.command(command)[0].astype(jnp.int32)


class ScaledByLevel(AbstractCommand):
    """Another command, scaled by a curriculum: by `start` at level 0, rising to 1 at level 1.

    For commands that are easiest at 0, such as a velocity. level: name of the curriculum.
    """

    command: AbstractCommand
    level: str
    start: float = ranged(0.2, least=0.0, most=1.0)

    def init(self, context: Context) -> PyTree:
        return self.command.init(context)

    def update(self, context: Context) -> PyTree:
        return self.command.update(context)

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return self.command(context) * (self.start + (1 - self.start) * context.level(self.level))

    def ranges(self) -> dict[str, Range]:
        return self.command.ranges()

    def mirrored(self, command: Float[Array, " n"]) -> Float[Array, " n"] | None:
        return self.command.mirrored(command)

    def errors(self, context: Context, command: Float[Array, " n"]) -> Metrics:
        return self.command.errors(context, command)


def unscaled(command: AbstractCommand) -> AbstractCommand:
    """The command inside of all wrappers."""
    while isinstance(command, ScaledByLevel):
        command = command.command
    return command
