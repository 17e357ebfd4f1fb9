import math

import pytest

from ksim.checks import CheckedModule, check_bounds, ranged, required
from ksim.errors import ConfigError


@pytest.mark.parametrize(
    ("bounds", "value", "message"),
    [
        ({"least": 1}, 0, r"n \(0\) must be positive\."),
        ({"least": 1}, 2**31, r"n \(2147483648\) must be at most 2147483647\."),
        ({"above": 0}, math.nan, r"n \(nan\) must be positive\."),
        ({"above": 0, "most": 1e6}, 1e7, r"must be at most 1e\+06\."),
        ({"least": 0}, -1.0, r"must be zero or more\."),
        ({"least": 0}, 1e-40, r"must be at least 1.2e-38, the least that 32 bits can tell from zero\."),
        ({"least": 0, "most": 1}, math.nan, r"must be from 0 to 1\."),
        ({"least": 2}, 1, r"must be at least 2\."),
        ({"above": -1, "most": 3}, -1, r"must be above -1, at most 3\."),
    ],
)
def test_option_out_of_its_bounds_is_an_error_with_the_rule(bounds, value, message):
    with pytest.raises(ConfigError, match=message):
        check_bounds("n", value, **bounds)


@pytest.mark.parametrize(
    ("bounds", "value"), [({"least": 1}, None), ({"least": 0, "most": 1}, None), ({"least": 0}, 0.0), ({"most": 3}, 3)]
)
def test_option_within_its_bounds_or_none_is_fine(bounds, value):
    check_bounds("n", value, **bounds)


class Walk(CheckedModule):
    distance: float = required(above=0.0)
    name: str
    speed: tuple[float, float] = ranged((0.0, 1.0), least=0.0)
    limit: float | None = ranged(None, rule="below the sky", most=2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"distance": 0.0}, r"Walk has distance=0\.0, which must be a number, above 0\."),
        ({"distance": math.nan}, r"Walk has distance=nan"),
        (
            {"distance": 1.0, "speed": (1.0, 0.5)},
            r"speed=\(1\.0, 0\.5\), which must be two numbers, the smaller first,",
        ),
        ({"distance": 1.0, "speed": (-1.0, 0.5)}, r"the smaller first, at least 0\."),
        ({"distance": 1.0, "speed": (1.0, 2.0, 3.0)}, r"two numbers"),
        ({"distance": 1.0, "limit": 2.5}, r"limit=2\.5, which must be below the sky\."),
    ],
)
def test_field_out_of_its_range_is_an_error_with_class_value_and_rule(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Walk(name="a", **arguments)


def test_field_whose_default_is_none_may_be_none():
    assert Walk(1.0, "a", (0.5, 0.5), None).limit is None
