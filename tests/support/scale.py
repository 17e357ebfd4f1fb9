"""The number of cases: a sample in CI, all of them where the environment says KSIM_TESTS=full, as in `make faults`."""

import os
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

IS_FULL = os.environ.get("KSIM_TESTS") == "full"


def scale(short: T, full: T) -> T:
    """The cases, or their number: `full` where all are tried, else `short`."""
    return full if IS_FULL else short


def only_in_full(reason: str) -> pytest.MarkDecorator:
    """Marks a test that is skipped unless all cases are tried."""
    return pytest.mark.skipif(not IS_FULL, reason=f"{reason}: KSIM_TESTS=full")


def long(*rows: tuple[Any, ...]) -> list[Any]:
    """Rows to parametrize a test by, marked as long."""
    return [pytest.param(*row, marks=pytest.mark.long) for row in rows]
