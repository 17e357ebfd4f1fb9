"""Calls to the hooks of a task during training."""

import contextlib
import dataclasses
import logging
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ksim.checkpoint.progress import Progress
from ksim.checkpoint.saver import Saver
from ksim.errors import ConfigError, RunError, quoted
from ksim.host.signals import StopRequest
from ksim.host.terminal import print_line
from ksim.log.jsonl import JsonlLogger
from ksim.log.logger import AbstractLogger, Loggers
from ksim.log.run_log import log_path
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.parallel.multihost import gather_texts, is_main_process
from ksim.task.rl import RLTask, TrainingStatus
from ksim.train.timing import HostTimers
from ksim.train.watchdog import Watchdog

logger = logging.getLogger(__name__)


_EXITS = (SystemExit, KeyboardInterrupt)
"""Exceptions that end a process. Raised in a hook, they are held back until all processes can stop together."""


class CallbackError(RunError):
    """A hook of the task failed."""


@contextlib.contextmanager
def reraise_exits() -> Iterator[None]:
    """Re-raises the SystemExit or KeyboardInterrupt of a hook, once the other processes know of it."""
    try:
        yield
    except CallbackError as failure:
        if isinstance(failure.__cause__, _EXITS):
            raise failure.__cause__ from None
        raise


def task_loggers(task: RLTask[Any]) -> list[AbstractLogger]:
    """The loggers of a task, with a JsonlLogger added if there is none: every run writes metrics.jsonl.

    Raises:
        ConfigError: `get_loggers` returned something else.
    """
    loggers = task.get_loggers()
    if not (isinstance(loggers, Sequence) and all(isinstance(x, AbstractLogger) for x in loggers)):
        raise ConfigError(
            f"{type(task).__name__}.get_loggers must return a list of ksim.AbstractLogger, not {quoted(loggers)}."
        )
    # The best checkpoint, plots and the result are read from these files.
    is_recorded = any(isinstance(logger, JsonlLogger) for logger in loggers)
    return [*loggers] if is_recorded else [JsonlLogger(), *loggers]


@contextlib.contextmanager
def log_handlers(task: RLTask[Any]) -> Iterator[None]:
    """Lets the task add handlers to ksim's logger for the duration of the block.

    Raises:
        CallbackError: The hook failed.
    """
    ours = logging.getLogger("ksim")
    before = list(ours.handlers)
    try:
        try:
            task.add_logger_handlers(ours)
        except (Exception, *_EXITS) as error:
            raise CallbackError(_describe(task, "add_logger_handlers", error)) from error
        yield
    finally:
        for handler in [handler for handler in ours.handlers if handler not in before]:
            ours.removeHandler(handler)
            handler.close()


@dataclass(kw_only=True)
class Callbacks:
    """Calls of a task's hooks, on process 0 alone, with the status of training.

    If a hook fails, its error is kept until `raise_together`, because the other processes are not at a point where they
    can stop. After an error only `on_training_end` is called. The context lasts from the start of training to its end,
    whatever ends it.

    Attributes:
        stop: The reason why the run ends before its limit; a failing hook is recorded in it.
        saver: The writer of checkpoints; None in processes other than 0.
    """

    task: RLTask[Any]
    run_dir: Path
    progress: Progress
    timers: HostTimers
    watchdog: Watchdog
    stop: StopRequest
    read_model: Callable[[], AbstractActorCritic]
    loggers: Loggers
    saver: Saver | None
    failure: CallbackError | None = None
    _metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    _saving: TrainingStatus | None = None
    _is_over: bool = False

    def __enter__(self) -> "Callbacks":
        self._call("on_training_start", self._status())
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.training_end(error)

    def step_start(self) -> None:
        """Calls `on_step_start`."""
        if self.failure is None:
            self._call("on_step_start", self._status())

    def step_end(self, metrics: Mapping[str, float]) -> None:
        """Calls `on_step_end` with the metrics of the iteration."""
        self._metrics = types.MappingProxyType(dict(metrics))
        if self.failure is None:
            self._call("on_step_end", self._status())

    def before_save(self) -> None:
        """Waits for the previous checkpoint, which the next one may replace, and keeps the status for `after_save`."""
        if self.saver is not None:
            with self.timers.timed("saving"), self.watchdog.watching("writing the checkpoint before"):
                self.saver.wait()
            self.after_save()
            self._saving = self._status()

    def after_save(self) -> None:
        """Once the newest checkpoint has been written, logs it and calls `on_after_checkpoint_save`."""
        newest, saving = None if self.saver is None else self.saver.newest, self._saving
        if newest is None or saving is None or newest[0] != saving.iteration:
            return
        self._saving = None
        with self.timers.timed("logging"), self.watchdog.watching("logging a checkpoint"):
            self.loggers.log_checkpoint(newest[1], newest[0])
        if self.failure is None:
            self._call("on_after_checkpoint_save", newest[1], dataclasses.replace(saving, checkpoint=newest[1]))

    def training_end(self, error: BaseException | None = None) -> None:
        """Calls `on_training_end`, if it was not called yet.

        If an error ends the run, an error of the hook is only a warning.
        """
        if self._is_over:
            return
        self._is_over = True
        ended_by = self.stop.reason if error is None else f"{type(error).__name__}: {error}"
        failure, self.failure = self.failure, None
        self._call("on_training_end", dataclasses.replace(self._status(), ended_by=ended_by))
        if error is not None and self.failure is not None:
            logger.warning("on_training_end failed.", exc_info=self.failure)
            print_line(f"Warning: {self.failure}")
        self.failure = failure or self.failure

    def raise_together(self) -> None:
        """Raises the CallbackError of a failed hook in all processes, which must all call this."""
        told = gather_texts("" if self.failure is None else str(self.failure))[0]
        if told:
            raise self.failure or CallbackError(f"Process 0: {told}")

    def _status(self) -> TrainingStatus:
        progress, newest = self.progress, None if self.saver is None else self.saver.newest
        return TrainingStatus(
            iteration=progress.iteration,
            env_steps=progress.env_steps,
            elapsed_s=progress.elapsed_s,
            iterations_left=progress.iterations_left,
            metrics=self._metrics,
            run_dir=self.run_dir,
            checkpoint=None if newest is None else newest[1],
            ended_by=None,
            read_model=self.read_model,
        )

    def _call(self, hook: str, *arguments: Any) -> None:
        if not is_main_process():
            return
        name = f"{type(self.task).__name__}.{hook}"
        with self.timers.timed("callbacks"), self.watchdog.watching(name):
            try:
                returned = getattr(self.task, hook)(*arguments)
            except (Exception, *_EXITS) as error:  # noqa: BLE001 - raised by `raise_together`
                when = f" at iteration {self.progress.iteration}"
                described = _describe(self.task, hook, error, when)
                self._fail(f"{described} The traceback is in {log_path(self.run_dir)}.", error)
                return
        if returned is not None and returned is not arguments[-1]:
            self._fail(
                f"{name} returned {quoted(returned)}. It must return nothing, or the record that it was given: hooks "
                "do not change the training."
            )

    def _fail(self, message: str, cause: BaseException | None = None) -> None:
        """Keeps an error for `raise_together`."""
        self.failure = CallbackError(message)
        self.failure.__cause__ = cause
        self.stop.has_failed = True


def _describe(task: Any, hook: str, error: BaseException, when: str = "") -> str:
    """The message for a failed hook: its name, the error, and the line of the hook that raised it."""
    frames = traceback.extract_tb(error.__traceback__)[1:2]
    where = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in frames)
    return f"{type(task).__name__}.{hook} failed{when}: {type(error).__name__}: {error}{where}."
