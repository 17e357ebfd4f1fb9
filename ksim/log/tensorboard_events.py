"""Event files and summaries of TensorBoard. Imported lazily: tensorboardX is slow to import."""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tensorboardX import summary as tensorboardx
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

_FLUSH_S = 30.0
_RETRY_S = 60.0


class EventFile:
    """A file of TensorBoard events, written in the caller's thread, so that the caller can handle a failure."""

    def __init__(self, run_dir: Path, *, first_step: int, header: Sequence[Summary] = ()) -> None:
        """Makes a writer whose file is opened at the first event.

        Events of an earlier run at `first_step` or later are void. Each file begins with the summaries in `header`.
        """
        self._run_dir, self._first_step, self._header = run_dir, first_step, header
        self._writer: EventsWriter | None = None
        self._next_flush_s = 0.0
        self._retry_s = 0.0

    def write(self, summary: Summary, step: int) -> None:
        """Writes an event.

        Raises:
            OSError: The event could not be written. Events of the next minute are dropped; then a new file is tried.
        """
        if time.monotonic() < self._retry_s:
            return
        try:
            if self._writer is None:
                self._writer = self._open()
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            if time.monotonic() >= self._next_flush_s:
                self._writer.flush()
                self._next_flush_s = time.monotonic() + _FLUSH_S
        except OSError:
            self._retry_s = time.monotonic() + _RETRY_S
            with contextlib.suppress(OSError):
                self.close()
            raise

    def close(self) -> None:
        """Writes buffered events and closes the file; raises OSError if they could not be written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> EventsWriter:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        # The file's name has a resolution of one second. The suffix separates runs in the same directory.
        writer = EventsWriter(str(self._run_dir / "events"), f".{os.getpid()}.{time.monotonic_ns()}")
        if self._first_step:
            session = SessionLog(status=SessionLog.START)
            writer.write_event(Event(wall_time=time.time(), step=self._first_step, session_log=session))
            # Once: a file that is opened after a failure continues with this run's events.
            self._first_step = 0
        for summary in self._header:
            # At step 0, so that no later run declares it void.
            writer.write_event(Event(wall_time=time.time(), step=0, summary=summary))
        return writer


_NUM_BINS = 50
BOUNDS = "eval_interval"
"""Group of the tags of interval bounds. A separate group keeps one chart per figure in the group `eval`."""


def scalars(values: Mapping[str, float]) -> Summary:
    """Scalars by tag."""
    return Summary(value=[Summary.Value(tag=name, simple_value=x) for name, x in values.items()])


def images(paths: Mapping[str, Path]) -> Summary:
    """Images by tag, with the unchanged content of their files. TensorBoard plays GIFs.

    Raises:
        OSError: A file cannot be read, or is not an image.
    """
    return Summary(value=[Summary.Value(tag=tag, image=_image(path)) for tag, path in paths.items()])


def _image(path: Path) -> Summary.Image:
    with Image.open(path) as image:
        width, height, num_channels = image.width, image.height, len(image.getbands())
    return Summary.Image(width=width, height=height, colorspace=num_channels, encoded_image_string=path.read_bytes())


def histograms(samples: Mapping[str, np.ndarray]) -> Summary:
    """Histograms of the finite samples, by tag; none for a tag without finite samples."""
    finite = {tag: x[np.isfinite(x)].astype(float) for tag, x in samples.items()}
    value = [
        Summary.Value(tag=tag, histo=tensorboardx.make_histogram(x, _NUM_BINS)) for tag, x in finite.items() if x.size
    ]
    return Summary(value=value)


def hyperparameters(options: Mapping[str, Any], metrics: Iterable[str]) -> list[Summary]:
    """Options of a run for the HParams tab, and the tags of the scalars by which it compares runs.

    Lists and null are shown as JSON: TensorBoard takes the columns of all runs from one of the runs.
    """
    is_plain = lambda x: isinstance(x, bool | int | float | str)
    shown = {name: x if is_plain(x) else json.dumps(x) for name, x in options.items()}
    experiment, start, _ = tensorboardx.hparams(shown, dict.fromkeys(metrics, 0.0))
    # The third summary reports that the run succeeded. It is left out, because the outcome is not known here.
    return [experiment, start]


def layout(record: Mapping[str, Any]) -> Summary:
    """The charts of the Custom Scalars tab: each figure of an evaluation with its interval, and groups of metrics."""
    estimates = record["figures"] | {"return_gap": record["return_gap"] or {}}
    has_interval = lambda x: all(x.get(part) is not None for part in ("mean", "low", "high"))
    intervals = {
        name: ["Margin", [f"eval/{name}", f"{BOUNDS}/{name}_low", f"{BOUNDS}/{name}_high"]]
        for name, estimate in estimates.items()
        if has_interval(estimate)
    }
    groups = {
        "return in training and evaluation": ["Multiline", ["episode/return", "eval/return"]],
        "rewards per second": ["Multiline", ["reward/.*"]],
        "errors in training": ["Multiline", ["error/.*"]],
    }
    return tensorboardx.custom_scalars({"evaluation, 95 % confidence": intervals, "training": groups})
