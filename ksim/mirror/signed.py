"""Vectors seen in a mirror: components change places and signs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float


@dataclasses.dataclass(frozen=True, eq=False)
class SignedPermutation:
    """Maps a vector to its mirror image.

    Attributes:
        index: For each component of the image, the component of the vector that it is made of.
        sign: Its sign there, 1 or -1.
    """

    index: np.ndarray
    sign: np.ndarray

    def __call__(self, vector: Float[Any, "*batch n"]) -> Float[Any, "*batch n"]:
        """The images of vectors, of numpy or JAX, along the last axis."""
        return vector[..., self.index] * self.sign

    @property
    def is_involution(self) -> bool:
        """Whether the image of an image is the vector."""
        return bool(
            np.array_equal(self.index[self.index], np.arange(self.index.size))
            and np.all(self.sign * self.sign[self.index] == 1)
        )

    @staticmethod
    def of(index: npt.ArrayLike, sign: npt.ArrayLike) -> "SignedPermutation":
        """From numbers of any kind."""
        return SignedPermutation(np.asarray(index, np.int32), np.asarray(sign, np.float32))

    @staticmethod
    def joined(parts: Sequence["SignedPermutation"]) -> "SignedPermutation":
        """Of the concatenation of vectors, each with its own image."""
        starts = np.cumsum([0, *(part.index.size for part in parts)])
        index = [part.index + start for part, start in zip(parts, starts, strict=False)]
        return SignedPermutation.of(np.concatenate(index), np.concatenate([part.sign for part in parts]))
