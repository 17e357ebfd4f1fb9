"""Reductions over devices, inside the mapped step. Each is the identity if `axis_name` is None.

On a single device, `bind_axis` binds the axis for the user's code.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

DEVICE_AXIS = "device"
"""Default name of the device axis; a task may choose another."""
_MAPS = ("shard_map", "pmap", "xla_pmap")
"""Primitives of pmap and shard_map."""
_COLLECTIVE = "NamedAxisEffect"
"""JAX's class of the effects of collectives, which it does not export."""


def bind_axis(function: Callable[..., Any], axis_name: str) -> Callable[..., Any]:
    """The function with `axis_name` bound to an axis of length 1, so that collectives over it work on one device.

    Nothing is mapped: without collectives the program is the same as that of the unbound function, and a mean over
    one device is the identity. Values that depend on `jax.lax.axis_index` have an extra axis of length 1 inside.
    """

    @functools.wraps(function, updated=())
    def bound(*args: Any) -> PyTree:
        out = jax.vmap(lambda: function(*args), in_axes=(), axis_name=axis_name, axis_size=1)()
        return jax.tree.map(lambda x: jax.lax.index_in_dim(x, 0, keepdims=False), out)

    return bound


def trace_on_devices(function: Callable[..., Any], axis_name: str, num_devices: int, *args: Any) -> tuple[Any, Any]:
    """The jaxpr of a function on each of `num_devices` devices, and the shapes that it returns. It is not run.

    `args` may be shapes. Unlike in `bind_axis`, collectives may use groups of devices (`axis_index_groups`), as in the
    mapped function.
    """
    return jax.make_jaxpr(function, axis_env=[(axis_name, num_devices)], return_shape=True)(*args)


def maps_over_devices(jaxpr: Any) -> bool:
    """Whether a jaxpr contains a pmap or a shard_map, also inside loops, branches and calls."""
    return any(eqn.primitive.name in _MAPS or any(map(maps_over_devices, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs of an equation's loop, branches or call."""
    return [x for x in jax.tree.leaves(list(eqn.params.values())) if hasattr(x, "eqns")]


def axes_reduced(jaxpr: Any) -> tuple[str, ...]:
    """The mapped axes over which a jaxpr has collectives, also inside loops, branches and calls."""
    return tuple(sorted(effect.name for effect in jaxpr.effects if type(effect).__name__ == _COLLECTIVE))


def mean_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The mean of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.pmean, tree, axis_name)


def axis_size(axis_name: str | None) -> int:
    """The number of devices on the axis; 1 without one."""
    return 1 if axis_name is None else jax.lax.axis_size(axis_name)


def sum_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The sum of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.psum, tree, axis_name)


def min_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The minimum of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.pmin, tree, axis_name)


def max_across_devices(tree: PyTree, axis_name: str | None) -> PyTree:
    """The maximum of every leaf over devices."""
    return tree if axis_name is None else _reduce(jax.lax.pmax, tree, axis_name)


def _reduce(reduce: Callable[[Array, str], Array], tree: PyTree, axis_name: str) -> PyTree:
    """Reduces all leaves of one dtype as one vector: between processes each reduction costs milliseconds."""
    tree = jax.tree.map(jnp.asarray, tree)
    return unpack({name: reduce(x, axis_name) for name, x in pack(tree).items()}, tree)


def pack(tree: PyTree, num_axes: int = 0) -> dict[str, Array]:
    """A tree as one array per dtype, flat behind the first `num_axes` axes: few large arrays are faster to move."""
    parts: dict[str, list[Array]] = {}
    for x in jax.tree.leaves(tree):
        parts.setdefault(x.dtype.name, []).append(x.reshape(*x.shape[:num_axes], -1))
    return {name: jnp.concatenate(xs, axis=num_axes) for name, xs in parts.items()}


def unpack(packed: dict[str, Array], like: PyTree, num_axes: int = 0) -> PyTree:
    """The inverse of `pack`, for a tree of the structure and shapes of `like`."""
    starts = dict.fromkeys(packed, 0)

    def take(x: Array | jax.ShapeDtypeStruct) -> Array:
        start, name = starts[x.dtype.name], x.dtype.name
        starts[name] = start + math.prod(x.shape[num_axes:])
        return packed[name][..., start : starts[name]].reshape(x.shape)

    return jax.tree.map(take, like)


def gather_across_devices(x: Array, axis_name: str | None) -> Array:
    """The arrays of all devices, stacked in device order along a new leading axis."""
    return x[None] if axis_name is None else jax.lax.all_gather(x, axis_name)


def all_across_devices(flag: Bool[Array, ""], axis_name: str | None) -> Bool[Array, ""]:
    """Whether `flag` holds on every device."""
    return flag if axis_name is None else jax.lax.pmin(flag.astype(jnp.int32), axis_name) == 1


def any_across_devices(flag: Bool[Array, ""], axis_name: str | None) -> Bool[Array, ""]:
    """Whether `flag` holds on some device."""
    return flag if axis_name is None else jax.lax.pmax(flag.astype(jnp.int32), axis_name) == 1


def device_index(axis_name: str | None) -> Int[Array, ""]:
    """This device's index on the device axis; 0 on a single device."""
    return jnp.int32(0) if axis_name is None else jax.lax.axis_index(axis_name)


def global_env_index(num_local_envs: int, axis_name: str | None) -> Int[Array, " e"]:
    """Indices of this device's envs in the global batch: device d of D holds [d*E/D, (d+1)*E/D)."""
    return device_index(axis_name) * num_local_envs + jnp.arange(num_local_envs)


def moments_across_devices(
    x: Float[Array, "*batch"], axis_name: str | None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and variance of all elements over devices of equal share, in two passes for accuracy."""
    mean = mean_across_devices(jnp.mean(x), axis_name)
    variance = mean_across_devices(jnp.mean(jnp.square(x - mean)), axis_name)
    return mean, variance
