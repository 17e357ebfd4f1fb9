"""Placement of state on devices, replicated or sharded by envs, and its inverse.

Placed leaves have a leading axis over the devices of all processes, with one row on each device. The mapped step
returns the same placement, so it compiles only once, at its first call.

Leaves may be JAX or NumPy arrays, typed PRNG keys and Python numbers. Anything else in a tree (a string, the
activation function of an Equinox module) belongs to its structure and is unchanged.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ksim.checks import check_divisible
from ksim.errors import ConfigError
from ksim.parallel.multihost import gather_rows
from ksim.types import Device


def is_key(x: object) -> bool:
    """Whether `x` is an array of typed PRNG keys."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def unwrap_keys(tree: PyTree) -> PyTree:
    """Typed keys as their raw data, with other leaves unchanged, for NumPy and checkpoints."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def wrap_keys(tree: PyTree, like: PyTree) -> PyTree:
    """The inverse of `unwrap_keys`: wraps a leaf where the same leaf of `like` is a typed key."""
    return jax.tree.map(
        lambda x, y: jax.random.wrap_key_data(jnp.asarray(x), impl=jax.random.key_impl(y)) if is_key(y) else x,
        tree,
        like,
    )


def named_leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree by their paths, as in `actor.layers[0].weight`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{prefix}{jax.tree_util.keystr(path)}".lstrip("."): leaf for path, leaf in leaves}


def copy_of(tree: PyTree) -> PyTree:
    """Host arrays that share no memory with a device; typed keys stay typed."""
    return wrap_keys(jax.tree.map(lambda x: np.array(x, copy=True), unwrap_keys(tree)), tree)


def replicate_state(tree: PyTree, devices: Sequence[Device] | None = None, axis_name: str = "device") -> PyTree:
    """One copy of every leaf per device, under a new leading axis: arrays of shape (num_devices, *shape).

    Args:
        tree: The tree to copy to every device; it must be the same in every process.
        devices: The devices of all processes, default all there are.

    Raises:
        ConfigError: A whole number is too large for the 32 bits that it would have on a device.
    """
    devices = list(devices or jax.devices())
    numbers, rest = _partition(tree)
    num_local = len(_local(devices))
    copies = jax.tree.map(lambda x: np.broadcast_to(x[None], (num_local, *x.shape)), _host(numbers))
    return eqx.combine(wrap_keys(_place(copies, devices, axis_name), numbers), rest)


def unreplicate_state(tree: PyTree) -> PyTree:
    """The inverse of `replicate_state`: this process's first replica as host arrays; typed keys stay typed."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    # Indexing x[0] would run a gather over all devices; reading a shard does not.
    host = jax.tree.map(lambda x: np.asarray(x.addressable_shards[0].data)[0], unwrap_keys(arrays))
    return eqx.combine(wrap_keys(host, arrays), rest)


def shard_environments(
    tree: PyTree, devices: Sequence[Device] | None = None, axis_name: str = "device", *, num_envs: int | None = None
) -> PyTree:
    """Each device's equal, consecutive share of a global batch, (num_devices, num_envs / num_devices, ...).

    A batch that is already sharded over the devices stays where it is. Otherwise every process places the shares of its
    own devices, so the batch must be the same in all processes.

    Args:
        tree: Arrays whose leading axis is the global batch of envs, the same for every leaf.
        devices: The devices of all processes, default all there are.
        num_envs: The number of envs; by default that of the leaves.

    Raises:
        ConfigError: A leaf has no leading env axis or another length than the rest, or the number of envs is not
            divisible by the number of devices.
    """
    devices = list(devices or jax.devices())
    numbers, rest = _partition(tree)
    if not jax.tree.leaves(numbers):
        return tree
    num_envs = check_env_axis(numbers, num_envs)
    check_divisible("Number of environments", num_envs, "number of devices", len(devices))
    leaves, structure = jax.tree.flatten(unwrap_keys(numbers))
    wanted = _sharding(devices, axis_name)
    there = [isinstance(x, jax.Array) and x.sharding.is_equivalent_to(wanted, x.ndim) for x in leaves]
    share = num_envs // len(devices)
    first = next(i for i, device in enumerate(devices) if device.process_index == jax.process_index()) * share
    # Rows that are on their devices stay there; this process's rows of all others are sent to its devices.
    split = jax.jit(lambda xs: [x.reshape(len(devices), share, *x.shape[1:]) for x in xs], out_shardings=wanted)
    stayed = iter(split([x for x, is_there in zip(leaves, there, strict=True) if is_there]))
    num_local = len(_local(devices))
    rows = _host([x for x, is_there in zip(leaves, there, strict=True) if not is_there])
    rows = [x[first : first + num_local * share].reshape(num_local, share, *x.shape[1:]) for x in rows]
    sent = iter(_place(rows, devices, axis_name))
    placed = jax.tree.unflatten(structure, [next(stayed if is_there else sent) for is_there in there])
    return eqx.combine(wrap_keys(placed, numbers), rest)


def gather_environments(tree: PyTree) -> PyTree:
    """The inverse of `shard_environments`: host arrays of the global batch in every process; typed keys stay typed."""
    arrays, rest = eqx.partition(tree, eqx.is_array)

    def rows(x: Any) -> np.ndarray:
        own = np.concatenate([np.asarray(shard.data) for shard in x.addressable_shards])
        own = own.reshape(own.shape[0] * own.shape[1], *own.shape[2:])
        return own if x.is_fully_addressable else np.concatenate(gather_rows(own))

    return eqx.combine(wrap_keys(jax.tree.map(rows, unwrap_keys(arrays)), arrays), rest)


def local_rows(batch: Any) -> np.ndarray:
    """The rows of a global batch that are on this process's devices: all, where it is sharded over none."""
    if not isinstance(batch, jax.Array) or batch.is_fully_addressable:
        return np.asarray(batch)
    return np.concatenate([np.asarray(shard.data) for shard in batch.addressable_shards])


def join_shares(tree: PyTree) -> PyTree:
    """The shares of a global batch, of shape (devices, envs of each, ...), as one batch that stays where it is."""
    sharding = jax.tree.leaves(unwrap_keys(tree))[0].sharding
    merge = lambda tree: jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), tree)
    return jax.jit(merge, out_shardings=sharding)(tree)


def check_env_axis(tree: PyTree, num_envs: int | None) -> int:
    """The number of envs; raises ConfigError unless it is the length of the leading axis of every leaf."""
    shapes = {jax.tree_util.keystr(p): np.shape(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)}
    lengths = [shape[0] for shape in shapes.values() if shape]
    if num_envs is None:
        num_envs = int(max(lengths, key=lengths.count)) if lengths else 0
    for path, shape in shapes.items():
        if not shape or shape[0] != num_envs:
            raise ConfigError(
                f"Leaf env_state{path} has shape {shape}, but every leaf of an environment state must have the number "
                f"of environments ({num_envs}) as its leading axis. What is the same for all of them is replicated, "
                "not sharded: broadcast it to one row per environment, or keep it elsewhere."
            )
    return num_envs


def _partition(tree: PyTree) -> tuple[PyTree, PyTree]:
    """The leaves to place, and the rest of the tree."""
    return eqx.partition(tree, eqx.is_array_like)


def _host(tree: PyTree) -> PyTree:
    """Host arrays with the dtypes that they have on a device; typed keys as raw data."""

    def convert(path: Any, x: Any) -> np.ndarray:
        host = np.asarray(x)
        kept = host.astype(jax.dtypes.canonicalize_dtype(host.dtype))
        if host.dtype.kind in "iu" and not np.array_equal(host, kept):
            name = jax.tree_util.keystr(path)
            raise ConfigError(
                f"Leaf {name} holds a number beyond {kept.dtype}'s range, such as {host.ravel()[0]}. Keep it on the "
                "host, or set JAX_ENABLE_X64=1."
            )
        return kept

    return jax.tree_util.tree_map_with_path(convert, unwrap_keys(tree))


def _local(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if device.process_index == jax.process_index()]


def _sharding(devices: Sequence[Device], axis_name: str) -> NamedSharding:
    return NamedSharding(Mesh(np.asarray(devices), (axis_name,)), PartitionSpec(axis_name))


def _place(rows: PyTree, devices: Sequence[Device], axis_name: str) -> PyTree:
    """Host arrays with one row per local device as arrays with one row per device."""
    local = _local(devices)
    placed = jax.device_put(rows, _sharding(local, axis_name))
    if len(local) == len(devices):
        return placed
    wanted = _sharding(devices, axis_name)

    def of_all_processes(x: jax.Array) -> jax.Array:
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays((len(devices), *x.shape[1:]), wanted, shards)

    return jax.tree.map(of_all_processes, placed)
