import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp.terminations import BaseTilted, BaseTooLow, TimeLimit
from tests.mdp.contexts import make_context, turned


@pytest.mark.parametrize(("episode_step", "expected"), [(2, False), (3, True), (4, True)])
def test_time_limit_when_reached_ends_at_the_exact_step(episode_step, expected):
    # 0.06 s are 3 steps of 0.02 s.
    assert TimeLimit(seconds=0.06)(make_context(episode_step=jnp.int32(episode_step))) == expected


def test_time_limit_when_reached_truncates_and_a_fall_does_not():
    assert TimeLimit(seconds=1.0).truncates
    assert not BaseTooLow(height=0.3).truncates
    assert not BaseTilted().truncates


@pytest.mark.parametrize(("height", "expected"), [(0.29, True), (0.31, False)])
def test_base_too_low_when_below_the_height_ends(height, expected):
    assert BaseTooLow(height=0.3)(make_context(height=height)) == expected


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(
    ("degrees", "expected"), [(0, False), (44, False), (-44, False), (46, True), (-46, True), (180, True)]
)
def test_base_tilted_when_it_leans_further_than_allowed_ends(axis, degrees, expected):
    # pi / 4 is 45 degrees.
    assert BaseTilted(max_tilt=np.pi / 4)(make_context(orientation=turned(axis, degrees))) == expected


def test_base_tilted_when_base_has_turned_around_does_not_end():
    assert not BaseTilted()(make_context(orientation=turned("z", 180)))
