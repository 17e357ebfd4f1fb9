"""Starts made ahead of the ends of episodes: which they are, how many are made, and which are made again."""

import dataclasses
import operator
import shutil

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from examples.point_mass import PointMassTask
from ksim import ConfigError
from ksim.checkpoint.format import read_checkpoint, write_checkpoint
from ksim.rollout.starts import continue_or_start, env_keys, initial_env_states, initial_next_starts
from ksim.rollout.unroll import unroll
from tests.support.checkpoints import newest
from tests.support.damaged_runs import read_lines, without_times
from tests.support.still import Still
from tests.support.tasks import point_mass_task, train_iterations

KEY = jax.random.key(0)
RESETS: list[int] = []
"""One for every reset that was computed of a `Lives` that counts them."""


class Life(eqx.Module):
    """The start of an episode, its length and age in steps, and the value that its env keeps over episodes."""

    start: jax.Array
    length: jax.Array
    age: jax.Array
    kept: jax.Array


class Lives(ksim.Environment):
    """Draws at a reset where the episode begins and how long it lasts; whatever the action, each step counts.

    shortest, longest: bounds of an episode's length in steps. is_counted: whether resets go into `RESETS`.
    """

    action_size = 1
    shortest: int = 1
    longest: int = 3
    is_counted: bool = False

    def reset(self, key, kept=0.0):
        start_key, length_key = jax.random.split(key)
        length = jax.random.randint(length_key, (), self.shortest, self.longest + 1)
        if self.is_counted:  # the compilation cache holds no program with a callback
            jax.debug.callback(lambda _: RESETS.append(1), length)
        return self._state(Life(jax.random.uniform(start_key), length, jnp.int32(0), jnp.float32(kept)))

    def step(self, state, action):
        return self._state(dataclasses.replace(state.inner, age=state.inner.age + 1))

    def _state(self, life):
        return ksim.EnvState(
            inner=life,
            obs={"actor": jnp.stack([life.start, life.kept])},
            reward=life.start,
            terminated=life.age >= life.length,
            truncated=jnp.bool_(False),
            metrics={},
        )


def begin(env, num_envs):
    """States with next starts, as a training begins with."""
    index_e = jnp.arange(num_envs)
    state_e = initial_env_states(env, KEY, index_e)
    return dataclasses.replace(state_e, next_start=initial_next_starts(state_e, KEY, index_e))


def make_rollout(env, num_steps):
    """`(number, states) -> (trajectory, states)` of one rollout of several."""

    @jax.jit
    def rollout(number, state_e):
        key_e = env_keys(jax.random.fold_in(KEY, 100 + number), jnp.arange(state_e.reward.shape[0]))
        trajectory, state_e, _ = unroll(env, Still(), state_e, None, key_e, num_steps=num_steps)
        return trajectory, state_e

    return rollout


def starts_of(trajectory):
    """The starts of the finished episodes of each env, in order: one number for each episode."""
    start_et, done_et = np.asarray(trajectory.reward), np.asarray(trajectory.done)
    return [start_t[np.flatnonzero(done_t)] for start_t, done_t in zip(start_et, done_et, strict=True)]


def test_env_that_ends_again_and_again_in_a_rollout_starts_from_another_state_each_time():
    for state_e in (begin(Lives(), 4), initial_env_states(Lives(), KEY, jnp.arange(4))):
        trajectory, _ = make_rollout(Lives(), 12)(0, state_e)
        starts = starts_of(trajectory)
        # Episodes of at most 3 steps: at least 4 of each env end in 12 steps.
        assert all(len(ended) >= 4 for ended in starts)
        everywhere = np.concatenate(starts)
        assert len(np.unique(everywhere)) == len(everywhere)


def test_start_depends_on_its_env_and_number_alone():
    # Other rollouts, another batch, other ends of the other envs: the same starts of env 1.
    starts = []
    for num_envs, num_steps, num_rollouts in ((2, 24, 1), (2, 4, 6), (50, 8, 3)):
        state_e, rollout = begin(Lives(), num_envs), make_rollout(Lives(), num_steps)
        found = []
        for number in range(num_rollouts):
            trajectory, state_e = rollout(number, state_e)
            found.extend(starts_of(trajectory)[1])
        starts.append(found)
    assert starts[0] == starts[1] == starts[2]
    assert len(starts[0]) >= 8


def count_resets(env, num_envs, num_steps, num_rollouts):
    """The number of episodes that ended, and of resets that were computed for them."""
    state_e, rollout = begin(env, num_envs), make_rollout(env, num_steps)
    jax.effects_barrier()
    before, num_ends = len(RESETS), 0
    for number in range(num_rollouts):
        trajectory, state_e = rollout(number, state_e)
        num_ends += int(trajectory.done.sum())
    jax.effects_barrier()
    return num_ends, len(RESETS) - before


def test_resets_are_as_many_as_the_episodes_that_end_however_many_rollouts_there_are():
    num_envs, num_rollouts = 64, 60
    num_ends, num_resets = count_resets(Lives(60, 140, is_counted=True), num_envs, 4, num_rollouts)
    assert num_ends > 64
    # Those that have been made ahead and not been used yet are fewer than the envs; a few rows of batches are empty.
    assert num_ends <= num_resets <= 1.5 * num_ends + num_envs
    assert num_resets < num_envs * num_rollouts / 5


def test_no_reset_is_computed_in_a_rollout_in_which_no_episode_ends():
    assert count_resets(Lives(10, 12, is_counted=True), 16, 3, 2) == (0, 0)


class Leveled(Lives):
    """Keeps the level of a curriculum, which moves where episodes begin."""

    def next_episode(self, state, key):
        level = state.inner.kept
        fresh = self.reset(key, level)
        return self._state(dataclasses.replace(fresh.inner, start=fresh.inner.start + 10 * level))

    def at_levels(self, state, levels):
        return dataclasses.replace(state, inner=dataclasses.replace(state.inner, kept=levels["far"]))


class LeveledAhead(Leveled):
    """Its starts can be made ahead, as long as the level stays."""

    longest: int = 40

    def is_next_start(self, start, state):
        return start.inner.kept == state.inner.kept


@pytest.mark.parametrize("kind", [Leveled, LeveledAhead])
def test_episode_starts_at_the_level_of_the_rollout_in_which_it_starts(kind):
    env, num_envs = kind(), 50
    state_e, rollout = begin(env, num_envs), make_rollout(env, 9)
    levels = (0.0, 1.0, 1.0, 2.0, 3.0)
    for number, level in enumerate(levels):
        age_e = np.asarray(state_e.inner.age)
        _, state_e = rollout(number, jax.vmap(env.at_levels)(state_e, {"far": jnp.full(num_envs, level)}))
        is_new_e = np.asarray(state_e.inner.age) < age_e + 9
        assert is_new_e.any()
        begun_e = np.asarray(state_e.inner.start)[is_new_e]
        assert ((begun_e >= 10 * level) & (begun_e < 10 * level + 1)).all()


def test_starts_made_ahead_are_made_again_only_where_the_level_has_changed():
    env = LeveledAhead(is_counted=True)

    @jax.jit
    def advance(state_e, next_e, done_e, level):
        state_e = jax.vmap(env.at_levels, in_axes=(0, None))(state_e, {"far": level})
        ended = lambda index_r: jax.tree.map(lambda x: x[index_r], state_e)
        return continue_or_start(env, state_e, done_e, ended, next_e)

    state_e = begin(env, 4)
    state_e, next_e = dataclasses.replace(state_e, next_start=None), state_e.next_start
    # Batches of 2 starts. Env 0 needs one, and that of env 1 is made with it; at another level, that is made again.
    for ends, level, num_made in ((0, 0.5, 2), (1, 0.5, 0), (0, 0.5, 2), (1, 0.7, 2), (0, 0.7, 0)):
        jax.effects_barrier()
        before = len(RESETS)
        state_e, next_e = advance(state_e, next_e, jnp.arange(4) == ends, jnp.float32(level))
        jax.effects_barrier()
        assert len(RESETS) - before == num_made
        assert 10 * level <= state_e.inner.start[ends] < 10 * level + 1


class Counting(Lives):
    """Counts its steps over all its episodes, which only the state that ended knows."""

    def next_episode(self, state, key):
        return self.reset(key, state.inner.kept)

    def step(self, state, action):
        stepped = dataclasses.replace(state.inner, age=state.inner.age + 1, kept=state.inner.kept + 1)
        return self._state(stepped)


class CountingTwice(LeveledAhead, Counting):
    """Takes back the word of the class below, by an own `next_episode`."""

    def next_episode(self, state, key):
        return Counting.next_episode(self, state, key)


@pytest.mark.parametrize("kind", [Counting, CountingTwice])
def test_next_episode_is_given_the_state_that_ended(kind):
    env = kind(longest=5)
    state_e, rollout = begin(env, 40), make_rollout(env, 7)
    for number in range(3):
        trajectory, state_e = rollout(number, state_e)
        assert trajectory.done.any()
    np.testing.assert_array_equal(state_e.inner.kept, np.full(40, 21.0))


class BlowsUp(Counting):
    """No number of it is finite any more after its third step."""

    def step(self, state, action):
        stepped = super().step(state, action)
        is_lost = stepped.inner.age >= 3
        spoil = lambda x: jnp.where(is_lost, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x
        return jax.tree.map(spoil, stepped)


def test_next_episode_after_a_step_that_is_not_finite_is_given_the_state_before_it():
    env = BlowsUp(shortest=9, longest=9)
    trajectory, state_e = make_rollout(env, 6)(0, begin(env, 4))
    np.testing.assert_array_equal(np.flatnonzero(trajectory.done[0]), [2, 5])
    # Of three steps, the two that were finite count, twice.
    np.testing.assert_array_equal(state_e.inner.kept, [4, 4, 4, 4])


class LivesTask(PointMassTask):
    """A learner whose actions matter to nobody, so that envs do not depend on the rounding of its updates."""

    def get_environment(self, engine, num_devices):
        return Lives(longest=9)


def lives_task(**options):
    return LivesTask(dataclasses.replace(point_mass_task().config, num_envs=32, **options))


@pytest.mark.long
def test_envs_with_many_ends_are_the_same_bit_for_bit_on_any_number_of_devices():
    states = {}
    for num_devices in (1, 2, 4):
        task = lives_task(num_devices=num_devices)
        placed, history = train_iterations(task, 4)
        states[num_devices] = task.layout.join_envs(placed.envs)
        assert sum(m["episode/count"] for m in history) > 100
    one = states.pop(1)
    for many in states.values():
        chex.assert_trees_all_equal(many.env_state, one.env_state)
        np.testing.assert_array_equal(many.next_start.number, one.next_start.number)
        # Which of them are ready is another matter; those that are, are the same.
        both = np.flatnonzero(many.next_start.is_ready & one.next_start.is_ready)
        assert both.size
        starts = [jax.tree.map(operator.itemgetter(both), envs.next_start.packed) for envs in (many, one)]
        chex.assert_trees_all_equal(*starts)


def run_lives(run_dir, max_iterations, **options):
    task = lives_task(
        num_devices=1, run_dir=str(run_dir), max_iterations=max_iterations, save_every_n_iterations=1, **options
    )
    assert task.run().exit_code == 0
    return [without_times(line) for line in read_lines(run_dir / "metrics.jsonl")]


@pytest.mark.long
def test_resumed_run_starts_the_episodes_that_the_whole_one_does(tmp_path):
    whole = run_lives(tmp_path / "whole", 5)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for number in (4, 5):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / str(number))
    assert run_lives(tmp_path / "run", 5, resume="auto") == whole
    run, whole = (read_checkpoint(newest(tmp_path / name)).arrays for name in ("run", "whole"))
    states = [
        {name: x for name, x in arrays.items() if name.startswith(("learner.", "envs."))} for arrays in (run, whole)
    ]
    chex.assert_trees_all_equal(*states)


def without(checkpoint, prefix, path):
    """Writes a checkpoint less the arrays whose names begin so."""
    arrays = {name: x for name, x in checkpoint.arrays.items() if not name.startswith(prefix)}
    assert len(arrays) < len(checkpoint.arrays)
    shutil.rmtree(path)
    document = {name: x for name, x in checkpoint.document.items() if name not in ("format", "leaves", "files")}
    write_checkpoint(path, arrays, document)


@pytest.mark.long
def test_checkpoint_without_next_starts_as_they_once_were_is_resumed(tmp_path):
    run_lives(tmp_path / "run", 2)
    path = newest(tmp_path / "run")
    without(read_checkpoint(path), "envs.next_start.", path)
    assert [line["iteration"] for line in run_lives(tmp_path / "run", 4, resume="auto")] == [1, 2, 3, 4]
    path = newest(tmp_path / "run")
    without(read_checkpoint(path), "envs.next_start.number", path)
    with pytest.raises(ConfigError, match=r"envs\.next_start\.number is missing there"):
        run_lives(tmp_path / "run", 5, resume="auto")


class OwnRollout(LivesTask):
    """Returns states of its own making, which know of no next starts."""

    def _rollout(self, model, env_state, model_carry, rng):
        trajectory, after, model_carry = super()._rollout(model, env_state, model_carry, rng)
        return trajectory, dataclasses.replace(after, next_start=None), model_carry


@pytest.mark.long
def test_rollout_of_a_tasks_own_need_not_know_of_next_starts():
    _, history = train_iterations(OwnRollout(lives_task(num_devices=2).config), 2)
    assert history[-1]["episode/count"] > 0
