"""Where a run's time and memory go."""

import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

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
    while len(durations) < 2 or (sum(durations) < 0.2 and len(durations) < 10):
        start_s = time.perf_counter()
        jax.block_until_ready(compiled(state, trajectory))
        durations.append(time.perf_counter() - start_s)
    return min(durations)


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
