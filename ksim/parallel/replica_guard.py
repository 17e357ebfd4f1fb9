"""Comparison of the devices' copies of the learner, and repair or an error if they differ."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ksim.errors import RunError
from ksim.host.terminal import print_warning
from ksim.parallel.devices import local_name
from ksim.parallel.layout import AbstractLayout
from ksim.parallel.replicas import Divergence, copy_from_replica, find_divergence, gather_checksums, leaf_names
from ksim.types import Device, LearnerState


class ReplicasDivergedError(RunError):
    """Devices' copies of the learner differ.

    Attributes:
        learner: The majority's learner, on all devices; None unless more than half of the copies are equal.
    """

    def __init__(self, message: str, learner: LearnerState | None) -> None:
        super().__init__(message)
        self.learner = learner


class ReplicaGuard:
    """Compares the devices' copies of the learner, bit for bit, at a fixed interval of iterations."""

    def __init__(
        self, layout: AbstractLayout, learner: LearnerState, *, interval: int | None, rebroadcasts: bool
    ) -> None:
        """Makes the guard.

        Args:
            learner: A placed learner, for the names of its leaves.
            interval: Iterations between comparisons; None for no comparisons.
            rebroadcasts: Whether to continue with the majority's copy if copies differ.
        """
        self._layout, self._interval, self._rebroadcasts = layout, interval, rebroadcasts
        self._names = leaf_names(learner)
        self._gather: Any = layout.map(lambda learner: gather_checksums(learner, layout.axis_name))
        self._copy: Any = layout.map(lambda learner, source: copy_from_replica(learner, source, layout.axis_name))

    def is_due(self, iteration: int) -> bool:
        """Whether to compare after this iteration."""
        return self._interval is not None and self._layout.num_devices > 1 and iteration % self._interval == 0

    def __call__(self, learner: LearnerState, iteration: int) -> LearnerState:
        """The learner, the same on all devices.

        Raises:
            ReplicasDivergedError: The copies differ, and `rebroadcasts` is false.
        """
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
