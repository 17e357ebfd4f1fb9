"""Reductions over devices, inside the mapped step. Each is the identity where `axis_name` is None.

`bind_axis` is what gives code of a user's the axis where there is but one device.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

DEVICE_AXIS = "device"
"""The name of the axis of devices, unless a task names it otherwise."""


def bind_axis(function: Callable[..., Any], axis_name: str) -> Callable[..., Any]:
    """A function in which collectives over `axis_name` work, as on a single device.

    Nothing is mapped, so that the program of a function without collectives is the same as unbound, and that of a mean
    over one device is the identity. What depends on `jax.lax.axis_index` has an axis of length 1 more inside.

    Args:
        function: A function of anything; it returns arrays.
        axis_name: The name of the axis.
    """

    @functools.wraps(function, updated=())
    def bound(*args: Any) -> PyTree:
        out = jax.vmap(lambda: function(*args), in_axes=(), axis_name=axis_name, axis_size=1)()
        return jax.tree.map(lambda x: jax.lax.index_in_dim(x, 0, keepdims=False), out)

    return bound


def shapes_on_devices(function: Callable[..., Any], axis_name: str, num_devices: int, *args: Any) -> Any:
    """What a function returns on each of so many devices, with shapes in place of arrays; nothing is run.

    Unlike in `bind_axis`, collectives may be over groups of the devices (`axis_index_groups`), as where it is mapped.

    Args:
        function: A function of arrays; it returns arrays.
        axis_name: The name of the axis of devices.
        num_devices: Its length.
        args: Trees of arrays or of shapes.
    """
    return jax.make_jaxpr(function, axis_env=[(axis_name, num_devices)], return_shape=True)(*args)[1]


def mean_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The mean of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.pmean, tree, axis_name)


def sum_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The sum of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.psum, tree, axis_name)


def min_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The smallest of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.pmin, tree, axis_name)


def max_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The largest of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.pmax, tree, axis_name)


def _reduce(reduce: Callable[[Array, str], Array], tree: PyTree, axis_name: str) -> PyTree:
    """Reduces all leaves of a type as one vector: between processes every single reduction costs milliseconds."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    reduced: dict[int, Array] = {}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        whole = reduce(jnp.concatenate([leaves[i].ravel() for i in places]), axis_name)
        parts = jnp.split(whole, np.cumsum([leaves[i].size for i in places])[:-1])
        reduced |= {i: part.reshape(leaves[i].shape) for i, part in zip(places, parts, strict=True)}
    return jax.tree.unflatten(structure, [reduced[i] for i in range(len(leaves))])


def gather_across_devices(x: Array, axis_name: str | None) -> Array:
    """The arrays of all devices, in their order, under a new leading axis."""
    return x[None] if axis_name is None else jax.lax.all_gather(x, axis_name)


def all_across_devices(flag: Bool[Array, ""], axis_name: str | None) -> Bool[Array, ""]:
    """Whether `flag` holds on every device."""
    return flag if axis_name is None else jax.lax.pmin(flag.astype(jnp.int32), axis_name) == 1


def device_index(axis_name: str | None) -> Int[Array, ""]:
    """This device's place among the devices; 0 on a single one."""
    return jnp.int32(0) if axis_name is None else jax.lax.axis_index(axis_name)


def global_env_index(num_local_envs: int, axis_name: str | None) -> Int[Array, " e"]:
    """The place of each of this device's envs in the global batch: device d of D holds [d*E/D, (d+1)*E/D)."""
    return device_index(axis_name) * num_local_envs + jnp.arange(num_local_envs)


def moments_across_devices(
    x: Float[Array, "*batch"], axis_name: str | None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and variance of all elements on all devices, each holding as many; two passes, for accuracy."""
    mean = mean_across_devices(jnp.mean(x), axis_name)
    variance = mean_across_devices(jnp.mean(jnp.square(x - mean)), axis_name)
    return mean, variance
