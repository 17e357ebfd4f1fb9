"""A teacher: a trained policy that is evaluated but not trained."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.types import Observation

TEACHER = "teacher"
"""Observation group of the student's environment with the observations of the teacher's group `actor`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """A deterministic policy without memory, with its own observation statistics.

    Attributes:
        act: `rows of raw observations by group -> rows of actions`; traced.
        obs_sizes: The length of each group that it reads, by the names in its own environment.
        source: Its origin, as text.
        kept: Arrays by name from which it can be rebuilt.
    """

    act: Callable[[Observation], Float[Array, "b a"]]
    obs_sizes: Mapping[str, int]
    action_size: int
    source: str
    kept: Mapping[str, np.ndarray]

    def check(self, obs_sizes: Mapping[str, int], action_size: int) -> None:
        """Raises ConfigError unless the teacher can act in a student's environment."""
        if self.action_size != action_size:
            raise ConfigError(
                f"The teacher of {self.source} has actions of {self.action_size} numbers, and this task of "
                f"{action_size}. Choose a teacher of the same robot and actuators."
            )
        for group, size in self.obs_sizes.items():
            there = _group(group)
            if there not in obs_sizes:
                raise ConfigError(
                    f"The teacher of {self.source} reads {size} numbers in its observation group {group!r}, which this "
                    f"task must show as group {there!r}. Add the group to get_observations, with the teacher's terms."
                )
            if obs_sizes[there] != size:
                raise ConfigError(
                    f"Observation group {there!r} has {obs_sizes[there]} numbers, but the teacher of {self.source} "
                    f"reads {size} in its group {group!r}. Give the group the teacher's terms, in their order."
                )

    def actions(self, obs_et: Observation) -> Float[Array, "e t a"]:
        """The actions for the observations of a student's rollout, every leaf (env, time, features)."""
        shown = {group: obs_et[_group(group)] for group in self.obs_sizes}
        leading = next(iter(shown.values())).shape[:2]
        action_ba = self.act({group: x.reshape(-1, x.shape[-1]) for group, x in shown.items()})
        return jax.lax.stop_gradient(jnp.reshape(action_ba, (*leading, self.action_size)))


def _group(group: str) -> str:
    """The name of a teacher's group in the student's environment."""
    return TEACHER if group == "actor" else group
