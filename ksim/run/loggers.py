"""Where metrics go: metrics.jsonl and TensorBoard."""

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Self

from tensorboardX import SummaryWriter


class MetricsWriter:
    """Writes one line of metrics.jsonl per iteration, and TensorBoard events.

    Every line is flushed as it is written, so that a run that is killed keeps all of them. A metric that is not
    finite (the mean return while no episode has ended) is null in the line and left out of TensorBoard.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool) -> None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
