"""TensorBoard summaries, as protocol buffers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tensorboardX import summary as tensorboardx
from tensorboardX.proto.summary_pb2 import Summary

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
