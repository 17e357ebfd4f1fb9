import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import commands
from ksim.viewer.controls import CommandNumber, command_numbers


def velocity_with(ranges):
    """A velocity command that tells these ranges of its numbers."""
    return type("Told", (commands.VelocityCommand,), {"ranges": lambda self: ranges})()


def test_numbers_of_a_command_that_tells_no_ranges_start_from_what_was_drawn():
    numbers, start = command_numbers({"v": velocity_with({})}, {"v": np.array([0.1, 0.2, 0.3])})
    assert [(n.label, n.range) for n in numbers] == [("0", None), ("1", None), ("2", None)]
    np.testing.assert_allclose(start["v"], [0.1, 0.2, 0.3])
    assert CommandNumber("c", 0, "x", None).step == 0.1


def test_numbers_start_at_zero_or_next_to_it():
    _, start = command_numbers({"h": commands.HeightCommand(height=(0.6, 0.8))}, {"h": np.array([0.7])})
    np.testing.assert_allclose(start["h"], [0.6])


def test_command_that_tells_too_few_ranges_is_refused():
    with pytest.raises(ConfigError, match="each of its 3 numbers"):
        command_numbers({"v": velocity_with({"forward, m/s": (0.0, 1.0)})}, {"v": np.zeros(3)})
