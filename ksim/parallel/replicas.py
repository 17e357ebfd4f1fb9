"""Bitwise comparison of replicas on devices, and copying one replica to the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, UInt32

from ksim.errors import RunError
from ksim.host.terminal import print_warning
from ksim.parallel.collectives import device_index, gather_across_devices, sum_across_devices
from ksim.parallel.devices import local_name
from ksim.parallel.layout import AbstractLayout
from ksim.types import Device, LearnerState


@dataclass(frozen=True)
class Divergence:
    """A difference between replicas.

    Attributes:
        leaves: Names of the leaves that differ between any two replicas.
        replicas: Indices of the replicas that deviate from the most common value in any leaf. If values are equally
            common, the first of them counts as the most common.
        source: A replica of the largest group that agrees in all leaves; of several such groups, one that deviates
            from most in the fewest leaves, and of these the first.
    """

    leaves: tuple[str, ...]
    replicas: tuple[int, ...]
    source: int

    def __str__(self) -> str:
        shown = ", ".join(self.leaves[:8]) + (f" and {len(self.leaves) - 8} more" if len(self.leaves) > 8 else "")
        replicas = ", ".join(map(str, self.replicas))
        return f"replica{'s' if len(self.replicas) > 1 else ''} {replicas} in {shown}"


def leaf_names(tree: PyTree) -> list[str]:
    """The names of a tree's leaves, in the order of `checksums`."""
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def checksums(tree: PyTree) -> UInt32[Array, " leaves"]:
    """A checksum of each leaf's bits, for arrays of any type and shape, typed PRNG keys included.

    Every word is mixed with its index by a bijection, so a leaf with one changed word always has another checksum.
    Other changes, such as two swapped values, keep the checksum with a chance of 2^-32.
    """
    sums = [_checksum(_to_words(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.stack(sums) if sums else jnp.zeros(0, jnp.uint32)


def gather_checksums(tree: PyTree, axis_name: str | None) -> UInt32[Array, "devices leaves"]:
    """The checksums of all devices, on every device."""
    return gather_across_devices(checksums(tree), axis_name)


def find_divergence(checksums_dl: np.ndarray, names: Sequence[str]) -> Divergence | None:
    """The difference between the checksums of replicas, one row per replica; None if they are equal. Runs on the host.

    `checksums_dl` is from `gather_checksums`, `names` from `leaf_names`.

    Raises:
        ValueError: There are more or fewer names than leaves.
    """
    checksums_dl = np.asarray(checksums_dl)
    num_leaves = checksums_dl.shape[1]
    if num_leaves != len(names):
        raise ValueError(
            f"Number of names ({len(names)}) must equal number of leaves ({num_leaves}). Take both from one tree."
        )
    if (checksums_dl == checksums_dl[:1]).all():
        return None
    agreeing_ddl = checksums_dl[:, None] == checksums_dl[None, :]
    # argmax is the first of several largest.
    most_common_l = checksums_dl[agreeing_ddl.sum(axis=1).argmax(axis=0), np.arange(num_leaves)]
    deviates_dl = checksums_dl != most_common_l
    agreeing_d = agreeing_ddl.all(axis=2).sum(axis=1)
    candidates = np.flatnonzero(agreeing_d == agreeing_d.max())
    num_deviating_d = deviates_dl.sum(axis=1)
    return Divergence(
        leaves=tuple(names[leaf] for leaf in np.flatnonzero(deviates_dl.any(axis=0)).tolist()),
        replicas=tuple(np.flatnonzero(deviates_dl.any(axis=1)).tolist()),
        source=min(candidates.tolist(), key=lambda replica: num_deviating_d[replica]),
    )


def copy_from_replica(tree: PyTree, source: Int[Array, ""], axis_name: str | None) -> PyTree:
    """Replica `source`'s leaves on every device, bit for bit, of any type and shape, typed PRNG keys included."""
    if axis_name is None:
        return tree
    is_source = device_index(axis_name) == source
    # Summed as integers: adding zeros to floats would lose the sign of -0.0 and, on some devices, the bits of a NaN.
    words = jax.tree.map(lambda x: jnp.where(is_source, _to_words(x), 0), tree)
    return jax.tree.map(_from_words, sum_across_devices(words, axis_name), tree)


def _to_words(leaf: Array) -> UInt32[Array, " words"]:
    """A leaf's bits: one word for an element of up to 32 bits, two for one of 64."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    if leaf.dtype == bool:
        leaf = leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, _unsigned(leaf.dtype)).astype(jnp.uint32).ravel()


def _from_words(words: UInt32[Array, " words"], like: Array) -> Array:
    """The inverse of `_to_words`, with the shape and type of `like`."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        data = _from_words(words, jax.random.key_data(like))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
    if jnp.iscomplexobj(like):
        parts = _from_words(words, jnp.stack([like.real, like.imag], axis=-1))
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    if like.dtype == bool:
        return words.reshape(like.shape).astype(bool)
    shape = (*like.shape, 2) if like.dtype.itemsize == 8 else like.shape
    return jax.lax.bitcast_convert_type(words.astype(_unsigned(like.dtype)).reshape(shape), like.dtype)


def _unsigned(dtype: np.dtype) -> np.dtype:
    return np.dtype({1: np.uint8, 2: np.uint16}.get(dtype.itemsize, np.uint32))


@jax.jit  # traced once for all leaves of a size
def _checksum(words: UInt32[Array, " words"]) -> UInt32[Array, ""]:
    place = jnp.arange(words.size, dtype=jnp.uint32)
    return jnp.sum(_mixed(words ^ _mixed(place)), dtype=jnp.uint32)


def _mixed(x: UInt32[Array, " words"]) -> UInt32[Array, " words"]:
    """A bijection that spreads every bit over all: the finalizer of Appleby's MurmurHash3."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


class ReplicasDivergedError(RunError):
    """Devices' copies of the learner differ.

    `learner` is the majority's, on all devices; None unless more than half of the copies are equal.
    """

    def __init__(self, message: str, learner: LearnerState | None) -> None:
        super().__init__(message)
        self.learner = learner


class ReplicaGuard:
    """Compares the devices' copies of the learner, bit for bit, at a fixed interval of iterations."""

    def __init__(
        self, layout: AbstractLayout, learner: LearnerState, *, interval: int | None, rebroadcasts: bool
    ) -> None:
        """Makes the guard, with names of leaves from a placed learner.

        It compares every `interval` iterations; None for never. If copies differ and `rebroadcasts`, the majority's
        copy replaces the others.
        """
        self._layout, self._interval, self._rebroadcasts = layout, interval, rebroadcasts
        self._names = leaf_names(learner)
        self._gather: Any = layout.map(lambda learner: gather_checksums(learner, layout.axis_name))
        self._copy: Any = layout.map(lambda learner, source: copy_from_replica(learner, source, layout.axis_name))

    def is_due(self, iteration: int) -> bool:
        """Whether to compare after this iteration."""
        return self._interval is not None and self._layout.num_devices > 1 and iteration % self._interval == 0

    def __call__(self, learner: LearnerState, iteration: int) -> LearnerState:
        """The learner, equal on all devices; raises ReplicasDivergedError if copies differ without `rebroadcasts`."""
        checksums_dl = np.asarray(self._layout.first(self._gather(learner)))
        divergence = find_divergence(checksums_dl, self._names)
        if divergence is None:
            return learner
        repaired = self._copy(learner, self._layout.replicate(jnp.int32(divergence.source)))
        what = f"The devices' copies of the learner differ after iteration {iteration}: {divergence}."
        where = describe_replicas(divergence, self._layout.devices)
        if not self._rebroadcasts:
            num_agreeing = (checksums_dl == checksums_dl[divergence.source]).all(axis=1).sum()
            raise ReplicasDivergedError(
                f"{what} {where} A device with faulty memory or code of yours that differs between devices does "
                "this. on_divergence=rebroadcast continues with the majority's copy.",
                repaired if 2 * num_agreeing > self._layout.num_devices else None,
            )
        print_warning(f"{what} {where} All continue with the copy of replica {divergence.source}.")
        return repaired


def describe_replicas(divergence: Divergence, devices: Sequence[Device]) -> str:
    """The devices and processes of the deviating copies, as text."""
    parts = [
        f"replica {i} is {local_name(devices[i])} of process {devices[i].process_index}" for i in divergence.replicas
    ]
    return f"({'; '.join(parts)}.)"
