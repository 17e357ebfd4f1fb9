"""The mirror image of each component of a vector, from values of the vector and of its image."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from ksim.errors import ConfigError
from ksim.mirror.signed import SignedPermutation

TOLERANCE = 0.2
"""Tolerance of a component and its image, as a part of the standard deviation: contact solvers stop early."""
_STILL_PART, _STILL = 1e-4, 1e-6
"""A component that varies by less, as a part of its size or in its own unit, does not move."""
_ALIKE = 1e-4
FIXES = "Leave it out of the observations, or override get_mirror."


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Values of an observation for a robot, and for its mirror image. Each is also the image of the other.

    Attributes:
        name: Of the observation, for errors.
        seen: Values.
        image: Values for the mirror image.
    """

    name: str
    seen: Float[np.ndarray, "s n"]
    image: Float[np.ndarray, "s n"]

    @staticmethod
    def of(name: str, seen_sn: np.ndarray, image_sn: np.ndarray) -> "Samples":
        """Both ways round.

        Raises:
            ConfigError: A value is not finite.
        """
        finite_n = np.isfinite(seen_sn).all(axis=0) & np.isfinite(image_sn).all(axis=0)
        if not finite_n.all():
            raise ConfigError(
                f"Component {int(np.flatnonzero(~finite_n)[0])} of observation {name!r} is not finite in a state drawn "
                f"at random, so its mirror image is not known. Look for a division by zero in it. {FIXES}"
            )
        return Samples(name, np.concatenate([seen_sn, image_sn]), np.concatenate([image_sn, seen_sn]))

    @property
    def moves(self) -> Bool[np.ndarray, " n"]:
        """The components that vary, and so tell their image."""
        return np.std(self.seen, axis=0) > _STILL_PART * np.abs(self.seen).max(axis=0, initial=0.0) + _STILL


class Fit:
    """The images of an observation's components, as far as they are known."""

    def __init__(self, samples: Samples) -> None:
        self._name, count = samples.name, samples.seen.shape[1]
        self._index, self._sign = np.full(count, -1), np.ones(count)
        self._allowed_2nn = np.ones((2, count, count), bool)
        self._constant = samples.seen.mean(axis=0)  # what it is if it stays the same
        self.add(samples)

    @property
    def still(self) -> np.ndarray:
        """The components whose image is not known yet, for they never move."""
        return np.flatnonzero(self._index < 0)

    @property
    def _is_open(self) -> Bool[np.ndarray, " n"]:
        return (self._index < 0) | (self._allowed_2nn.sum(axis=(0, 2)) > 1)

    @property
    def is_open(self) -> bool:
        """Whether other states may tell more: a component is still, or has always moved as another one does."""
        return bool(self._is_open.any())

    def add(self, samples: Samples) -> None:
        """Finds the images of those components that move, and were still or moved as another one does.

        Raises:
            ConfigError: One has no image.
        """
        new = np.flatnonzero(samples.moves & self._is_open)
        seen, image = samples.seen[:, new], samples.image[:, new]
        # Root mean squared gaps of image i from the negative and from the value of component j.
        middle_n = seen.mean(axis=0)
        seen_c, image_c = seen - middle_n, image - middle_n
        count = len(seen)
        gaps_2nn = np.stack(
            [
                (np.square(image_c).sum(0)[:, None] + np.square(seen_c).sum(0)[None] - 2 * s * image_c.T @ seen_c)
                / count
                + np.square(middle_n[:, None] - s * middle_n[None])
                for s in (-1, 1)
            ]
        )
        relative_2nn = np.sqrt(np.maximum(gaps_2nn, 0)) / np.std(image, axis=0)[:, None]
        relative_2nn[~self._allowed_2nn[:, new[:, None], new]] = np.inf
        for i in range(new.size):
            best = relative_2nn[:, i].min()
            if not best <= TOLERANCE:
                raise ConfigError(
                    f"Component {new[i]} of observation {self._name!r} has no mirror image: nothing in that "
                    "observation has its value or the negative of it when the robot is mirrored. " + FIXES
                )
            # Itself rather than others that always have the same value.
            is_best_2n = relative_2nn[:, i] <= best + _ALIKE
            side, j = np.argwhere(is_best_2n)[-1]
            if is_best_2n[:, i].any():
                side, j = int(is_best_2n[:, i].argmax()), i
            self._allowed_2nn[:, new[i]] = False
            self._allowed_2nn[:, new[i], new] = is_best_2n
            self._index[new[i]], self._sign[new[i]] = new[j], 2 * side - 1

    def check_constant(self, samples: Samples) -> None:
        """Checks that components that nothing has moved are constants.

        Args:
            samples: Values under readings of contacts and limits, and forces, that need not fit the state.

        Raises:
            ConfigError: One moves now, so it may in training, and its image is not known.
        """
        moving = np.flatnonzero(samples.moves & (self._index < 0))
        if moving.size:
            raise ConfigError(
                f"The mirror image of component {moving[0]} of observation {self._name!r} is not known: it depends on "
                f"contacts, limits or forces, but stays at {self._constant[moving[0]]:.3g} in all states tried, and "
                f"names and places do not tell the images of what it senses. {FIXES}"
            )

    def result(self) -> SignedPermutation:
        """The image of the observation. Constants are their own images.

        Raises:
            ConfigError: The image of the observation is not clear.
        """
        index = np.where(self._index < 0, np.arange(self._index.size), self._index)
        found = SignedPermutation.of(index, self._sign)
        if not found.is_involution:
            raise ConfigError(
                f"The mirror image of observation {self._name!r} is not clear: components always have the same "
                f"values. {FIXES}"
            )
        return found
