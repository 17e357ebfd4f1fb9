"""The TensorBoard logger."""

import importlib.util
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ksim.log.logger import AbstractLogger, RunInfo, evaluation_scalars, finite


class TensorBoardLogger(AbstractLogger):
    """Writes TensorBoard events over environment steps. Non-finite metrics are left out.

    TensorBoard sorts groups of curves by name and opens the first two. So the curves that tell how well a run does get
    tags in `1 evaluation` and `2 training`; all others keep their names as tags. Videos and plots are images, and
    actions are histograms, in the last groups. The options are hyper-parameters. The Custom Scalars tab has a chart
    for each figure of the evaluations, with its 95 % confidence interval as a band.
    """

    def open(self, run: RunInfo) -> None:
        from ksim.log import tensorboard_events as summaries  # noqa: PLC0415 - tensorboardX is slow to import

        self._run_dir, self._summaries = run.run_dir, summaries
        # A run that was stopped before its first checkpoint starts again: all its events are void.
        first_step = run.env_steps + 1 if run.is_resumed else 0
        options = {name: run.config[name] for name in run.hyperparameters}
        header = summaries.hyperparameters(options, run.changed)
        self._events = summaries.EventFile(run.run_dir, first_step=first_step, header=[header])

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        self._events.write(self._summaries.scalars(finite(metrics)), env_steps)

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        values = evaluation_scalars(record, bounds=self._summaries.BOUNDS)
        self._events.write(self._summaries.scalars(values), record["env_steps"])
        # At every evaluation, so that the last layout is never void. A layout is a few hundred bytes.
        self._events.write(self._summaries.layout(record), record["env_steps"])

    def log_files(self, files: Mapping[str, Path], iteration: int, env_steps: int) -> None:
        # TensorBoard does not show MP4.
        images = {Path(name).stem: path for name, path in files.items() if path.suffix in (".png", ".gif")}
        self._events.write(self._summaries.images(images), env_steps)

    def log_samples(self, samples: Mapping[str, np.ndarray], iteration: int, env_steps: int) -> None:
        self._events.write(self._summaries.histograms(samples), env_steps)

    def dashboards(self) -> Mapping[str, str]:
        command = f"tensorboard --logdir {shlex.quote(str(self._run_dir))}"
        is_installed = importlib.util.find_spec("tensorboard") is not None
        return {"TensorBoard": command if is_installed else f"pip install tensorboard && {command}"}

    def close(self) -> None:
        self._events.close()
