"""Checkpoints as tests write and read them."""

from ksim.checkpoint.format import CHECKPOINTS, list_checkpoints, read_checkpoint, write_checkpoint
from ksim.checkpoint.progress import KEPT
from ksim.checkpoint.run_dir import save_program
from ksim.checkpoint.snapshot import named_arrays, plain_config, restored, run_document, versions
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.policy.load import program_arrays

DOCUMENT = {"iteration": 1, "num_devices": 1, "progress": dict.fromkeys(KEPT, 1), "config": {}, "versions": {}}
"""The least that the document of a checkpoint says."""


def newest(run_dir):
    """The path of the newest checkpoint of a run; None without one."""
    found = list_checkpoints(run_dir / CHECKPOINTS)
    return found[-1] if found else None


def saved_learner(task, run_dir):
    """The learner in the newest checkpoint of a run."""
    return restored(read_checkpoint(newest(run_dir)), task.initial_learner().state, "learner")


def save_learner(task, run_dir, iteration, learner):
    """Writes a checkpoint of a learner alone."""
    arrays = {f"learner.{name}": x for name, x in named_arrays(learner).items()}
    document = {**DOCUMENT, "iteration": iteration, "config": plain_config(task.config), "versions": versions()}
    write_checkpoint(run_dir / CHECKPOINTS / str(iteration), arrays, document)


def save_run(task, run_dir, iteration=1):
    """Writes what a run leaves that ends after so many iterations and has learned nothing; returns its state."""
    state = task.initial_state()
    model = NormalizedActorCritic(task.initial_learner().network, state.learner.normalizer)
    progress = dict.fromkeys(KEPT, iteration)
    document = run_document(task, iteration=iteration, progress=progress, last_episodes={"return": 1.5})
    arrays = named_arrays(state) | program_arrays(model, task.obs_sizes)
    write_checkpoint(run_dir / CHECKPOINTS / str(iteration), arrays, document)
    save_program(task.config, None, run_dir)
    return state
