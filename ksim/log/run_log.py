"""The log of a run, one per process: `process_<i>.log`, with ksim's log records and all warnings."""

import contextlib
import logging
import logging.handlers
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ksim.errors import ConfigError
from ksim.host.terminal import given_to
from ksim.parallel.multihost import process_index

LOG_DIR = "KSIM_LOG_DIR"
"""Environment variable with the directory of the logs; by default the run's directory."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _LogFile(logging.handlers.WatchedFileHandler):
    """A log file. It is created again if it was removed, and skipped if it cannot be written."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Prints nothing: every record is also printed, and other failures report a full disk."""


class RunLog(logging.Handler):
    """Handler that buffers records until the run has a directory, then writes them and all later ones to its log."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._early: list[logging.LogRecord] = []
        self._file: _LogFile | None = None

    def open(self, run_dir: Path) -> Path:
        """Opens the log; raises ConfigError if it cannot be written."""
        path = log_path(run_dir)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _LogFile(path)
        except OSError as error:
            raise ConfigError(f"The log ({path}) cannot be written: {error.strerror}. Set {LOG_DIR}.") from error
        file.setFormatter(logging.Formatter(_FORMAT))
        for record in self._early:
            file.handle(record)
        self._early, self._file = [], file
        return path

    def emit(self, record: logging.LogRecord) -> None:
        if self._file is None:
            self._early.append(record)
        else:
            self._file.handle(record)

    def add_warning(self, category: str, text: str, filename: str, line: int) -> None:
        """Writes a warning of Python's `warnings`."""
        message = f"{filename}:{line}: {category}: {text}"
        self.handle(logging.LogRecord("py.warnings", logging.WARNING, filename, line, message, None, None))

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # the last lines do not fit on a full disk
                self._file.close()
        super().close()


class _Program(logging.Handler):
    """Handler that passes ksim's records to the program's own handlers, if the program's own levels allow it."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger, self._own_level, self._propagate = logger, logger.level, logger.propagate
        self._handlers_before = list(logging.getLogger().handlers)

    def wants(self, record: logging.LogRecord) -> bool:
        """Whether a record would have been made without the run's log."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger is not self._logger:
            if logger.level:
                return record.levelno >= logger.level
            logger = logger.parent
        return record.levelno >= (self._own_level or logging.getLogger().level)

    def emit(self, record: logging.LogRecord) -> None:
        if not (self._propagate and self.wants(record)):
            return
        for handler in logging.getLogger().handlers:
            if self._is_of_the_program(handler) and record.levelno >= handler.level:
                handler.handle(record)

    def _is_of_the_program(self, handler: logging.Handler) -> bool:
        # If the root logger has no handler, absl calls logging.basicConfig at its first record.
        return handler in self._handlers_before or type(handler) is not logging.StreamHandler


@contextlib.contextmanager
def run_log(level: str) -> Iterator[RunLog]:
    """Collects ksim's records and all warnings for the log of a run, whatever levels the program has set.

    `level`, the lowest that is written, is `debug`, `info` or `warning`. The program's own handlers get the same
    records as without it.
    """
    logger = logging.getLogger("ksim")
    log, program = RunLog(logging.getLevelNamesMapping()[level.upper()]), _Program(logger)
    before = logger.level, logger.propagate
    handlers = list(logger.handlers)
    for handler in handlers:
        handler.addFilter(program.wants)
    logger.setLevel(min(log.level, logger.getEffectiveLevel()))
    logger.propagate = False
    for handler in (log, program):
        logger.addHandler(handler)
    try:
        with _warnings_to(log):
            yield log
    finally:
        for handler in (log, program):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(before[0])
        logger.propagate = before[1]
        for handler in handlers:
            handler.removeFilter(program.wants)


@contextlib.contextmanager
def _warnings_to(log: RunLog) -> Iterator[None]:
    """Also writes warnings to a log, including ksim's since the last run. They are shown as before."""
    told: set[tuple[str, str, int]] = set()
    show_before = warnings.showwarning

    def tell(text: str, filename: str, line: int, category: type[Warning] = UserWarning) -> None:
        if (text, filename, line) not in told:
            log.add_warning(category.__name__, text, filename, line)

    def tell_once(*given: Any) -> None:
        tell(*given)
        told.add(given)

    def show(message: Any, category: type[Warning], filename: str, lineno: int, *args: Any, **kwargs: Any) -> None:
        tell(str(message), filename, lineno, category)
        show_before(message, category, filename, lineno, *args, **kwargs)

    warnings.showwarning = show
    try:
        with given_to(tell_once):
            yield
    finally:
        if warnings.showwarning is show:
            warnings.showwarning = show_before


def log_path(run_dir: Path) -> Path:
    """The path of this process's log, in the directory named by KSIM_LOG_DIR or else in the run's directory."""
    return Path(os.environ.get(LOG_DIR) or run_dir) / f"process_{process_index()}.log"
