"""Stopping a run before its limit, decided by all processes together."""

import os
import time
from typing import NamedTuple

import numpy as np

from ksim._process import STARTED_S
from ksim.checkpoint.progress import Progress
from ksim.host.signals import StopRequest
from ksim.parallel.multihost import gather_rows, is_main_process


class Agreement(NamedTuple):
    """The common decision of all processes before the next iteration.

    Attributes:
        must_stop: Whether any process was asked to stop.
        is_save_due: Whether a checkpoint is due; process 0 decides.
        has_failed: Whether a hook failed.
    """

    must_stop: bool
    is_save_due: bool
    has_failed: bool


class Stopping:
    """Requests to stop the run: a signal, `max_runtime`, or a failed hook."""

    def __init__(self, request: StopRequest, progress: Progress, max_runtime_s: float | None) -> None:
        self._request, self._progress, self._max_runtime_s = request, progress, max_runtime_s
        # Counted from the first launch: a restart by the launcher does not extend `max_runtime`.
        self._started_s = float(os.environ.get("KSIM_LAUNCHED_S", STARTED_S))

    def is_asked(self) -> bool:
        """Whether this process knows of a reason to stop. Evaluations are cut short by it as well."""
        self._request.is_out_of_time |= self._is_out_of_time()
        return self._request.is_made

    def agree(self, *, is_save_due: bool) -> Agreement:
        """The common decision of all processes, so that all stop after the same iteration. All must call this.

        Args:
            is_save_due: Whether a checkpoint is due, as far as this process knows.
        """
        self.is_asked()
        request = self._request
        own = np.asarray([request.signal or 0, request.is_out_of_time, is_save_due, request.has_failed], np.int32)
        signal, is_out_of_time, is_due, has_failed = gather_rows(own).max(axis=0)
        # Never reset: a signal may have arrived since `own` was built.
        if signal:
            request.signal = int(signal)
        if is_out_of_time:
            request.is_out_of_time = True
        return Agreement(bool(signal or is_out_of_time), bool(is_due), bool(has_failed))

    def _is_out_of_time(self) -> bool:
        # Always do one iteration: a requeued job must make progress.
        if self._max_runtime_s is None or not is_main_process() or not self._progress.num_done_here:
            return False
        return time.monotonic() - self._started_s + self._progress.pace_s >= self._max_runtime_s
