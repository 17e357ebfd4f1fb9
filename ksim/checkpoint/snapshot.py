"""The content of a checkpoint: conversion from and to a training state."""

import dataclasses
import enum
import functools
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ksim._version import __version__
from ksim.checkpoint.format import CHECKPOINTS, Arrays, Checkpoint, write_checkpoint
from ksim.config import is_of_the_run
from ksim.errors import ConfigError, quoted
from ksim.parallel.placement import copy_of, named_leaves, unwrap_keys, wrap_keys
from ksim.task.rl import RLTask
from ksim.types import LearnerState, TrainState

_PACKAGES = ("jax", "jaxlib", "mujoco", "mujoco-mjx", "equinox", "optax", "safetensors", "numpy")
_STATE = ("learner.", "envs.")
"""Prefixes of the names of a training state's arrays. A checkpoint may hold other arrays as well."""
_OF_THE_POLICY = ("learner.params", "learner.normalizer")
"""Prefixes of the names of the arrays that a policy needs to act."""
_NEXT_STARTS = "envs.next_start."
"""Prefix of the names of the arrays that older checkpoints do not have."""
_MAX_NAMED = 8


def host_state(task: RLTask[Any], state: TrainState) -> TrainState:
    """A copy of a placed state as host arrays, without a device axis, all envs in global order.

    All processes must call this.
    """
    layout = task.layout
    # Copied, because the next step reuses the memory of the state.
    return copy_of(TrainState(learner=layout.first(state.learner), envs=layout.join_envs(state.envs)))


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a pytree on the host by path; typed PRNG keys as their raw data."""
    return {name: np.asarray(leaf) for name, leaf in named_leaves(unwrap_keys(tree)).items()}


def run_document(task: RLTask[Any], **parts: Any) -> dict[str, Any]:
    """The document of a checkpoint: task, config, versions, number of devices, and `parts`."""
    return {
        "task": task.task_name,
        "config": plain_config(task.config),
        "versions": versions(),
        "num_devices": task.layout.num_devices,
        **parts,
    }


def plain_config(config: Any) -> dict[str, Any]:
    """A config as a dict of types that JSON can represent."""
    # Through JSON, so that a tuple becomes a list, as in a checkpoint that was read, and the two compare equal.
    return json.loads(json.dumps(dataclasses.asdict(config), default=_plain))


def _plain(value: Any) -> str:
    """The name of an enum's member; raises TypeError for other objects."""
    if isinstance(value, enum.Enum):
        return value.name
    raise TypeError(f"An option cannot be saved: {quoted(value)}.")


@functools.cache
def versions() -> Mapping[str, str]:
    """The versions of Python and of the packages that results depend on, read once, in the first call.

    Packages that are replaced on disk during a run are not the ones that it imported.
    """
    found = {"python": platform.python_version(), "ksim": __version__}
    return found | {name: importlib.metadata.version(name) for name in _PACKAGES}


def changed_options(config: Any, checkpoint: Checkpoint) -> dict[str, tuple[Any, Any]]:
    """Options whose value differs from the saved one: the saved and the new value."""
    return _differences(checkpoint, plain_config(config), config)


def kept_options(config: Any, program_config: Any, checkpoint: Checkpoint) -> dict[str, tuple[Any, Any]]:
    """Saved options that differ from the program's config: the saved and the program's value.

    These options were edited in the program since, but the checkpoint overrides the edit.
    """
    changed = changed_options(config, checkpoint)
    differ = _differences(checkpoint, plain_config(program_config), config)
    return {name: values for name, values in differ.items() if name not in changed}


def _differences(checkpoint: Checkpoint, values: Mapping[str, Any], config: Any) -> dict[str, tuple[Any, Any]]:
    saved = checkpoint.document["config"]
    names = [field.name for field in dataclasses.fields(config) if is_of_the_run(field)]
    return {name: (saved[name], values[name]) for name in names if name in saved and saved[name] != values[name]}


def restored(checkpoint: Checkpoint, like: PyTree, prefix: str = "") -> PyTree:
    """A pytree like `like` with the arrays of a checkpoint, on the host; typed PRNG keys are restored as typed keys.

    `like` has the expected structure, shapes and dtypes. In the checkpoint, its leaves' names begin with `prefix`.

    Raises:
        ConfigError: A leaf is missing, or has another shape or dtype.
    """
    wanted = named_leaves(unwrap_keys(like), prefix)
    there = {name: x for name, x in checkpoint.arrays.items() if name.startswith(prefix or _STATE)}
    if not any(name.startswith(_NEXT_STARTS) for name in there):
        there |= {name: x for name, x in wanted.items() if name.startswith(_NEXT_STARTS)}
    _check_fit(checkpoint, there, wanted)
    leaves = [there[name] for name in wanted]
    return wrap_keys(jax.tree.unflatten(jax.tree.structure(unwrap_keys(like)), leaves), like)


def check_policy_fits(checkpoint: Checkpoint, task: RLTask[Any]) -> None:
    """Raises ConfigError unless the policy of a checkpoint has the shapes of the task's policy; compiles nothing."""
    learner = task.learner_shapes().state
    parts = dict(zip(_OF_THE_POLICY, unwrap_keys((learner.params, learner.normalizer)), strict=True))
    wanted = {name: x for part, tree in parts.items() for name, x in named_leaves(tree, part).items()}
    there = {name: x for name, x in checkpoint.arrays.items() if name.startswith(_OF_THE_POLICY)}
    _check_fit(checkpoint, there, wanted, task.task_name)


def restored_policy(checkpoint: Checkpoint, initial: LearnerState) -> LearnerState:
    """An initial learner with a checkpoint's networks and observation statistics."""
    return dataclasses.replace(
        initial,
        params=restored(checkpoint, initial.params, "learner.params"),
        normalizer=restored(checkpoint, initial.normalizer, "learner.normalizer"),
    )


def write_policy_alone(checkpoint: Checkpoint, directory: Path, programs: Arrays) -> Path:
    """Writes a checkpoint with only the arrays that its policy needs, without optimizer and envs; returns its path.

    It is `<directory>/checkpoints/<iteration>`, and replaces the checkpoints there. This JAX exported the programs.
    """
    path = directory / CHECKPOINTS / str(checkpoint.iteration)
    if path.resolve() != checkpoint.path.resolve():
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir(parents=True)
        arrays = {name: x for name, x in checkpoint.arrays.items() if name.startswith(_OF_THE_POLICY)}
        write_checkpoint(path, {**arrays, **programs}, checkpoint.document)
    return path


def _check_fit(checkpoint: Checkpoint, there: Arrays, wanted: Mapping[str, Any], task_name: str | None = None) -> None:
    problems = [
        f"{name} is {_kind(there.get(name))} there and {_kind(wanted.get(name))} here"
        for name in {**wanted, **there}
        if _kind(there.get(name)) != _kind(wanted.get(name))
    ]
    if not problems:
        return
    more = f"; and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
    other = checkpoint.document.get("task", task_name)
    of_another = "" if task_name in (None, other) else f" It is of the task {quoted(other)}, and this is {task_name!r}."
    raise ConfigError(
        f"Checkpoint {checkpoint.path} does not fit this task: {'; '.join(problems[:_MAX_NAMED])}{more}."
        f"{of_another} Use the options of its config.yaml and the code that it was written with."
    )


def _kind(x: Any) -> str:
    return "missing" if x is None else f"{x.dtype}{list(np.shape(x))}"
