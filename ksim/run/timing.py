"""Where a run's time and memory go."""

import contextlib
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ksim.types import Metrics, TrainState, Trajectory

if TYPE_CHECKING:
    from ksim.task.rl import RLTask


def time_learning(task: "RLTask[Any]", state: TrainState) -> float:
    """Seconds that learning from one rollout takes by itself, on a trajectory of small random numbers.

    The training step is one program, whose parts cannot be timed from outside; its learning half is compiled once
    more for this. The run's state is not touched. For display only.
    """
    layout = task.layout
    step = task.make_train_step(layout.axis_name)

    def make_trajectory(state: TrainState) -> Trajectory:
        shapes, _, _ = jax.eval_shape(step.collect, state, state.learner.key)
        # Zeros would not do: on a CPU, learning from them was seen to take twice as long.
        return jax.tree.map(lambda x: (0.1 * jax.random.normal(state.learner.key, x.shape)).astype(x.dtype), shapes)

    def learn(state: TrainState, trajectory: Trajectory) -> Metrics:
        learner, metrics = step.learn(state.learner, state.envs.model_carry, trajectory, state.learner.key)
        # All of the learner must be asked for, or the compiler would drop what leads to it.
        sums = [jnp.sum(x) for x in jax.tree.leaves((learner.params, learner.normalizer))]
        return metrics | {"all": jnp.stack(sums)}

    trajectory = layout.map(make_trajectory)(state)
    compiled = layout.map(learn).lower(state, trajectory).compile()
    durations = []
    for _ in range(3):  # the same number in every process, since it holds collectives
        start_s = time.perf_counter()
        jax.block_until_ready(compiled(state, trajectory))
        durations.append(time.perf_counter() - start_s)
    return min(durations)


def time_synchronisation(task: "RLTask[Any]", state: TrainState) -> float | None:
    """Seconds of an iteration in which gradients are averaged over devices, without waiting for a slower one.

    The synchronisation is timed by itself, on arrays like the gradients. None on one device.
    """
    layout = task.layout
    step = task.make_train_step(layout.axis_name)
    if layout.axis_name is None:
        return None
    compiled = layout.map(lambda params: step.sync_gradients(params)).lower(state.learner.params).compile()
    durations = []
    for _ in range(5):  # the same number in every process
        start_s = time.perf_counter()
        jax.block_until_ready(compiled(state.learner.params))
        durations.append(time.perf_counter() - start_s)
    return statistics.median(durations) * step.hyper.syncs_per_iteration


def device_times(times_us: np.ndarray) -> dict[str, float]:
    """Metrics of what devices took for the halves of an iteration.

    A device that is done with its rollout waits for the others in the first collective of the update. So the rollout
    took as long as the slowest device's, and the update as long as the shortest.

    Args:
        times_us: Microseconds of rollout and update, one row per device.
    """
    rollout_s, update_s = times_us.astype(float).T * 1e-6
    metrics = {
        "time/rollout_s": float(rollout_s.max()),
        "time/update_s": float(update_s.min()),
        "time/rollout_skew_s": float(rollout_s.max() - rollout_s.min()),
    }
    if len(rollout_s) > 1:
        metrics |= {f"time/rollout_s/device_{i}": float(x) for i, x in enumerate(rollout_s)}
        metrics |= {f"time/update_s/device_{i}": float(x) for i, x in enumerate(update_s)}
    return metrics


class HostTimers:
    """Seconds that the host spent on what is not the training step, since they were last taken."""

    def __init__(self) -> None:
        self._seconds = {"evaluation": 0.0, "logging": 0.0, "saving": 0.0, "callbacks": 0.0}

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds what the block takes to a timer: `evaluation`, `logging`, `saving` or `callbacks`."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - start_s

    def take(self) -> dict[str, float]:
        """The timers as metrics; they start again from zero."""
        taken = {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return taken


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
