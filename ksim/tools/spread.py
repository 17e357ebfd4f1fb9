"""The format of measured figures: the median, with the lowest and the highest."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """`median (lowest-highest)` of some values, each in a format such as `.2f` or `.0%`."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"
