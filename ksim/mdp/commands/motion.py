"""The command to follow a reference motion."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ksim.checks import check_range
from ksim.errors import ConfigError, look_up
from ksim.keys import MOTION_START
from ksim.mdp.commands.base import AbstractCommand
from ksim.mdp.term import Context
from ksim.motion.library import MotionLibrary
from ksim.physics.names import base_of_qpos, base_orientation, base_position
from ksim.physics.rotations import angle_between
from ksim.types import Metrics


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
    uniform: float = 0.1
    decay: float = 0.8
    horizon: int = 3

    def __check_init__(self) -> None:
        check_range(self, "uniform", above=0.0, most=1.0)
        check_range(self, "decay", above=0.0, most=1.0)
        check_range(self, "horizon", least=1)

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
            "root_position_m": jnp.linalg.norm(base_position(context.physics, names) - wanted[0]),
            "root_orientation_rad": angle_between(base_orientation(context.physics, names), wanted[1]),
        }


def motion_command(context: Context, command: str) -> MotionCommand:
    """The term of a motion command.

    Raises:
        ConfigError: There is no such command, or it is of another kind.
    """
    term = look_up(context.command_terms, command, "command")
    if not isinstance(term, MotionCommand):
        raise ConfigError(f"Command {command!r} must be a MotionCommand, but is a {type(term).__name__}.")
    return term


def motion_frame(context: Context, command: str) -> tuple[MotionCommand, Int[Array, ""]]:
    """A motion command and the frame that it asks for.

    Raises:
        ConfigError: There is no such command, or it is of another kind.
    """
    return motion_command(context, command), context.command(command)[0].astype(jnp.int32)
