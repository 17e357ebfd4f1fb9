import math

import numpy as np
import pytest

from ksim.evaluate.evaluator import Estimate, estimate_fraction, estimate_mean


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


def test_difference_of_fractions_has_newcombes_interval():
    # Newcombe (1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I), table II (a), method 10.
    difference = estimate_fraction(np.arange(70) < 56).minus(estimate_fraction(np.arange(80) < 48))
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_difference_of_means_has_the_root_of_the_sum_of_squared_half_widths():
    difference = Estimate(5.0, 2.0, 8.0).minus(Estimate(1.0, -3.0, 5.0))
    assert (difference.mean, difference.low, difference.high) == (4.0, -1.0, 9.0)  # sqrt(3^2 + 4^2) = 5


def test_difference_of_a_single_value_has_no_interval():
    difference = Estimate(5.0, 2.0, 8.0).minus(estimate_mean(np.array([1.0])))
    assert difference.record() == {"mean": 4.0, "low": None, "high": None}
    assert difference.change_words() == "+4.00"


@pytest.mark.parametrize("estimate", [Estimate(1.5, 1.0, 2.0), estimate_mean(np.array([2.0]))], ids=["many", "one"])
def test_estimate_is_read_back_from_its_record(estimate):
    assert repr(Estimate.of_record(estimate.record())) == repr(estimate)  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("estimate", "words", "change"),
    [
        (Estimate(0.1234, 0.1034, 0.1434), "0.123 ± 0.020", "+0.123 (+0.103 to +0.143)"),
        (Estimate(-44.66, -45.96, -43.36), "-44.7 ± 1.3", "-44.7 (-46.0 to -43.4)"),
        (Estimate(497.3, 485.0, 509.6), "497 ± 12", "+497 (+485 to +510)"),
        (Estimate(1.0, 1.0, 1.0), "1.00 ± 0.00", "+1.00 (+1.00 to +1.00)"),
        (Estimate(0.0, 0.0, 0.0), "0 ± 0", "+0 (+0 to +0)"),
        (Estimate(0.2468, math.nan, math.nan), "0.247", "+0.247"),
    ],
    ids=["small", "negative", "large", "without a spread", "zero", "single"],
)
def test_figure_has_the_digits_that_its_interval_leaves(estimate, words, change):
    assert estimate.rounded_words() == words
    assert estimate.change_words() == change


def test_fraction_is_written_as_a_count_with_its_interval():
    # The bounds are those of Wilson's interval above.
    all_of_64, half = estimate_fraction(np.ones(64, bool)), estimate_fraction(np.arange(4) < 2)
    assert all_of_64.count_words(64, "survived") == "64 of 64 survived (95 % interval 94-100 %)"
    assert half.count_words(4) == "2 of 4 (95 % interval 15-85 %)"
    assert half.count_words(None, "survived") == "50% survived (95 % interval 15-85 %)"
    assert Estimate(1.0, math.nan, math.nan).count_words(3) == "3 of 3"
