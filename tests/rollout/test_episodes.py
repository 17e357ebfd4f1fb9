"""Whole episodes of an env that counts: hand-worked."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

import ksim
from ksim.rollout.episodes import advance_episodes, start_episodes
from tests.support.still import Still


class Countdown(ksim.Environment):
    """Env i of a batch ends at the step that its key draws, 1 to 3; each step earns its number; 1 falls, others do not.

    Past its end it is no number any more.
    """

    action_size = 1

    def reset(self, key):
        return self._state(jax.random.randint(key, (), 1, 4), jnp.int32(0))

    def step(self, state, action):
        end, time = state.inner
        return self._state(end, time + 1)

    def _state(self, end, time):
        number = jnp.where(time > end, jnp.nan, time.astype(jnp.float32))
        return ksim.EnvState(
            inner=(end, time),
            obs={"actor": number[None]},
            reward=number,
            terminated=(time == end) & (end == 1),
            truncated=(time == end) & (end != 1),
            metrics={"error/count": 10 * number, "other": number},
        )


def run(num_envs, num_steps, **options):
    episodes = start_episodes(Countdown(), Still(), jax.random.key(0), num_envs)
    return advance_episodes(Countdown(), Still(), episodes, num_steps, **options)


def test_episode_counts_its_steps_up_to_its_end_and_nothing_after():
    episodes, _ = run(16, 5)
    ends_e = np.asarray(episodes.env_state.inner[0])
    assert set(ends_e) == {1, 2, 3}
    np.testing.assert_array_equal(episodes.length, ends_e)
    # 1, 1 + 2 and 1 + 2 + 3.
    np.testing.assert_array_equal(episodes.total_reward, ends_e * (ends_e + 1) / 2)
    np.testing.assert_array_equal(episodes.error_sums["error/count"], 10 * episodes.total_reward)
    assert list(episodes.error_sums) == ["error/count"]
    np.testing.assert_array_equal(episodes.fell, ends_e == 1)
    assert not np.asarray(episodes.is_running).any()


def test_episodes_go_on_from_where_they_were():
    whole, _ = run(8, 3)
    half, _ = run(8, 1)
    joined, _ = advance_episodes(Countdown(), Still(), half, 2)
    chex.assert_trees_all_equal(joined, whole)


def test_first_env_lives_the_same_episode_alone_and_among_others():
    alone, _ = run(1, 5)
    among, _ = run(8, 5)
    assert alone.length[0] == among.length[0]


def test_record_sees_the_states_before_and_after_each_step():
    _, (before_te, after_te) = run(4, 1, record=lambda before, _, after: (before.reward, after.reward))
    np.testing.assert_array_equal(before_te, np.zeros((1, 4)))
    np.testing.assert_array_equal(after_te, np.ones((1, 4)))
