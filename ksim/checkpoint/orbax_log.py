"""What threads of Orbax and TensorStore print of an error, sent to the log."""

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
    """Takes away the handlers that an import gives the root logger, so that a program's own set-up comes first."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    root.handlers[:] = before


@functools.cache
def log_orbax() -> None:
    """From now on, logs what they would print, as on a full disk, beside the error that Orbax raises.

    It stays so: a thread may print after the error was raised and has ended the run.
    """
    unraisable_hook = sys.unraisablehook

    def is_for_others(record: logging.LogRecord) -> bool:
        if not record.exc_info or not any(f"{os.sep}orbax{os.sep}" in path for path in _paths(record)):
            return True
        # Not to the program's handlers, which print. Once the run's log is closed there is none.
        for handler in logging.getLogger("ksim").handlers:
            if isinstance(handler, RunLog):
                handler.handle(record)
        return False

    def log_unraisable(unraisable: Any) -> None:
        # Orbax closes its event loop when one array cannot be written; the next one's failure then finds it closed.
        if isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed":
            logger.info("TensorStore found Orbax's event loop closed.")
        else:
            unraisable_hook(unraisable)

    # By asyncio, where a second array cannot be written either and nobody waits for it.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(is_for_others)
    sys.unraisablehook = log_unraisable


def _paths(record: logging.LogRecord) -> list[str]:
    """The files of a record: that which made it, and those of the error's traceback."""
    traceback_of = record.exc_info[2] if isinstance(record.exc_info, tuple) else None
    return [record.pathname, *(frame.filename for frame in traceback.extract_tb(traceback_of))]
