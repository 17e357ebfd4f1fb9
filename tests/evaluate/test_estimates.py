import math

import numpy as np
import pytest

from ksim.evaluate.evaluator import estimate_fraction, estimate_mean


def test_mean_of_four_values_has_students_interval():
    # Mean 3, sample variance (4 + 1 + 1 + 4) / 3 = 10/3; Student's t for 3 degrees of freedom is 3.182.
    estimate = estimate_mean(np.array([1.0, 2.0, 4.0, 5.0]))
    half_width = 3.1824463 * math.sqrt(10 / 3) / math.sqrt(4)
    assert estimate.mean == 3.0
    assert (estimate.low, estimate.high) == pytest.approx((3 - half_width, 3 + half_width))
    assert estimate.words() == "3.00 ± 2.91"


def test_single_value_has_no_interval_and_is_null_in_a_record():
    assert estimate_mean(np.array([2.0])).record() == {"mean": 2.0, "low": None, "high": None}
    assert estimate_mean(np.array([2.0])).words() == "2.00"


@pytest.mark.parametrize(
    ("successes", "expected", "words"),
    [
        # n = 4, z^2 = 3.8415: centre 0.5, half width 1.96 / (1 + 0.9604) * sqrt(0.25 / 4 + 3.8415 / 64) = 0.3500.
        ([True, True, False, False], (0.5, 0.15, 0.85), "50% (15% to 85%)"),
        # 1 / (1 + z^2 / n) = 1 / (1 + 3.8415 / 64) = 0.9434.
        ([True] * 64, (1.0, 0.9434, 1.0), "100% (94% to 100%)"),
        # Neither all nor none.
        (np.arange(256) > 0, (255 / 256, 0.9782, 0.9993), "99.6% (98% to 100%)"),
        (np.arange(256) > 254, (1 / 256, 0.0007, 0.0218), "0.4% (0% to 2%)"),
    ],
    ids=["half", "all", "all but one", "one"],
)
def test_fraction_has_wilsons_interval(successes, expected, words):
    estimate = estimate_fraction(np.array(successes))
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx(expected, abs=1e-4)
    assert estimate.percent_words() == words
