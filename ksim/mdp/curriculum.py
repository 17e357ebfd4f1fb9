"""Common curricula: a level of difficulty from 0 to 1 for all environments, adapted during training."""

import dataclasses
from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ksim.checks import CheckedModule, check_positive, check_range, check_rule, ranged
from ksim.errors import ConfigError, get_named
from ksim.mdp.commands import motion_frame
from ksim.mdp.term import Context
from ksim.motion.library import MotionLibrary
from ksim.types import Metrics


@dataclasses.dataclass(frozen=True)
class CurriculumContext:
    """The input of a curriculum after an iteration. It exists only while tracing.

    Attributes:
        iteration: Iterations done.
        metrics: The iteration's metrics over all environments of all devices, by their names in the log.
        ctrl_dt: Seconds per control step.
        num_steps: Steps in each bin of an `AbstractBinCurriculum`; None for other curricula.
        num_failures: Steps in each bin that terminated their episodes; None for other curricula.
    """

    iteration: Int[Array, ""]
    metrics: Metrics
    ctrl_dt: float
    num_steps: Float[Array, " b"] | None = None
    num_failures: Float[Array, " b"] | None = None

    def metric(self, name: str) -> Float[Array, ""]:
        """The value of a metric; NaN if the iteration had none (no episode ended).

        Raises:
            ConfigError: There is no such metric.
        """
        return get_named(self.metrics, name, "metric")


class AbstractCurriculum(CheckedModule):
    """A level from 0 (easiest) to 1 (the full task), one for all environments, updated after each iteration.

    Terms read it as `context.level(name)`. Evaluations run the full task.

    Attributes:
        start: The level before the first iteration.
    """

    start: eqx.AbstractVar[float]

    @abstractmethod
    def __call__(self, level: Float[Array, "*b"], context: CurriculumContext) -> Float[Array, "*b"]:
        """The level for the next iteration, before it is clipped to [0, 1]."""

    def initial(self) -> Float[Array, "*b"]:
        """The level before the first iteration."""
        return jnp.float32(self.start)

    def __check_init__(self) -> None:
        check_range(self, "start", least=0.0, most=1.0)


class AbstractBinCurriculum(AbstractCurriculum):
    """A level for each of several bins, such as the parts of a motion, updated from the failures in each bin.

    A failure is a step that terminates its episode. `context.num_steps` and `context.num_failures` have the counts of
    an iteration, over all environments of all devices. Levels are logged as their mean, lowest and highest.
    """

    @property
    @abstractmethod
    def num_bins(self) -> int:
        """The number of bins."""

    @abstractmethod
    def bin_of(self, context: Context) -> Int[Array, ""]:
        """The bin in which a step is counted, from the context that rewards see."""

    def initial(self) -> Float[Array, " b"]:
        return jnp.full(self.num_bins, self.start, jnp.float32)


class LinearCurriculum(AbstractCurriculum):
    """Rises linearly from 0 to 1 between two iterations."""

    end_iteration: int
    start_iteration: int = 0
    start: float = 0.0

    def __check_init__(self) -> None:
        span, is_met = f"{self.start_iteration} to {self.end_iteration}", 0 <= self.start_iteration < self.end_iteration
        check_rule(f"LinearCurriculum from iteration {span}", is_met, "one that ends after it starts, from 0 upwards")

    def __call__(self, level: Float[Array, ""], context: CurriculumContext) -> Float[Array, ""]:
        fraction = (context.iteration - self.start_iteration) / (self.end_iteration - self.start_iteration)
        return self.start + (1 - self.start) * jnp.clip(fraction, 0.0, 1.0)


class EpisodeLengthCurriculum(AbstractCurriculum):
    """Rises while finished episodes are longer than `raise_above_s`, falls while shorter than `lower_below_s`.

    step: change per iteration.
    """

    raise_above_s: float
    lower_below_s: float
    step: float = 0.02
    start: float = 0.0

    def __check_init__(self) -> None:
        _check_thresholds(self, self.raise_above_s, self.lower_below_s, self.step)

    def __call__(self, level: Float[Array, ""], context: CurriculumContext) -> Float[Array, ""]:
        length_s = context.metric("episode/length") * context.ctrl_dt
        return level + self.step * _direction(length_s, self.raise_above_s, self.lower_below_s)


class ScoreCurriculum(AbstractCurriculum):
    """Rises while a metric's mean is above `raise_above`, falls while it is below `lower_below`.

    metric: such as `reward/track_linear_velocity`, a reward per second with its scale. step: change per
    iteration. For a metric that should be small, such as `error/velocity/lin_vel_m_s`, see `ErrorCurriculum`.
    """

    metric: str
    raise_above: float
    lower_below: float
    step: float = 0.02
    start: float = 0.0

    def __check_init__(self) -> None:
        _check_thresholds(self, self.raise_above, self.lower_below, self.step)

    def __call__(self, level: Float[Array, ""], context: CurriculumContext) -> Float[Array, ""]:
        return level + self.step * _direction(context.metric(self.metric), self.raise_above, self.lower_below)


class ErrorCurriculum(AbstractCurriculum):
    """Rises while a metric's mean is below `raise_below`, falls while it is above `lower_above`.

    metric: such as `error/velocity/lin_vel_m_s`. step: change per iteration.
    """

    metric: str
    raise_below: float
    lower_above: float
    step: float = 0.02
    start: float = 0.0

    def __check_init__(self) -> None:
        _check_thresholds(self, self.lower_above, self.raise_below, self.step)

    def __call__(self, level: Float[Array, ""], context: CurriculumContext) -> Float[Array, ""]:
        return level - self.step * _direction(context.metric(self.metric), self.lower_above, self.raise_below)


class AdaptiveStarts(AbstractBinCurriculum):
    """Failure rates of the bins of a motion library. A `MotionCommand` starts more episodes in bins that fail often.

    A bin's rate is its number of failures per pass, where a pass has as many steps as the bin has frames. It is
    averaged exponentially over iterations. A bin without a step keeps its rate.

    motions: the clips of the command. command: its name. rate: share of the newest iteration in the average. start:
    failure rate of every bin before the first iteration.
    """

    motions: MotionLibrary = eqx.field(static=True)
    command: str
    rate: float = ranged(0.05, above=0.0, most=1.0)
    start: float = 1.0

    @property
    def num_bins(self) -> int:
        return self.motions.num_bins

    def bin_of(self, context: Context) -> Int[Array, ""]:
        command, frame = motion_frame(context, self.command)
        if command.motions is not self.motions:
            raise ConfigError(
                f"AdaptiveStarts has other motions than its command {self.command!r}. Give both the same library."
            )
        return jnp.asarray(self.motions.bin)[frame - 1]  # the frame that the step began in

    def __call__(self, level: Float[Array, " b"], context: CurriculumContext) -> Float[Array, " b"]:
        assert context.num_steps is not None
        assert context.num_failures is not None
        num_passes = context.num_steps / self.motions.bin_size
        failed = jnp.minimum(context.num_failures / jnp.maximum(num_passes, 1e-6), 1.0)
        return level + self.rate * jnp.where(context.num_steps > 0, failed - level, 0.0)


def _direction(value: Float[Array, ""], high: float, low: float) -> Float[Array, ""]:
    """1 above `high`, -1 below `low`, 0 in between and for NaN."""
    return jnp.where(value > high, 1.0, jnp.where(value < low, -1.0, 0.0))


def _check_thresholds(term: AbstractCurriculum, high: float, low: float, step: float) -> None:
    name = type(term).__name__
    check_rule(f"{name}'s upper threshold ({high})", high >= low, f"at least its lower one ({low})")
    check_positive(f"{name}'s step", step)
