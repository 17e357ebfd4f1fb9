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

from ksim.log.logger import most_telling_first

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
"""Group of the tags of interval bounds. A separate group keeps one chart per figure."""
_EVALUATION, _TRAINING = "1 evaluation", "2 training"
"""Groups that sort before all names of metrics."""
_SAMPLES, _IMAGES = "values in the recorded episode", "videos and plots"
"""Groups that sort after all names of ksim's metrics."""
_OF_EVALUATION = ("eval/error/", "eval/survival", "eval/return")
_OF_TRAINING = ("error/", "episode/return", "episode/terminated_fraction", "time/env_steps_per_s")
CHANGED = "Changed options"
"""The column of the HParams tab that names the changes. Its capital sorts it before all names of options."""


def tag_of(name: str) -> str:
    """The tag of a metric, or of a figure of an evaluation, whose name begins with `eval/`.

    An entry of the lists above that ends with a slash stands for all names that begin with it.
    """
    is_in = lambda keys: any(name.startswith(key) if key.endswith("/") else name == key for key in keys)
    if is_in(_OF_EVALUATION):
        return f"{_EVALUATION}/{name.removeprefix('eval/')}"
    return f"{_TRAINING}/{name}" if is_in(_OF_TRAINING) else name


def scalars(values: Mapping[str, float]) -> Summary:
    """Scalars by name."""
    return Summary(value=[Summary.Value(tag=tag_of(name), simple_value=x) for name, x in values.items()])


def images(paths: Mapping[str, Path]) -> Summary:
    """Images by name, with the unchanged content of their files. TensorBoard plays GIFs.

    Raises:
        OSError: A file cannot be read, or is not an image.
    """
    return Summary(value=[Summary.Value(tag=f"{_IMAGES}/{name}", image=_image(path)) for name, path in paths.items()])


def _image(path: Path) -> Summary.Image:
    with Image.open(path) as image:
        width, height, num_channels = image.width, image.height, len(image.getbands())
    return Summary.Image(width=width, height=height, colorspace=num_channels, encoded_image_string=path.read_bytes())


def histograms(samples: Mapping[str, np.ndarray]) -> Summary:
    """Histograms of the finite samples, by name; none for a name without finite samples."""
    finite = {name: x[np.isfinite(x)].astype(float) for name, x in samples.items()}
    value = [
        Summary.Value(tag=f"{_SAMPLES}/{name}", histo=tensorboardx.make_histogram(x, _NUM_BINS))
        for name, x in finite.items()
        if x.size
    ]
    return Summary(value=value)


def hyperparameters(options: Mapping[str, Any], changed: Iterable[str]) -> Summary:
    """Options of a run for the HParams tab, led by a column that names those changed from their defaults.

    Nothing else is written for the tab. So TensorBoard itself finds the options that differ between the runs, which it
    shows first, and compares the runs by all scalars, of which it shows the first five.
    """
    is_plain = lambda x: isinstance(x, bool | int | float | str)
    shown = {name: x if is_plain(x) else json.dumps(x) for name, x in options.items()}
    changes = ", ".join(f"{name}={shown[name]}" for name in changed)
    _, start, _ = tensorboardx.hparams({CHANGED: changes or "none", **shown}, {})
    return start


def layout(record: Mapping[str, Any]) -> Summary:
    """The charts of the Custom Scalars tab: each figure of an evaluation with its interval, and groups of metrics."""
    estimates = record["figures"] | {"return_gap": record["return_gap"] or {}}
    has_interval = lambda x: all(x.get(part) is not None for part in ("mean", "low", "high"))
    intervals = {
        name: ["Margin", [tag_of(f"eval/{name}"), f"{BOUNDS}/{name}_low", f"{BOUNDS}/{name}_high"]]
        # TensorBoard 2.21 shows charts with bands from the last to the first, and all others in order.
        for name in reversed(most_telling_first(estimates))
        if has_interval(estimates[name])
    }
    groups = {
        "errors in training": ["error/.*"],
        "return in training and evaluation": ["episode/return", "eval/return"],
        "environment steps per second": ["time/env_steps_per_s"],
        "rewards per second": ["reward/.*"],
    }
    lines = {title: ["Multiline", [tag_of(name) for name in names]] for title, names in groups.items()}
    return tensorboardx.custom_scalars({"evaluation, 95 % confidence": intervals, "training": lines})
