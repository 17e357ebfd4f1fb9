"""The number of cases: a sample in CI, all of them where the environment says KSIM_TESTS=full, as in `make faults`."""

import os
from typing import TypeVar

T = TypeVar("T")

IS_FULL = os.environ.get("KSIM_TESTS") == "full"


def scale(short: T, full: T) -> T:
    """The cases, or their number: `full` where all are tried, else `short`."""
    return full if IS_FULL else short
