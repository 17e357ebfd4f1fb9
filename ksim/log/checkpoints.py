"""Which checkpoints of a run a service is sent."""

from collections.abc import Callable
from pathlib import Path

from ksim.checks import check_choice

CHOICES = ("last", "all", "none")


class CheckpointUploads:
    """Sends the checkpoints of a run to a service: the last one when the run ends, all as they are written, or none."""

    def __init__(self, which: str, upload: Callable[[Path, int], None]) -> None:
        """Makes what has nothing to send yet.

        Args:
            which: `last`, `all` or `none`.
            upload: Sends a checkpoint: its directory, and its iteration.

        Raises:
            ConfigError: `which` is something else.
        """
        check_choice("checkpoints", which, CHOICES)
        self._which, self._upload = which, upload
        self._last: tuple[Path, int] | None = None

    def add(self, path: Path, iteration: int) -> None:
        """Takes a checkpoint that was written."""
        if self._which == "all":
            self._upload(path, iteration)
        elif self._which == "last":
            self._last = path, iteration

    def finish(self) -> None:
        """Sends what is left."""
        last, self._last = self._last, None
        if last is not None:
            self._upload(*last)
