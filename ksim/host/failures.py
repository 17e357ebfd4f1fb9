"""Failures that do not end a run."""

import collections
import contextlib
import logging
from collections.abc import Iterator

from ksim.host.terminal import print_line

logger = logging.getLogger(__name__)


class Failures:
    """Failures in optional parts of a run. Each kind is reported once, and all are counted.

    Attributes:
        counts: Number of failures of each kind.
    """

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def absorbed(self, kind: str) -> Iterator[None]:
        """Counts failures of the block, and logs the first of a kind as a warning. Signals and exits propagate."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - logged and counted
            self.add(kind, error)

    def add(self, kind: str, error: Exception) -> None:
        """Counts a failure that was caught elsewhere, and logs it if it is the first of its kind."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            logger.warning("A failed %s does not end the run.", kind, exc_info=error)
            print_line(f"Warning: {kind} failed, the run continues: {error or type(error).__name__}")
