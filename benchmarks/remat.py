"""What gradient checkpointing (`remat=true`) saves and costs: memory of the compiled program, and time of the update.

python -m benchmarks.remat --num-envs 1024 --repeats 7

The learning half of the walking humanoid's training step on one device, with a feed-forward and a recurrent network,
with and without `remat`: both compiled first, then run in turn on the same random rollout. Times are of the processor,
over all threads, which other programs on the machine change less than those of the clock.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask

import jax
import jax.numpy as jnp
from ksim.types import TrainState


def learning(task: Any, state: TrainState) -> tuple[Any, Callable[[], float]]:
    """A task's learning half, compiled, and its processor seconds as a function to call again and again."""
    learner = task.make_train_step(None).learner
    shapes, _ = jax.eval_shape(learner.collect, state, state.learner.key)
    keys = jax.random.split(state.learner.key, len(jax.tree.leaves(shapes)))
    keys = jax.tree.unflatten(jax.tree.structure(shapes), list(keys))
    # Zeros would not do: on a CPU, learning from them was seen to take twice as long.
    collected = jax.tree.map(lambda x, key: (0.1 * jax.random.normal(key, x.shape)).astype(x.dtype), shapes, keys)
    collected = dataclasses.replace(collected, model_carry=state.envs.model_carry)
    arguments = (state.learner, collected, state.learner.key, jnp.bool_(True))
    compiled = jax.jit(learner.learn).lower(*arguments).compile()

    def timed() -> float:
        start_s = time.process_time()
        jax.block_until_ready(compiled(*arguments))
        return time.process_time() - start_s

    return compiled, timed


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print("| model | minibatches | memory without, MiB | with remat, MiB | processor time with over without |")
    print("|---|---|---|---|---|", flush=True)
    for model, num_batches in (("mlp", 4), ("mlp", 1), ("gru", 4), ("gru", 1)):
        options = {"num_envs": args.num_envs, "num_batches": num_batches, "model": model, "engine": "mujoco"}
        tasks = [HumanoidWalkingTask(HumanoidWalkingConfig(**options, remat=remat)) for remat in (False, True)]
        state = tasks[0].initial_state()
        programs, timers = zip(*(learning(task, state) for task in tasks), strict=True)
        memory = [program.memory_analysis().temp_size_in_bytes / 2**20 for program in programs]
        ratios = []
        for repeat in range(args.repeats + 1):
            # In alternating order, or the second would always have the warmer machine; the first turn warms up.
            order = (0, 1) if repeat % 2 else (1, 0)
            seconds = {i: timers[i]() for i in order}
            if repeat:
                ratios.append(seconds[1] / seconds[0])
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"| {model} | {num_batches} | {memory[0]:,.0f} | {memory[1]:,.0f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
