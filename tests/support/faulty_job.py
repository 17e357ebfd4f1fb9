"""The point mass with a fault in one process of a job: python -m tests.support.faulty_job FAULT KEY=VALUE ...

With a fault of the form ITERATION:PROCESS,... these processes kill themselves: each once, after so many iterations, and
only when the newest checkpoint that is due has been written.
"""

import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from examples.point_mass import PointMassConfig, PointMassTask
from ksim.errors import ConfigError
from ksim.parallel.multihost import process_index
from ksim.train import loop

FAULT = sys.argv.pop(1)
DEATHS = dict(map(int, death.split(":")) for death in FAULT.split(",")) if ":" in FAULT else {}


class SlowError(ConfigError):
    """Takes a second to be said again, once the others were told."""

    num_said = 0

    def __str__(self):
        self.num_said += 1
        time.sleep(float(self.num_said > 1))
        return super().__str__()


class Task(PointMassTask):
    def _get_initial_env_state(self, rng):
        state = super()._get_initial_env_state(rng)
        if FAULT == "leave" and process_index() == 1:
            os._exit(1)
        if FAULT == "slow_error" and process_index() == 0:
            raise SlowError("This takes a while to say.")
        if FAULT == "bad_state" and process_index() == 1:
            return dataclasses.replace(state, metrics={"distance": jnp.full(self.config.num_envs, jnp.nan)})
        return state

    def on_step_end(self, state):
        assert process_index() == 0
        if FAULT == "callback" and state.iteration == 3:
            raise ZeroDivisionError("a fault of a hook")
        if FAULT == "exit" and state.iteration == 3:
            sys.exit(3)


iterate = loop.iterate


def faulty(run, step):
    if FAULT == "copy" and run.progress.iteration == 3 and process_index() == 0:
        Task(run.task.config)  # as an evaluation may, which process 0 does by itself
    if run.progress.iteration == 3 and process_index() == 1:
        if FAULT == "raise":
            raise ZeroDivisionError("a fault of process 1")
        if FAULT == "corrupt":
            placed = run.state.get()
            run.state.placed = dataclasses.replace(placed, learner=corrupted(placed.learner))
    if DEATHS.get(run.progress.iteration) == process_index():
        die_once(run)
    iterate(run, step)


def die_once(run):
    iteration, interval = run.progress.iteration, run.task.config.save_every_n_iterations
    grave = Path(f"died_after_{iteration}")
    if not grave.exists():
        while not Path("run", "checkpoints", str(iteration // interval * interval)).exists():
            time.sleep(0.01)
        grave.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def corrupted(learner):
    """A learner with one bit flipped in this process's copy of the first parameter."""
    leaves, structure = jax.tree.flatten(learner.params)
    (shard,) = leaves[0].addressable_shards
    rows = np.asarray(shard.data).copy()
    rows.reshape(-1)[:1].view(np.uint32)[0] ^= 1
    copies = [jax.device_put(rows, shard.device)]
    leaf = jax.make_array_from_single_device_arrays(leaves[0].shape, leaves[0].sharding, copies)
    return dataclasses.replace(learner, params=jax.tree.unflatten(structure, [leaf, *leaves[1:]]))


loop.iterate = faulty

if __name__ == "__main__":
    Task.launch(PointMassConfig())
