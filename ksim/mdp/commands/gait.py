"""Gait commands."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.checks import check_field, check_range
from ksim.mdp.commands.base import AbstractDrawnCommand, Range
from ksim.mdp.term import Context


class GaitCommand(AbstractDrawnCommand):
    """Gait: step frequency, in Hz, fraction of a period that a foot is down, and phase offsets of the feet.

    Drawn uniformly from the ranges every `resample_s` seconds (a range). frequency: steps per second of each
    foot; `GaitClock` integrates it. duty: from 0 to 1. offsets: range for each foot but the first, as a fraction of a
    period ahead of the first foot: (0.5, 0.5) for two feet that alternate.
    """

    frequency: Range = (1.0, 2.0)
    duty: Range = (0.5, 0.6)
    offsets: tuple[Range, ...] = ((0.5, 0.5),)
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        check_range(self, "frequency", least=0.0)
        check_range(self, "duty", least=0.0, most=1.0)
        are_ranges = all(len(offset) == 2 and offset[0] <= offset[1] for offset in self.offsets)
        check_field(self, "offsets", are_ranges, "pairs of two numbers, the smaller first")

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, " n"]:
        low_n, high_n = jnp.array([*self.ranges().values()]).T
        return jax.random.uniform(key, low_n.shape, minval=low_n, maxval=high_n)

    def ranges(self) -> dict[str, Range]:
        offsets = {f"offset of foot {i}, turns": offset for i, offset in enumerate(self.offsets, start=2)}
        return {"frequency, Hz": self.frequency, "duty": self.duty} | offsets
