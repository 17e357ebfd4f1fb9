"""Joint patterns: one number for all joints that differ only in their side."""

from collections.abc import Mapping, Sequence

import numpy as np

from ksim.errors import ConfigError
from ksim.physics.actuators import per_joint
from ksim.physics.sides import escaped, side_pattern


def grouped(values: Mapping[str, float], *, digits: int | None = None, decimals: int | None = None) -> dict[str, float]:
    """Numbers by pattern of joint names. Joints that differ only in their side share a pattern if their numbers agree.

    Args:
        values: Numbers by joint.
        digits: Significant digits to round to; None: round to `decimals`.
        decimals: Decimals to round to, if `digits` is None.
    """
    rounded = lambda x: round(x, decimals) + 0.0 if digits is None else rounded_to(x, digits)
    groups: dict[str, list[str]] = {}
    for name in values:
        groups.setdefault(side_pattern(name), []).append(name)
    result: dict[str, float] = {}
    for pattern, names in groups.items():
        numbers = [values[name] for name in names]
        mean = float(np.mean(numbers))
        spread = 0.01 if digits is None else 0.1 * abs(mean)
        if len(names) > 1 and np.ptp(numbers) <= spread and not _catches_others(pattern, names, values):
            result[pattern] = rounded(mean)
        else:
            result |= {escaped(name): rounded(values[name]) for name in names}
    return result


def _catches_others(pattern: str, names: Sequence[str], values: Mapping[str, float]) -> bool:
    try:
        caught = per_joint({pattern: 1.0, "*": 0.0}, list(values), "pattern")
    except ConfigError:
        return True
    return {name for name, value in zip(values, caught, strict=True) if value} != set(names)


def rounded_to(value: float, digits: int) -> float:
    """A number rounded to significant digits; 0 for numbers up to 1e-6."""
    return float(f"{value:.{digits}g}") + 0.0 if abs(value) > 1e-6 else 0.0
