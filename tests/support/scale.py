"""The number of cases in the tests of faults: a sample in CI, all of them in `make faults`."""

import os

IS_FULL = os.environ.get("KSIM_FAULTS") == "full"


def scale(short: int, full: int) -> int:
    """The number of cases: `full` where the environment says KSIM_FAULTS=full, else `short`."""
    return full if IS_FULL else short
