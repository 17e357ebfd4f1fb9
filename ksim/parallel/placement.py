"""Putting state on devices: copies of what is replicated, equal shares of what is per env."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ksim.types import ConfigError, Device


def is_key(x: object) -> bool:
    """Whether `x` is an array of typed PRNG keys."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def unwrap_keys(tree: PyTree) -> PyTree:
    """Typed keys as their raw data, every other leaf as it is: what numpy and checkpoints can hold."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def wrap_keys(tree: PyTree, like: PyTree) -> PyTree:
    """The inverse of `unwrap_keys`: wraps a leaf where the same leaf of `like` is a typed key."""
    return jax.tree.map(
        lambda x, y: jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(y)) if is_key(y) else x,
        tree,
        like,
    )


def copy_of(tree: PyTree) -> PyTree:
    """Host arrays that share no memory with a device; typed keys stay typed."""
    return wrap_keys(jax.tree.map(lambda x: np.array(x, copy=True), unwrap_keys(tree)), tree)


def replicate_state(tree: PyTree, devices: Sequence[Device] | None = None, axis_name: str = "device") -> PyTree:
    """One copy of every leaf per device, under a new leading axis.

    The placement is that of pmap's outputs, so that the first mapped call is compiled once and for all.

    Args:
        tree: Arrays on the host or on one device; typed PRNG keys included.
        devices: The devices, default all local ones.
        axis_name: The name of the mapped axis.

    Returns:
        The tree with leaves of shape (num_devices, *shape).
    """
    devices = list(devices or jax.local_devices())
    copies = jax.tree.map(
        lambda x: np.broadcast_to(np.asarray(x)[None], (len(devices), *np.shape(x))), unwrap_keys(tree)
    )
    placed = jax.device_put(copies, NamedSharding(Mesh(devices, (axis_name,)), PartitionSpec(axis_name)))
    return wrap_keys(placed, tree)


def shard_environments(tree: PyTree, devices: Sequence[Device] | None = None, axis_name: str = "device") -> PyTree:
    """Each device's equal, consecutive share of a global batch of envs.

    Args:
        tree: Arrays whose leading axis is the global batch of envs, the same for every leaf.
        devices: The devices, default all local ones.
        axis_name: The name of the mapped axis.

    Returns:
        The tree with leaves of shape (num_devices, num_envs / num_devices, ...).

    Raises:
        ConfigError: A leaf has no leading env axis or another length than the rest, or the number of envs is not
            divisible by the number of devices.
    """
    devices = list(devices or jax.local_devices())
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    num_envs = next((x.shape[0] for _, x in leaves if x.ndim > 0), 0)
    for path, leaf in leaves:
        if leaf.ndim == 0 or leaf.shape[0] != num_envs:
            raise ConfigError(
                f"Leaf env_state{jax.tree_util.keystr(path)} has shape {leaf.shape}, but every leaf of an "
                f"environment state must have the number of environments ({num_envs}) as its leading axis."
            )
    check_divisible(num_envs, len(devices))
    split = jax.tree.map(
        lambda x: np.asarray(x).reshape(len(devices), num_envs // len(devices), *x.shape[1:]), unwrap_keys(tree)
    )
    placed = jax.device_put(split, NamedSharding(Mesh(devices, (axis_name,)), PartitionSpec(axis_name)))
    return wrap_keys(placed, tree)


def check_divisible(num_envs: int, num_devices: int) -> None:
    """Raises ConfigError unless the envs divide evenly over the devices."""
    if num_envs % num_devices:
        below = num_envs // num_devices * num_devices
        nearest = [str(n) for n in (below, below + num_devices) if n > 0]
        raise ConfigError(
            f"Number of environments ({num_envs}) must be divisible by number of devices ({num_devices}). "
            f"Nearest valid values: {', '.join(nearest)}."
        )
