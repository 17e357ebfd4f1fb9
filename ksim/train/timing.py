"""Where a run's time and memory go."""

import contextlib
import math
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ksim.learn.collect import Collected
from ksim.learn.train_step import TrainStep
from ksim.parallel.layout import AbstractLayout
from ksim.preflight.diagnosis import compiling
from ksim.task.rl import RLTask
from ksim.types import EnvBatch, LearnerState, Metrics, TrainState


class TimedStep:
    """The training step as two compiled programs, whose ends are timed on every device of this process.

    A host thread per device waits for what the device has computed. So nothing in the programs is for timing alone, no
    device waits for the host, and the compilation cache holds them where it would hold the step.
    """

    def __init__(self, layout: AbstractLayout, step: TrainStep, state: TrainState, *, donate: bool) -> None:
        """Compiles both ahead of time: another shape or placement is an error, never a recompilation.

        Args:
            layout: Where they run.
            step: The step.
            state: A placed state.
            donate: Whether the state's memory is reused for the next one; it is gone after a step then.
        """
        shapes: list[Collected] = []

        def roll_out(envs: EnvBatch, learner: LearnerState) -> tuple[EnvBatch, Collected]:
            envs, collected = step.roll_out(envs, learner)
            # Of one device, as they are inside the mapped function.
            shapes.append(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), collected))
            return envs, collected

        def improve(learner: LearnerState, collected: Collected) -> tuple[LearnerState, Metrics]:
            return step.improve(learner, collected)

        def zeros(_: Array) -> Collected:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[0])

        rollout = compiling("the rollout", layout.map(roll_out, donate=donate), state.envs, state.learner)
        # Placed as the rollout's will be; gone before the first one.
        placeholder = layout.map(zeros)(state.learner.iteration)
        update = compiling("the update", layout.map(improve, donate=donate), state.learner, placeholder)
        self._roll_out, self._improve = rollout(), update()

    def __call__(self, state: TrainState) -> tuple[TrainState, Metrics, np.ndarray]:
        """A training step.

        Returns:
            The next state, the metrics, and seconds of rollout and update, one row per device of this process. A
            device's update begins where its rollout ends.
        """
        start_s = time.perf_counter()
        envs, collected = self._roll_out(state.envs, state.learner)
        rollouts = _Ends(collected.episode_length)
        learner, metrics = self._improve(state.learner, collected)
        updates = _Ends(learner.iteration)
        del collected
        ends_s = np.asarray([rollouts.wait(), updates.wait()]) - start_s
        ends_s[0] = np.minimum(*ends_s)  # the thread of a rollout may be late, when its update has ended already
        return TrainState(learner, envs), metrics, np.diff(ends_s, axis=0, prepend=0.0).T


class _Ends:
    """When each device of this process has computed its share of an array."""

    def __init__(self, computed: jax.Array) -> None:
        dispatched_s = time.perf_counter()
        shares = [shard.data for shard in computed.addressable_shards]
        # A small program may be done by the time its call returns; a thread would only see it later.
        self._ends_s = [dispatched_s if share.is_ready() else math.nan for share in shares]
        self._threads = [
            # Daemons: one that waits for ever keeps no process from ending.
            threading.Thread(target=self._watch, args=(i, share), daemon=True)
            for i, share in enumerate(shares)
            if math.isnan(self._ends_s[i])
        ]
        for thread in self._threads:
            thread.start()

    def _watch(self, index: int, share: jax.Array) -> None:
        with contextlib.suppress(Exception):  # raised as well where the metrics are read
            share.block_until_ready()
            self._ends_s[index] = time.perf_counter()

    def wait(self) -> list[float]:
        """The times, by `time.perf_counter`, once all are known; NaN for a device that failed."""
        for thread in self._threads:
            thread.join()
        return self._ends_s


def time_synchronisation(task: RLTask[Any], state: TrainState) -> float | None:
    """Seconds of an iteration in which gradients are averaged over devices, without waiting for a slower one.

    The synchronisation is timed by itself, on arrays like the gradients. None on one device.
    """
    layout = task.layout
    if layout.axis_name is None:
        return None
    learner = task.make_train_step(layout.axis_name).learner
    compiled = layout.map(lambda params: learner.sync_gradients(params)).lower(state.learner.params).compile()
    durations = []
    for _ in range(5):  # the same number in every process
        start_s = time.perf_counter()
        jax.block_until_ready(compiled(state.learner.params))
        durations.append(time.perf_counter() - start_s)
    return statistics.median(durations) * learner.figures().syncs_per_iteration


def device_times(times_s: np.ndarray) -> dict[str, float]:
    """Metrics of what devices took for the halves of an iteration.

    A device that is done with its rollout waits for the others in the first collective of the update. So the rollout
    took as long as the slowest device's, and the update as long as the shortest.

    Args:
        times_s: Seconds of rollout and update, one row per device of all processes.
    """
    rollout_s, update_s = times_s.astype(float).T
    metrics = {
        "time/rollout_s": float(rollout_s.max()),
        "time/update_s": float(update_s.min()),
        "time/rollout_skew_s": float(rollout_s.max() - rollout_s.min()),
    }
    return metrics | per_device("time/rollout_s/device", rollout_s) | per_device("time/update_s/device", update_s)


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of a step as floats: those of single devices by name, as in `episode/count/device_0`."""
    flat: dict[str, float] = {}
    for name, x in metrics.items():
        flat |= per_device(name, x) if np.ndim(x) else {name: float(x)}
    return flat


def per_device(name: str, values: np.ndarray) -> dict[str, float]:
    """A figure of each device by its index; none on a single device, whose figure is that of all."""
    return {f"{name}_{i}": float(x) for i, x in enumerate(values)} if len(values) > 1 else {}


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
