"""Messages and policies between a training process and the viewer's process."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ksim.nn.actor_critic import AbstractActorCritic

READY, WANTED, FAILED = "ready", "wanted", "failed"
"""Kinds of the viewer's messages. Their texts are the page's address, nothing, and the reason."""


def write_policy(path: Path, iteration: int, model: AbstractActorCritic) -> None:
    """Writes the arrays of a policy so that a reader sees all of them or the previous file."""
    arrays = {f"array_{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(eqx.filter(model, _is_plain)))}
    # Renamed and not synced to the disk, as a checkpoint would be: training waits for it.
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, iteration=np.array(iteration), **arrays)
    temporary.replace(path)


def read_policy(path: Path, model: AbstractActorCritic) -> tuple[int, AbstractActorCritic]:
    """The written iteration and policy; `model` is a policy of the same structure."""
    with np.load(path, allow_pickle=False) as file:
        plain, rest = eqx.partition(model, _is_plain)
        leaves, structure = jax.tree.flatten(plain)
        found = [jax.numpy.asarray(file[f"array_{i}"]) for i in range(len(leaves))]
        return int(file["iteration"]), eqx.combine(jax.tree.unflatten(structure, found), rest)


def _is_plain(leaf: Any) -> bool:
    return eqx.is_array(leaf) and not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
