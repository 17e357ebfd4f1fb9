"""Means and fractions with their confidence intervals."""

import dataclasses
import math

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean and the bounds of its 95 % confidence interval. The bounds are NaN for a single value."""

    mean: float
    low: float
    high: float

    def record(self) -> dict[str, float | None]:
        """The estimate for JSON, with null for NaN."""
        return {name: x if math.isfinite(x) else None for name, x in dataclasses.asdict(self).items()}

    def words(self, digits: int = 2) -> str:
        """The mean and half the width of the interval, as text."""
        half_width = f" ± {(self.high - self.low) / 2:.{digits}f}" if math.isfinite(self.high) else ""
        return f"{self.mean:.{digits}f}{half_width}"

    def percent_words(self) -> str:
        """A fraction and its interval in per cent, with one decimal if it would otherwise round to 0 or 100 %."""
        is_between = 0 < self.mean < 1 and f"{self.mean:.0%}" in ("0%", "100%")
        mean = f"{self.mean:.1%}" if is_between else f"{self.mean:.0%}"
        return f"{mean} ({self.low:.0%} to {self.high:.0%})"


def estimate_mean(values: np.ndarray) -> Estimate:
    """The mean of independent values, with Student's interval."""
    values = np.asarray(values, np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    quantile = stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)
    half_width = float(quantile * values.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, mean - half_width, mean + half_width)


def estimate_fraction(is_true: np.ndarray) -> Estimate:
    """The fraction of true values among independent ones, with Wilson's interval (1927), also valid near 0 and 1."""
    n, fraction, z = len(is_true), float(np.mean(is_true)), float(stdtrit(np.inf, (1 + CONFIDENCE) / 2))
    centre = (fraction + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z / (1 + z**2 / n) * math.sqrt(fraction * (1 - fraction) / n + z**2 / (4 * n**2))
    # Rounding must not push a bound past the fraction.
    return Estimate(fraction, min(centre - half_width, fraction), max(centre + half_width, fraction))
