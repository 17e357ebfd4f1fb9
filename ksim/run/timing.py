"""Where a run's time and memory go."""

import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ksim.parallel.placement import is_key
from ksim.types import LearnerState, TrainState

if TYPE_CHECKING:
    from ksim.task.rl import RLTask


def time_learning(task: "RLTask[Any]", state: TrainState) -> float:
    """Seconds that learning from one rollout takes by itself, on a trajectory of zeros.

    The training step is one program, whose parts cannot be timed from outside; its learning half is compiled once
    more for this. The run's state is not touched.
    """
    step = task.make_train_step(task.layout.axis_name)

    def learn(state: TrainState) -> LearnerState:
        shapes, _, _ = jax.eval_shape(step.collect, state, state.learner.key)
        trajectory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        # Tied to an input: a constant trajectory would be folded away by the compiler.
        offset = state.envs.episode_return[0] * 0
        trajectory = jax.tree.map(
            lambda x: x + offset.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, trajectory
        )
        return step.learn(state.learner, state.envs.model_carry, trajectory, state.learner.key)[0]

    compiled = task.layout.map(learn).lower(state).compile()
    durations = []
    for _ in range(2):
        start_s = time.perf_counter()
        result = compiled(state)
        jax.block_until_ready([x for x in jax.tree.leaves(result) if not is_key(x)])
        durations.append(time.perf_counter() - start_s)
    return min(durations)


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
