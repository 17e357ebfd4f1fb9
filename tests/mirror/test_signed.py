"""Vectors seen in a mirror."""

import numpy as np

from ksim.mirror import SignedPermutation

SWAPPED = SignedPermutation.of([0, 2, 1], [-1, 1, 1])


def test_image_of_a_vector_has_components_in_other_places_with_other_signs():
    np.testing.assert_array_equal(SWAPPED(np.array([[1.0, 2.0, 3.0]])), [[-1.0, 3.0, 2.0]])


def test_image_of_concatenated_vectors_is_that_of_each():
    joined = SignedPermutation.joined([SWAPPED, SignedPermutation.of([0], [-1]), SWAPPED])
    np.testing.assert_array_equal(joined(np.arange(1.0, 8.0)), [-1, 3, 2, -4, -5, 7, 6])


def test_image_of_the_image_is_the_vector_only_of_an_involution():
    assert SWAPPED.is_involution
    assert not SignedPermutation.of([1, 2, 0], [1, 1, 1]).is_involution
    # The second component becomes minus the first, which becomes plus the second.
    assert not SignedPermutation.of([1, 0], [1, -1]).is_involution
