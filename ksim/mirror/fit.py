"""Fit of the mirror image of each component of a vector, from values of the vector and of its image."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from ksim.errors import ConfigError
from ksim.mirror.signed import SignedPermutation

TOLERANCE = 0.2
"""Largest error of a component's image, as a fraction of the standard deviation. Contact solvers stop early, so images
are not exact."""
_STILL_PART, _STILL = 1e-4, 1e-6
"""Standard deviations, as a fraction of a component's largest value and in its own unit. A component that varies by
less than their sum counts as constant."""
_ALIKE = 1e-4
FIXES = "Leave it out of the observations, or override get_mirror."


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Values of an observation for a robot, and for its mirror image. Each is also the image of the other.

    Attributes:
        name: Name of the observation, for error messages.
        seen: Values for the robot.
        image: Values for its mirror image.
    """

    name: str
    seen: Float[np.ndarray, "s n"]
    image: Float[np.ndarray, "s n"]

    @staticmethod
    def of(name: str, seen_sn: np.ndarray, image_sn: np.ndarray) -> "Samples":
        """Samples that contain every pair in both directions.

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
        """A mask of the components that vary, so that their image can be found."""
        return np.std(self.seen, axis=0) > _STILL_PART * np.abs(self.seen).max(axis=0, initial=0.0) + _STILL


class Fit:
    """The images of an observation's components, as far as they are known."""

    def __init__(self, samples: Samples) -> None:
        self._name, count = samples.name, samples.seen.shape[1]
        self._index, self._sign = np.full(count, -1), np.ones(count)
        self._allowed_2nn = np.ones((2, count, count), bool)
        self._constant = samples.seen.mean(axis=0)  # the value, for constant components
        self.add(samples)

    @property
    def still(self) -> np.ndarray:
        """Indices of the components whose image is not known yet because they have been constant."""
        return np.flatnonzero(self._index < 0)

    @property
    def _is_open(self) -> Bool[np.ndarray, " n"]:
        return (self._index < 0) | (self._allowed_2nn.sum(axis=(0, 2)) > 1)

    @property
    def is_open(self) -> bool:
        """Whether further states may help: a component has been constant, or always equal to another one."""
        return bool(self._is_open.any())

    def add(self, samples: Samples) -> None:
        """Finds the images of open components (constant, or equal to another one, so far) that vary in these samples.

        Raises:
            ConfigError: A component has no image.
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
            # A component's own value is preferred over components that always have the same value.
            is_best_2n = relative_2nn[:, i] <= best + _ALIKE
            side, j = np.argwhere(is_best_2n)[-1]
            if is_best_2n[:, i].any():
                side, j = int(is_best_2n[:, i].argmax()), i
            self._allowed_2nn[:, new[i]] = False
            self._allowed_2nn[:, new[i], new] = is_best_2n
            self._index[new[i]], self._sign[new[i]] = new[j], 2 * side - 1

    def check_constant(self, samples: Samples) -> None:
        """Checks that the components without a known image are really constant.

        Args:
            samples: Values for readings of contacts, limits and forces that need not be consistent with the state.

        Raises:
            ConfigError: A component varies here, so it may vary in training, and its image is not known.
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
