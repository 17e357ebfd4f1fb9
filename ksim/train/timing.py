"""Measurements of a run's time and memory."""

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

from ksim.learn.learner import RolloutBatch
from ksim.learn.train_step import TrainStep
from ksim.parallel.layout import AbstractLayout
from ksim.preflight.devices import compiling
from ksim.task.rl import RLTask
from ksim.types import EnvBatch, LearnerState, Metrics, TrainState


class TracedStep:
    """The training step as two programs that are traced and not compiled yet: the rollout, and the update."""

    def __init__(self, layout: AbstractLayout, step: TrainStep, state: TrainState, *, donate: bool) -> None:
        """Traces both programs, so that errors of the task's code are raised before anything compiles.

        With `donate`, the next state reuses the memory of the placed `state`, which is then invalid.

        Raises:
            ConfigError: A curriculum depends on a metric that does not exist.
        """
        shapes: list[RolloutBatch] = []

        def collect(envs: EnvBatch, learner: LearnerState) -> tuple[EnvBatch, RolloutBatch]:
            envs, collected = step.collect(envs, learner)
            # Shapes per device, as inside the mapped function.
            shapes.append(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), collected))
            return envs, collected

        def learn(learner: LearnerState, collected: RolloutBatch) -> tuple[LearnerState, Metrics]:
            return step.learn(learner, collected)

        def zeros(_: Array) -> RolloutBatch:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[0])

        self.step = step
        self._collect, self._learn = layout.map(collect, donate=donate), layout.map(learn, donate=donate)
        self._collect.eval_shape(state.envs, state.learner)
        # Placed like the output of the rollout, and freed before the first rollout.
        self._placeholder: RolloutBatch | None = layout.map(zeros)(state.learner.iteration)
        self._learn.eval_shape(state.learner, self._placeholder)

    def compile(self, state: TrainState) -> "TimedStep":
        """Compiles both programs, once: another shape or placement is then an error, never a recompilation."""
        rollout = compiling("the rollout", self._collect, state.envs, state.learner)
        update = compiling("the update", self._learn, state.learner, self._placeholder)
        self._placeholder = None
        return TimedStep(rollout(), update())


class TimedStep:
    """The training step as two compiled programs, whose ends are timed on every device of this process.

    One host thread per device waits for the device's outputs. So the programs contain nothing for timing alone, no
    device waits for the host, and the programs can be cached wherever the whole step could be.
    """

    def __init__(self, collect: Any, learn: Any) -> None:
        """Takes the programs that `TracedStep` compiled."""
        self._collect, self._learn = collect, learn

    def __call__(self, state: TrainState) -> tuple[TrainState, Metrics, np.ndarray]:
        """Runs a training step.

        Returns:
            The next state, the metrics, and seconds of rollout and update, one row per device of this process. A
            device's update begins where its rollout ends.
        """
        start_s = time.perf_counter()
        envs, collected = self._collect(state.envs, state.learner)
        rollouts = _CompletionTimes(collected.episode_length)
        learner, metrics = self._learn(state.learner, collected)
        updates = _CompletionTimes(learner.iteration)
        del collected
        ends_s = np.asarray([rollouts.wait(), updates.wait()]) - start_s
        ends_s[0] = np.minimum(*ends_s)  # the thread of a rollout may wake only after the update has ended
        return TrainState(learner, envs), metrics, np.diff(ends_s, axis=0, prepend=0.0).T


class _CompletionTimes:
    """The times at which the devices of this process finish their shards of an array."""

    def __init__(self, computed: jax.Array) -> None:
        dispatched_s = time.perf_counter()
        shares = [shard.data for shard in computed.addressable_shards]
        # A small program may be done when its call returns; a thread would notice only later.
        self._ends_s = [dispatched_s if share.is_ready() else math.nan for share in shares]
        self._threads = [
            # Daemons, so that a thread that waits forever does not keep the process alive.
            threading.Thread(target=self._watch, args=(i, share), daemon=True)
            for i, share in enumerate(shares)
            if math.isnan(self._ends_s[i])
        ]
        for thread in self._threads:
            thread.start()

    def _watch(self, index: int, share: jax.Array) -> None:
        with contextlib.suppress(Exception):  # the same error is raised when the metrics are read
            share.block_until_ready()
            self._ends_s[index] = time.perf_counter()

    def wait(self) -> list[float]:
        """Waits for all devices; the times by `time.perf_counter`, NaN for a device that failed."""
        for thread in self._threads:
            thread.join()
        return self._ends_s


def time_synchronisation(task: RLTask[Any], state: TrainState) -> float | None:
    """Seconds per iteration for averaging gradients over devices, without the wait for slower devices.

    The synchronisation is timed by itself, on arrays like the gradients. None on one device.
    """
    layout = task.layout
    if layout.axis_name is None:
        return None
    algorithm = task.make_train_step(layout.axis_name).algorithm
    compiled = layout.map(lambda params: algorithm.sync_gradients(params)).lower(state.learner.params).compile()
    durations = []
    for _ in range(5):  # the same number in every process
        start_s = time.perf_counter()
        jax.block_until_ready(compiled(state.learner.params))
        durations.append(time.perf_counter() - start_s)
    return statistics.median(durations) * algorithm.info().syncs_per_iteration


def device_times(times_s: np.ndarray) -> dict[str, float]:
    """Metrics of rollout and update times, from their seconds in one row per device of all processes.

    A device that has finished its rollout waits for the others in the first collective of the update. So the time of
    the rollout is the maximum over devices, and the time of the update the minimum.
    """
    rollout_s, update_s = times_s.astype(float).T
    metrics = {
        "time/rollout_s": float(rollout_s.max()),
        "time/update_s": float(update_s.min()),
        "time/rollout_skew_s": float(rollout_s.max() - rollout_s.min()),
    }
    return metrics | per_device("time/rollout_s/device", rollout_s) | per_device("time/update_s/device", update_s)


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of a step as floats; per-device metrics get the device in their name, as in `episode/count/device_0`."""
    flat: dict[str, float] = {}
    for name, x in metrics.items():
        flat |= per_device(name, x) if np.ndim(x) else {name: float(x)}
    return flat


def per_device(name: str, values: np.ndarray) -> dict[str, float]:
    """One metric per device, named by its index; empty on a single device, where the total says the same."""
    return {f"{name}_{i}": float(x) for i, x in enumerate(values)} if len(values) > 1 else {}


class HostTimers:
    """Seconds that the host spent outside the training step, since the last `take`."""

    def __init__(self) -> None:
        self._seconds = {"evaluation": 0.0, "logging": 0.0, "saving": 0.0, "callbacks": 0.0}

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the duration of the block to a timer: `evaluation`, `logging`, `saving` or `callbacks`."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - start_s

    def take(self) -> dict[str, float]:
        """The timers as metrics; resets them to zero."""
        taken = {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return taken


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
