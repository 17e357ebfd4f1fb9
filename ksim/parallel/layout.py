"""Layouts of the training step: on a single device, or mapped over several by pmap or shard_map."""

import functools
import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key, PyTree

from ksim.parallel.collectives import DEVICE_AXIS, bind_axis, global_env_index
from ksim.parallel.placement import (
    gather_environments,
    is_key,
    join_shares,
    replicate_state,
    shard_environments,
    unreplicate_state,
    unwrap_keys,
    wrap_keys,
)
from ksim.types import Device, TrainState

_COLLECTIVE = re.compile(
    r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute|collective_broadcast)\b"
)
_SHORTEST_S = "jax_persistent_cache_min_compile_time_secs"
# That option belongs to the whole process, and the cache reads it at the end of a compilation.
_one_at_a_time = threading.Lock()


class Mapped:
    """A function of placed arrays, mapped over devices and compiled at its first call."""

    def __init__(self, jitted: Any, view: Callable[[PyTree], PyTree], platform: str) -> None:
        """Wraps a mapped function; `view` converts placed arguments for it."""
        self._jitted = jitted
        self._view = view
        self._platform = platform
        self._compiled: Any = None

    def eval_shape(self, *args: PyTree) -> PyTree:
        """The shapes of the result. The function is traced, and not once more by `lower`."""
        return jax.eval_shape(self._jitted, *self._view(args))

    def lower(self, *args: PyTree) -> "Lowered":
        """The program for arguments like these, not compiled yet."""
        return Lowered(self._jitted.lower(*self._view(args)), self._platform)

    def __call__(self, *args: PyTree) -> PyTree:
        """Compiles at the first call; later arguments must have the same shapes and placement."""
        if self._compiled is None:
            self._compiled = self.lower(*args).compile()
        return self._compiled(*args)


class Lowered:
    """A mapped function's program before it is compiled."""

    def __init__(self, lowered: Any, platform: str) -> None:
        """Wraps a program that JAX lowered for devices of a platform."""
        self._lowered = lowered
        self._platform = platform

    def as_text(self) -> str:
        """The program in StableHLO."""
        return self._lowered.as_text()

    def compile(self) -> Any:
        """The compiled program.

        On CPU, programs with collectives are kept out of the compilation cache. XLA runs independent collectives in the
        same order on every device, but a program read from the cache has lost that order. Devices then add to
        different sums at the same time, which ends in SIGSEGV, an abort or wrong numbers.
        """
        if self._platform != "cpu":
            return self._lowered.compile()
        collectives = _COLLECTIVE.search(self.as_text())
        with _one_at_a_time:
            shortest_s = jax.config.values[_SHORTEST_S]
            if collectives:
                jax.config.update(_SHORTEST_S, math.inf)
            try:
                return self._lowered.compile()
            finally:
                jax.config.update(_SHORTEST_S, shortest_s)


Step = Callable[[TrainState], tuple[TrainState, PyTree]]

MakeEnvs = Callable[[Key[Array, ""], Int[Array, " e"]], PyTree]
"""`(key, env indices in the global batch) -> the rows of these envs`."""


class AbstractLayout(ABC):
    """Placement of the state on devices, and mapping of a step over them.

    Attributes:
        devices: The devices in use, of all processes, in the order of the mapped axis.
        axis_name: The axis over which ksim's own collectives reduce; None on a single device, where they are the
            identity. The axis name for the user's code is always bound.
    """

    devices: list[Device]
    axis_name: str | None

    @property
    def num_devices(self) -> int:
        """Number of devices that share the envs."""
        return len(self.devices)

    @property
    def local_devices(self) -> list[Device]:
        """The devices of this process."""
        return [device for device in self.devices if device.process_index == jax.process_index()]

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`, the same for all devices."""
        return self.devices[0].platform

    @abstractmethod
    def replicate(self, tree: PyTree) -> PyTree:
        """Puts a copy on every device, in the placement that the mapped step returns."""

    @abstractmethod
    def shard(self, tree: PyTree) -> PyTree:
        """Puts every device's share of a global batch on it, in the placement that the mapped step returns."""

    def place(self, state: TrainState) -> TrainState:
        """Puts one learner and the global batch of envs on the devices."""
        return TrainState(learner=self.replicate(state.learner), envs=self.shard(state.envs))

    @abstractmethod
    def make_envs(self, make: MakeEnvs, key: Key[Array, ""], num_envs: int) -> PyTree:
        """A global batch, each row made on the device that holds it: no device ever holds the whole batch."""

    @abstractmethod
    def map(self, function: Callable[..., Any], *, donate: bool = False) -> Any:
        """Maps a function of placed states. With `donate` the first argument's memory is reused for the result."""

    @abstractmethod
    def first(self, tree: PyTree) -> PyTree:
        """One replica of a replicated tree, as host arrays without a device axis; typed keys stay typed."""

    @abstractmethod
    def join_envs(self, tree: PyTree) -> PyTree:
        """A sharded tree as host arrays in global env order, without a device axis; typed keys stay typed."""

    def compile(self, step: Step, state: TrainState, *, donate: bool = True) -> Step:
        """Maps and compiles the step ahead of time: another shape or placement is an error, never a recompilation.

        With `donate` the state's memory is reused for the next state, and the argument is invalid after the step.
        """
        return self.map(step, donate=donate).lower(state).compile()


class SingleDevice(AbstractLayout):
    """The step jitted on one device."""

    def __init__(self, device: Device | None = None, axis_name: str = DEVICE_AXIS) -> None:
        """Makes the layout. `axis_name` is the name of the axis in collectives of the user's code."""
        self.devices = [device or jax.local_devices()[0]]
        self.axis_name = None
        self._bound_axis = axis_name

    def replicate(self, tree: PyTree) -> PyTree:
        # Copied: the step donates its argument, and a caller may still hold these arrays.
        return jax.tree.map(lambda x: jax.device_put(x, self.devices[0], may_alias=False), tree)

    def shard(self, tree: PyTree) -> PyTree:
        return self.replicate(tree)

    def make_envs(self, make: MakeEnvs, key: Key[Array, ""], num_envs: int) -> PyTree:
        with jax.default_device(self.devices[0]):
            return self.map(lambda key: make(key, global_env_index(num_envs, None)))(key)

    def map(self, function: Callable[..., Any], *, donate: bool = False) -> Any:
        return jax.jit(bind_axis(function, self._bound_axis), donate_argnums=0 if donate else ())

    def first(self, tree: PyTree) -> PyTree:
        return wrap_keys(jax.tree.map(np.asarray, unwrap_keys(tree)), tree)

    def join_envs(self, tree: PyTree) -> PyTree:
        return self.first(tree)


class AbstractMappedDevices(AbstractLayout):
    """Several devices, each with one row of every placed leaf: its copy of the learner, and its share of the envs."""

    def __init__(self, devices: Sequence[Device], axis_name: str) -> None:
        self.devices = list(devices)
        self.axis_name = axis_name
        self._axis_name = axis_name

    def replicate(self, tree: PyTree) -> PyTree:
        return replicate_state(tree, self.devices, self._axis_name)

    def shard(self, tree: PyTree) -> PyTree:
        return shard_environments(tree, self.devices, self._axis_name)

    def make_envs(self, make: MakeEnvs, key: Key[Array, ""], num_envs: int) -> PyTree:
        share = num_envs // self.num_devices
        shares = self.map(lambda key: make(key, global_env_index(share, self.axis_name)))
        return join_shares(shares(self.replicate(key)))

    def first(self, tree: PyTree) -> PyTree:
        return unreplicate_state(tree)

    def join_envs(self, tree: PyTree) -> PyTree:
        return gather_environments(tree)


class PmapDevices(AbstractMappedDevices):
    """The step pmapped."""

    def map(self, function: Callable[..., Any], *, donate: bool = False) -> Mapped:
        # pmap takes the rows of one process's devices and compiles a program of arrays over all devices. Placed leaves
        # are such arrays, so it is the compiled program that is called.
        pmapped = jax.pmap(
            _without_empty_inputs(function),
            axis_name=self.axis_name,
            devices=self.devices,
            donate_argnums=0 if donate else (),
        )
        return Mapped(pmapped, self.local_view, self.platform)

    def local_view(self, tree: PyTree) -> PyTree:
        """Placed leaves restricted to the rows of this process's devices, as pmap takes them."""
        local = self.local_devices
        if len(local) == self.num_devices:
            return tree
        sharding = NamedSharding(Mesh(np.asarray(local), (self._axis_name,)), PartitionSpec(self._axis_name))

        def view(x: jax.Array) -> jax.Array:
            shards = [shard.data for shard in x.addressable_shards]
            return jax.make_array_from_single_device_arrays((len(local), *x.shape[1:]), sharding, shards)

        return wrap_keys(jax.tree.map(view, unwrap_keys(tree)), tree)


class ShardMapDevices(AbstractMappedDevices):
    """The step jitted, as a shard_map over a mesh of the devices of all processes."""

    def map(self, function: Callable[..., Any], *, donate: bool = False) -> Mapped:
        own = _without_empty_inputs(function)

        @functools.wraps(function, updated=())
        def on_one_device(*args: PyTree) -> PyTree:
            out = own(*jax.tree.map(lambda x: jax.lax.squeeze(x, [0]), args))
            return jax.tree.map(lambda x: jax.lax.expand_dims(x, [0]), out)

        mesh, rows = Mesh(np.asarray(self.devices), (self._axis_name,)), PartitionSpec(self._axis_name)
        # Unchecked, as in pmap: users' collectives need not tell JAX which values are the same on all devices.
        mapped = jax.shard_map(on_one_device, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
        # Explicit, because jit would replicate arrays without elements.
        placed = NamedSharding(mesh, rows)
        jitted = jax.jit(mapped, donate_argnums=0 if donate else (), out_shardings=placed)
        return Mapped(jitted, lambda args: args, self.platform)


def _without_empty_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with arrays without elements made inside instead of passed in.

    JAX 0.11 crashes with a SIGSEGV while it compiles a shard_map or a pmap with such an input: XLA removes it before
    Shardy looks for its sharding. MJX models have many.
    """

    @functools.wraps(function, updated=())
    def mapped(*args: PyTree) -> PyTree:
        args = jax.tree.map(lambda x: x if x.size or is_key(x) else jnp.zeros(x.shape, x.dtype), args)
        # Jitted, since arrays that it closes over become inputs of what is mapped, but constants of what is jitted.
        return jax.jit(lambda *args: function(*args))(*args)

    return mapped


LAYOUTS: dict[str, type[AbstractMappedDevices]] = {"pmap": PmapDevices, "shard_map": ShardMapDevices}
"""The layouts for several devices, by the value of the option `layout`."""


def make_layout(devices: Sequence[Device], axis_name: str, name: str = "pmap") -> AbstractLayout:
    """The layout of a step on some devices. With several it is `LAYOUTS[name]`; the user's code names the axis."""
    return SingleDevice(devices[0], axis_name) if len(devices) == 1 else LAYOUTS[name](devices, axis_name)
