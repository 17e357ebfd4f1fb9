import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp.actions import ActionLatency, ActionSmoothing, DroppedActions
from tests.support.contexts import make_context


def actions_that_act(term, actions, key=0):
    """The filter's outputs for successive scalar actions, from the start of an episode."""
    keys = jax.random.split(jax.random.key(key), len(actions) + 1)
    memory = term.init(make_context(action=jnp.zeros(2), key=keys[0]))
    passed = []
    for action, step_key in zip(actions, keys[1:], strict=True):
        context = make_context(action=jnp.full(2, float(action)), key=step_key, memory=memory)
        memory = term.update(context)
        passed.append(term(dataclasses.replace(context, memory=memory))[..., 0])
    return np.stack(passed)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, [[1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3, 3, 3]]),
        (0.008, [[0, 0, 1, 1, 1], [1, 1, 2, 2, 2], [2, 2, 3, 3, 3]]),  # 2 of the 5 substeps of 4 ms
        (0.020, [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [2, 2, 2, 2, 2]]),
        (0.028, [[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 2, 2, 2]]),
    ],
)
def test_latency_delays_by_whole_substeps(seconds, expected):
    term = ActionLatency(seconds=(seconds, seconds))
    np.testing.assert_array_equal(actions_that_act(term, [1.0, 2.0, 3.0]), expected)


def test_latency_is_drawn_once_per_episode_from_its_range():
    term = ActionLatency(seconds=(0.0, 0.02))
    late_n = [int((actions_that_act(term, [1.0], key=key) == 0).sum()) for key in range(40)]
    assert set(late_n) == {0, 1, 2, 3, 4, 5}


def test_dropped_action_leaves_the_one_before_it_acting():
    passed_t = actions_that_act(DroppedActions(probability=0.5), list(range(1, 201)))
    chosen_t = np.arange(1, 201)
    is_lost_t = passed_t != chosen_t
    before_t = np.concatenate([[0], passed_t[:-1]])
    np.testing.assert_array_equal(passed_t, np.where(is_lost_t, before_t, chosen_t))
    # The standard error is sqrt(0.25 / 200) = 0.035.
    assert abs(is_lost_t.mean() - 0.5) < 0.15


def test_smoothing_approaches_a_constant_action_by_its_time_constant():
    # After one control step of 0.02 s, 1 - exp(-0.02 / 0.04) of the way; after two, 1 - exp(-1).
    passed_t = actions_that_act(ActionSmoothing(time_constant_s=0.04), [1.0, 1.0])
    np.testing.assert_allclose(passed_t, [1 - np.exp(-0.5), 1 - np.exp(-1.0)], rtol=1e-5)
