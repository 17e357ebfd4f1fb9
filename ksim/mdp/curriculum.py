"""Curricula: a level of difficulty from 0 to 1, adapted during training."""

import dataclasses
from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ksim.checks import CheckedModule
from ksim.errors import ConfigError, near_misses
from ksim.types import Metrics


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a curriculum sees after an iteration. It lives within a trace only.

    Attributes:
        iteration: Iterations done.
        metrics: Figures of the iteration's rollout over all environments of all devices, by the names under which
            they are logged.
        ctrl_dt: Seconds per control step.
    """

    iteration: Int[Array, ""]
    metrics: Metrics
    ctrl_dt: float

    def metric(self, name: str) -> Float[Array, ""]:
        """A figure; NaN where the iteration had none (no episode ended).

        Raises:
            ConfigError: There is no such figure.
        """
        if name not in self.metrics:
            raise ConfigError(f"There is no metric {name!r}. {near_misses(name, self.metrics)}")
        return self.metrics[name]


class AbstractCurriculum(CheckedModule):
    """A level from 0 (easiest) to 1 (the full task), one for all environments, updated after each iteration.

    Terms read it as `context.level(name)`. Evaluations run the full task.

    Attributes:
        start: The level before the first iteration.
    """

    start: eqx.AbstractVar[float]

    @abstractmethod
    def __call__(self, level: Float[Array, ""], progress: Progress) -> Float[Array, ""]:
        """The level for the next iteration, before it is clipped to [0, 1]."""

    def __check_init__(self) -> None:
        if not 0 <= self.start <= 1:
            raise ConfigError(f"{type(self).__name__} with start={self.start} must start from 0 to 1.")


class LinearCurriculum(AbstractCurriculum):
    """Rises linearly from 0 to 1 between two iterations."""

    end_iteration: int
    start_iteration: int = 0
    start: float = 0.0

    def __check_init__(self) -> None:
        if not 0 <= self.start_iteration < self.end_iteration:
            raise ConfigError(
                f"LinearCurriculum from iteration {self.start_iteration} to {self.end_iteration} must end after it "
                "starts, from 0 upwards."
            )

    def __call__(self, level: Float[Array, ""], progress: Progress) -> Float[Array, ""]:
        fraction = (progress.iteration - self.start_iteration) / (self.end_iteration - self.start_iteration)
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

    def __call__(self, level: Float[Array, ""], progress: Progress) -> Float[Array, ""]:
        length_s = progress.metric("episode/length") * progress.ctrl_dt
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

    def __call__(self, level: Float[Array, ""], progress: Progress) -> Float[Array, ""]:
        return level + self.step * _direction(progress.metric(self.metric), self.raise_above, self.lower_below)


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

    def __call__(self, level: Float[Array, ""], progress: Progress) -> Float[Array, ""]:
        return level - self.step * _direction(progress.metric(self.metric), self.lower_above, self.raise_below)


def _direction(value: Float[Array, ""], high: float, low: float) -> Float[Array, ""]:
    """1 above `high`, -1 below `low`, 0 in between and for NaN."""
    return jnp.where(value > high, 1.0, jnp.where(value < low, -1.0, 0.0))


def _check_thresholds(term: AbstractCurriculum, high: float, low: float, step: float) -> None:
    if high < low:
        raise ConfigError(f"{type(term).__name__}'s upper threshold ({high}) must not be below its lower one ({low}).")
    if step <= 0:
        raise ConfigError(f"{type(term).__name__}'s step ({step}) must be positive.")
