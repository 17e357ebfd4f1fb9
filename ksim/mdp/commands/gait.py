"""Commands of how to step."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.checks import check_field, check_range
from ksim.mdp.commands.base import AbstractDrawnCommand, Range
from ksim.mdp.term import Context


class GaitCommand(AbstractDrawnCommand):
    """Frequency of steps, in Hz, the share of a turn that a foot is down, and how far feet are ahead of the first.

    Drawn uniformly from the ranges, anew every `resample_s` seconds (a range). frequency: turns per second, in each
    of which every foot steps once; `GaitClock` adds them up. duty: from 0 to 1. offsets: of each foot but the first, in
    turns: (0.5, 0.5) for two feet that take turns.
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
