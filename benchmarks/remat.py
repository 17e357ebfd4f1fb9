"""Gradient checkpointing (`remat=true`): memory of the compiled program, and time of the update, with and without it.

python -m benchmarks.remat --num-envs 1024 --repeats 7

The learning half of the walking humanoid's training step on one device, with a feed-forward and a recurrent network,
with and without `remat`: both compiled first, then run in turn on the same random rollout. Times are of the processor,
over all threads, which other programs on the machine change less than those of the clock.
"""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from benchmarks import PLAIN
from benchmarks.timing import ratios, time_in_turn
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask

import jax
import jax.numpy as jnp
from ksim.tools.measure import spread
from ksim.types import TrainState


def learning(task: Any, state: TrainState) -> tuple[Any, Callable[[], Any]]:
    """A task's learning half, compiled, and a function that runs it."""
    algorithm = task.make_train_step(None).algorithm
    shapes, _ = jax.eval_shape(algorithm.collect, state, state.learner.key)
    keys = jax.random.split(state.learner.key, len(jax.tree.leaves(shapes)))
    keys = jax.tree.unflatten(jax.tree.structure(shapes), list(keys))
    # Zeros would not do: on a CPU, learning from them was seen to take twice as long.
    collected = jax.tree.map(lambda x, key: (0.1 * jax.random.normal(key, x.shape)).astype(x.dtype), shapes, keys)
    collected = dataclasses.replace(collected, model_carry=state.envs.model_carry)
    arguments = (state.learner, collected, state.learner.key, jnp.bool_(True))
    compiled = jax.jit(algorithm.learn).lower(*arguments).compile()
    return compiled, lambda: compiled(*arguments)


def main() -> None:
    """Prints the table, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print("| model | minibatches | memory without, MiB | with remat, MiB | processor time with over without |")
    print("|---|---|---|---|---|", flush=True)
    for model, num_batches in (("mlp", 4), ("mlp", 1), ("gru", 4), ("gru", 1)):
        options = PLAIN | {"num_envs": args.num_envs, "num_batches": num_batches, "model": model, "engine": "mujoco"}
        tasks = [HumanoidWalkingTask(HumanoidWalkingConfig(**options, remat=remat)) for remat in (False, True)]
        state = tasks[0].initial_state()
        programs, runs = zip(*(learning(task, state) for task in tasks), strict=True)
        memory = [program.memory_analysis().temp_size_in_bytes / 2**20 for program in programs]
        found = time_in_turn(dict(zip(("without", "with"), runs, strict=True)), args.repeats)
        ratio = spread(ratios(found["with"], found["without"], "processor"))
        print(f"| {model} | {num_batches} | {memory[0]:,.0f} | {memory[1]:,.0f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
