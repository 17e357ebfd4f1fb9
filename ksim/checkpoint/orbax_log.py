"""Redirection of the errors that threads of Orbax and TensorStore print to the log."""

import contextlib
import functools
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from ksim.log.run_log import RunLog

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def without_handlers() -> Iterator[None]:
    """Removes handlers that an import in the block adds to the root logger, so that the program can set up its own."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    root.handlers[:] = before


@functools.cache
def log_orbax() -> None:
    """Logs the messages that these threads would print, for instance on a full disk, in addition to the error raised.

    The redirection is permanent, because a thread may print after the error has ended the run.
    """
    unraisable_hook = sys.unraisablehook

    def is_for_others(record: logging.LogRecord) -> bool:
        if not record.exc_info or not any(f"{os.sep}orbax{os.sep}" in path for path in _paths(record)):
            return True
        # Only to the run's log: handlers of the program would print. Once the log is closed, the message is dropped.
        for handler in logging.getLogger("ksim").handlers:
            if isinstance(handler, RunLog):
                handler.handle(record)
        return False

    def log_unraisable(unraisable: Any) -> None:
        # Orbax closes its event loop when an array cannot be written; a second failure then finds it closed.
        if isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed":
            logger.info("TensorStore found Orbax's event loop closed.")
        else:
            unraisable_hook(unraisable)

    # asyncio logs the failure of a second array, which nothing awaits.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(is_for_others)
    sys.unraisablehook = log_unraisable


def _paths(record: logging.LogRecord) -> list[str]:
    """The source files of a record: the file that logged it, and the files of the traceback."""
    traceback_of = record.exc_info[2] if isinstance(record.exc_info, tuple) else None
    return [record.pathname, *(frame.filename for frame in traceback.extract_tb(traceback_of))]
