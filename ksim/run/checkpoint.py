"""Checkpoints of the learner: un-replicated host arrays, written and read by Orbax."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from ksim.parallel.multihost import num_processes, process_index
from ksim.parallel.placement import unwrap_keys, wrap_keys
from ksim.types import ConfigError, shown


def save_checkpoint(run_dir: Path, iteration: int, tree: PyTree) -> Path:
    """Writes `checkpoints/<iteration>`; it appears under that name only once it is complete.

    Args:
        run_dir: The run's directory.
        iteration: Iterations done.
        tree: Host arrays without a device axis; typed PRNG keys included.
    """
    path = (run_dir / "checkpoints" / str(iteration)).resolve()
    # Of several processes only the one that calls this takes part; Orbax would wait for the others.
    own = {process_index()} if num_processes() > 1 else None
    alone = ocp.options.MultiprocessingOptions(
        primary_host=process_index(), active_processes=own, barrier_sync_key_prefix="ksim" if own else None
    )
    with ocp.StandardCheckpointer(multiprocessing_options=alone) as checkpointer:
        # 0-dimensional leaves as arrays: Orbax does not take numpy scalars.
        checkpointer.save(path, jax.tree.map(np.asarray, unwrap_keys(tree)), force=True)
    return path


def find_checkpoint(path: str | Path) -> Path:
    """The newest checkpoint of a run directory, or the checkpoint that the path itself is.

    Raises:
        ConfigError: There is none.
    """
    path = Path(path)
    try:
        path.exists()
    except OSError as error:
        raise ConfigError(f"checkpoint ({shown(str(path))}) cannot be read: {error.strerror}.") from error
    if (path / "_CHECKPOINT_METADATA").exists():
        return path.resolve()
    parent = path if path.name == "checkpoints" else path / "checkpoints"
    numbered = [p for p in parent.glob("*") if p.name.isdigit() and (p / "_CHECKPOINT_METADATA").exists()]
    if not numbered:
        raise ConfigError(
            f"There is no checkpoint in {path}. Give a run directory, or one of its checkpoints/<number>."
        )
    return max(numbered, key=lambda p: int(p.name)).resolve()


def load_checkpoint(path: Path, like: PyTree) -> PyTree:
    """Reads a checkpoint of the structure, shapes and types of `like`.

    Raises:
        ConfigError: The checkpoint is of another structure: it was written by another task or with other networks.
    """
    expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), unwrap_keys(like))
    with ocp.StandardCheckpointer() as checkpointer:
        try:
            restored = checkpointer.restore(path, expected)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"Checkpoint {path} does not fit this task (its networks, observations or actions differ; use the "
                f"options of its config.yaml), or it is damaged: {str(error).splitlines()[0]}"
            ) from error
    wanted_leaves = dict(jax.tree_util.tree_leaves_with_path(expected))
    for path_in_tree, leaf in jax.tree_util.tree_leaves_with_path(restored):
        wanted = wanted_leaves[path_in_tree]
        if leaf.shape != wanted.shape:
            raise ConfigError(
                f"Checkpoint {path} does not fit this task: {jax.tree_util.keystr(path_in_tree)} has shape "
                f"{leaf.shape} there and {wanted.shape} here. Use the options of its config.yaml."
            )
    return wrap_keys(jax.tree.map(jnp.asarray, restored), like)
