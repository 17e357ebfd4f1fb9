"""Where metrics go: metrics.jsonl, evaluations.jsonl and TensorBoard."""

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensorboardX import SummaryWriter


class MetricsWriter:
    """Writes a line of metrics.jsonl per iteration, one of evaluations.jsonl per evaluation, and TensorBoard events.

    Every line is flushed as it is written, so that a run that is killed keeps all of them. A metric that is not
    finite (the mean return while no episode has ended) is null in the line and left out of TensorBoard.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool) -> None:
        self._run_dir = run_dir
        self._file = (run_dir / "metrics.jsonl").open("a", buffering=1)
        self._tensorboard = SummaryWriter(str(run_dir)) if tensorboard else None

    def write(self, metrics: dict[str, float], *, env_steps: int) -> None:
        """Writes the metrics of one iteration; TensorBoard's step is the number of environment steps."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps(finite) + "\n")
        if self._tensorboard is not None:
            for name, value in finite.items():
                if value is not None:
                    self._tensorboard.add_scalar(name, value, env_steps)

    def write_evaluation(self, record: dict[str, Any]) -> None:
        """Writes what `Evaluation.record` says, with its `iteration` and `env_steps`."""
        with (self._run_dir / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._tensorboard is None:
            return
        estimates = record["figures"] | {"return_gap": record["return_gap"] or {}}
        for name, estimate in estimates.items():
            for part, value in estimate.items():
                if value is not None:
                    suffix = "" if part == "mean" else f"_{part}"
                    self._tensorboard.add_scalar(f"eval/{name}{suffix}", value, record["env_steps"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
