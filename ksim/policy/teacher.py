"""The teacher of a distillation, from its own checkpoint or from a checkpoint of its student."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ksim.checkpoint.format import Checkpoint, load_checkpoint
from ksim.checkpoint.kept import kept_in_run
from ksim.errors import ConfigError
from ksim.learn.teacher import Teacher
from ksim.policy.load import arrays_of_policy, policy_in
from ksim.policy.program import PolicyProgram
from ksim.task.rl import RLTask
from ksim.types import Observation

_KEPT = "teacher."
"""Prefix of the names of a teacher's arrays in a checkpoint of its student."""


def load_teacher(task: RLTask[Any], path: str | Path) -> Teacher:
    """Loads the teacher of a task.

    Checkpoints of a student hold its teacher. A run that is resumed or replayed loads the teacher from there, even if
    the teacher's own run has moved.

    Args:
        task: The student's task.
        path: A run's directory or a checkpoint of the teacher.

    Raises:
        ConfigError: There is no such checkpoint, it is damaged or holds no program of its policy, or the policy has a
            memory.
    """
    checkpoint = _kept_in_run(task) or load_checkpoint(path, "teacher")
    policy = policy_in(checkpoint)
    if policy.program.memory_names:
        raise ConfigError(
            f"teacher ({path}) must be a policy without memory, but its actions depend on "
            f"{len(policy.program.memory_names)} remembered arrays. Train it with model=mlp; the student may be a gru."
        )
    kept = {**arrays_of_policy(checkpoint, policy), "iteration": np.int32(policy.iteration)}
    return Teacher(
        act=functools.partial(_act, policy.program, {name: policy.arrays[name] for name in policy.program.arrays}),
        obs_sizes=policy.obs_sizes,
        action_size=policy.action_size,
        source=f"{path}, iteration {policy.iteration}",
        kept={f"{_KEPT}{name}": np.asarray(x) for name, x in kept.items()},
    )


def _act(program: PolicyProgram, arrays: dict[str, Any], obs: Observation) -> Array:
    step = lambda rows: program.step(arrays, rows, {})[0]
    if not program.takes_one_row:
        return step(obs)
    return jax.lax.map(lambda row: step(jax.tree.map(lambda x: x[None], row))[0], obs)


def _kept_in_run(task: RLTask[Any]) -> Checkpoint | None:
    """The teacher in the checkpoint that a task resumes or replays, as a separate checkpoint."""
    found = kept_in_run(task, _KEPT)
    if found is None:
        return None
    arrays = dict(found.arrays)
    document = {**found.document, "iteration": int(arrays.pop("iteration"))}
    return dataclasses.replace(found, arrays=arrays, document=document)
