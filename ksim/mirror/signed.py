"""Mirror images of vectors, as permutations of components with signs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float


@dataclasses.dataclass(frozen=True, eq=False)
class SignedPermutation:
    """The map from a vector to its mirror image.

    Attributes:
        index: For each component of the image, the index of its source in the vector.
        sign: For each component of the image, its sign, 1 or -1.
    """

    index: np.ndarray
    sign: np.ndarray

    def __call__(self, vector: Float[Any, "*batch n"]) -> Float[Any, "*batch n"]:
        """The images of vectors (numpy or JAX arrays) along the last axis."""
        return vector[..., self.index] * self.sign

    @property
    def is_involution(self) -> bool:
        """Whether the image of the image is the vector itself."""
        return bool(
            np.array_equal(self.index[self.index], np.arange(self.index.size))
            and np.all(self.sign * self.sign[self.index] == 1)
        )

    @staticmethod
    def of(index: npt.ArrayLike, sign: npt.ArrayLike) -> "SignedPermutation":
        """A permutation from lists or arrays of any numeric type."""
        return SignedPermutation(np.asarray(index, np.int32), np.asarray(sign, np.float32))

    @staticmethod
    def joined(parts: Sequence["SignedPermutation"]) -> "SignedPermutation":
        """The permutation of concatenated vectors, each with its own image."""
        starts = np.cumsum([0, *(part.index.size for part in parts)])
        index = [part.index + start for part, start in zip(parts, starts, strict=False)]
        return SignedPermutation.of(np.concatenate(index), np.concatenate([part.sign for part in parts]))
