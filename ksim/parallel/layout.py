"""The two ways to run the one training step: on a single device, or mapped over several. The only pmap."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ksim.parallel.placement import replicate_state, shard_environments, unwrap_keys, wrap_keys
from ksim.types import Device, TrainState

Step = Callable[[TrainState], tuple[TrainState, PyTree]]


class AbstractLayout(ABC):
    """Where the state lives and how a step is mapped over it.

    Attributes:
        devices: The devices in use, in the order of the mapped axis.
        axis_name: The name of the mapped axis; None where nothing is mapped.
    """

    devices: list[Device]
    axis_name: str | None

    @property
    def num_devices(self) -> int:
        """How many devices share the envs."""
        return len(self.devices)

    @abstractmethod
    def place(self, state: TrainState) -> TrainState:
        """Puts a global state on the devices, in the placement that the mapped step returns."""

    @abstractmethod
    def map(self, function: Callable[..., Any], *, donate: bool = False) -> Any:
        """Maps a function of placed states. With `donate` the first argument's memory is reused for the result."""

    @abstractmethod
    def first(self, tree: PyTree) -> PyTree:
        """One replica of a replicated tree, as host arrays without a device axis; typed keys stay typed."""

    @abstractmethod
    def join_envs(self, tree: PyTree) -> PyTree:
        """A sharded tree as host arrays in global env order, without a device axis; typed keys stay typed."""

    def compile(self, step: Step, state: TrainState) -> Step:
        """Maps and compiles the step ahead of time: another shape or placement is an error, never a recompilation."""
        return self.map(step, donate=True).lower(state).compile()


class SingleDevice(AbstractLayout):
    """The step jitted on one device."""

    def __init__(self, device: Device | None = None) -> None:
        self.devices = [device or jax.local_devices()[0]]
        self.axis_name = None

    def place(self, state: TrainState) -> TrainState:
        # Copied: the step donates its argument, and a caller may still hold these arrays.
        return jax.tree.map(lambda x: jax.device_put(x, self.devices[0], may_alias=False), state)

    def map(self, function: Callable[..., Any], *, donate: bool = False) -> Any:
        return jax.jit(function, donate_argnums=0 if donate else ())

    def first(self, tree: PyTree) -> PyTree:
        return wrap_keys(jax.tree.map(np.asarray, unwrap_keys(tree)), tree)

    def join_envs(self, tree: PyTree) -> PyTree:
        return self.first(tree)


class PmapDevices(AbstractLayout):
    """The step pmapped: the learner replicated, the envs sharded evenly."""

    def __init__(self, devices: Sequence[Device], axis_name: str) -> None:
        self.devices = list(devices)
        self.axis_name = axis_name

    def place(self, state: TrainState) -> TrainState:
        assert self.axis_name is not None
        return TrainState(
            learner=replicate_state(state.learner, self.devices, self.axis_name),
            envs=shard_environments(state.envs, self.devices, self.axis_name),
        )

    def map(self, function: Callable[..., Any], *, donate: bool = False) -> Any:
        return jax.pmap(function, axis_name=self.axis_name, devices=self.devices, donate_argnums=0 if donate else ())

    def first(self, tree: PyTree) -> PyTree:
        # Indexing x[0] would run a gather over all devices; reading a shard does not.
        host = jax.tree.map(lambda x: np.asarray(x.addressable_shards[0].data)[0], unwrap_keys(tree))
        return wrap_keys(host, tree)

    def join_envs(self, tree: PyTree) -> PyTree:
        host = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), unwrap_keys(tree))
        return wrap_keys(host, tree)
