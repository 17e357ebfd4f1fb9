"""Uploads of a run's checkpoints to a service."""

from collections.abc import Callable
from pathlib import Path

from ksim.checks import check_choice

CHOICES = ("last", "all", "none")


class CheckpointUploads:
    """Uploads of a run's checkpoints: the last one when the run ends, all as they are written, or none."""

    def __init__(self, which: str, upload: Callable[[Path, int], None]) -> None:
        """Makes the uploads.

        Args:
            which: `last`, `all` or `none`.
            upload: Uploads a checkpoint, given its directory and its iteration.

        Raises:
            ConfigError: `which` is something else.
        """
        check_choice("checkpoints", which, CHOICES)
        self._which, self._upload = which, upload
        self._last: tuple[Path, int] | None = None

    def add(self, path: Path, iteration: int) -> None:
        """Uploads a written checkpoint, now or at the end of the run."""
        if self._which == "all":
            self._upload(path, iteration)
        elif self._which == "last":
            self._last = path, iteration

    def finish(self) -> None:
        """Uploads the last checkpoint, if it is still to be uploaded."""
        last, self._last = self._last, None
        if last is not None:
            self._upload(*last)
