"""Trainings whose results can be compared, in this process or in a job of several.

python -m tests.support.recorded OUT KEY=VALUE ... trains the cart-pole and lets the main process write OUT.
"""

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ksim.parallel.collectives import global_env_index
from ksim.parallel.multihost import is_main_process, wait_for_all
from ksim.parallel.placement import unwrap_keys
from ksim.ppo.minibatches import stratified_minibatches
from ksim.task.overrides import parse_overrides
from ksim.train.timing import scalars
from tests.support.motion_tasks import FloaterConfig, TiltedFloaterTask
from tests.support.processes import finish, start_job
from tests.support.tasks import BipedConfig, BipedTask, CartPoleConfig, CartPoleTask, PathwiseConfig, PathwiseTask

NUM_ITERATIONS = 20


class Run(NamedTuple):
    """The results of a training, on the host.

    Attributes:
        learner: The learner at the end.
        envs: The leaves of the env batch at the end by their path, in global env order.
        history: The metrics of each iteration.
        minibatches: Global envs of each minibatch of the next iteration.
    """

    learner: Any
    envs: dict[str, np.ndarray]
    history: list[dict[str, float]]
    minibatches: np.ndarray


def run_job(directory, task, num_iterations, num_devices=2, **options):
    """The results of a training in two processes."""
    given = (f"{name}={x}" for name, x in options.items())
    worker = ("-m", "tests.support.recorded", "record", task, str(num_iterations), *given)
    for process in start_job(*worker, num_processes=2, num_devices=num_devices, cwd=directory):
        code, output = finish(process)
        assert code == 0, output
    return Run(*pickle.loads((directory / "record").read_bytes()))


def compiled(task, start):
    """The task's training step."""
    task.check()
    return task.layout.compile(task.make_train_step(task.layout.axis_name), task.layout.place(start))


def run(task, start, step, num_iterations=NUM_ITERATIONS):
    """Trains from a state by a compiled step."""
    state = task.layout.place(start)
    history = []
    for _ in range(num_iterations):
        state, metrics = step(state)
        history.append(scalars(task.layout.first(metrics)))
    layout, num_envs, hyper = task.layout, task.config.num_envs, task.hyperparameters()

    def minibatches(state):
        num_local_envs = num_envs // layout.num_devices
        # As in TrainStep.learn.
        key = jax.random.split(jax.random.fold_in(state.learner.key, state.learner.iteration))[1]
        index_mb = stratified_minibatches(
            key, num_local_envs, num_batches=hyper.num_batches, num_passes=hyper.num_passes, axis_name=layout.axis_name
        )
        return global_env_index(num_local_envs, layout.axis_name)[index_mb]

    index_mb = np.asarray(layout.join_envs(layout.map(minibatches)(state)))
    index_dmb = index_mb.reshape(layout.num_devices, hyper.num_passes * hyper.num_batches, -1)
    envs = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(unwrap_keys(layout.join_envs(state.envs)))
        if leaf.size
    }
    return Run(layout.first(state.learner), envs, history, np.concatenate(index_dmb, axis=1))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    out, name, num_iterations, *overrides = sys.argv[1:]
    # Not above: these modules import this one.
    from tests.task.test_amp import StyledConfig, StyledTask
    from tests.task.test_distillation import StudentConfig, StudentTask

    task_class, config = {
        "cart_pole": (CartPoleTask, CartPoleConfig),
        "biped": (BipedTask, BipedConfig),
        "student": (StudentTask, StudentConfig),
        "pathwise": (PathwiseTask, PathwiseConfig),
        "styled": (StyledTask, StyledConfig),
        "floater": (TiltedFloaterTask, FloaterConfig),
    }[name]
    task: Any = task_class(parse_overrides(config(), overrides))
    start = task.initial_state()
    record = run(task, start, compiled(task, start), int(num_iterations))
    if is_main_process():
        fields = record._replace(learner=jax.tree.map(np.asarray, unwrap_keys(record.learner)))
        Path(out).write_bytes(pickle.dumps(tuple(fields)))
    wait_for_all()
