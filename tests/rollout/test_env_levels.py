"""Per-env curricula in rollouts: each env moves at its own ends of episodes, and starts where it has moved."""

import dataclasses
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from ksim.checkpoint.format import read_checkpoint
from ksim.mdp import observations, rewards, terminations
from ksim.rollout.environment import check_environment
from ksim.rollout.starts import env_keys, initial_env_states, initial_next_starts
from ksim.rollout.unroll import unroll
from tests.support.checkpoints import newest
from tests.support.damaged_runs import assert_same_metrics
from tests.support.scale import only_in_full
from tests.support.still import Still
from tests.support.tasks import ByFalls, CartPoleConfig, CartPoleTask, PoleFell

KEY = jax.random.key(0)
NUM_ENVS, NUM_STEPS, NUM_ROLLOUTS = 24, 25, 8


class SeenTask(CartPoleTask):
    """A cart-pole whose policy sees exactly how the pole leans, in episodes of which many end in a fall."""

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=0.24), PoleFell()]

    def get_observations(self, physics_model):
        return {"actor": {"lean": observations.JointPosition(joints=("pivot",))}}

    def get_curricula(self, physics_model):
        return super().get_curricula(physics_model) | {"lean": ByFalls(start=1 / 3)}


def make_environment(cls=SeenTask, **curricula):
    """The environment of a task, with other curricula if there are any."""
    task = type("Task", (cls,), {"get_curricula": lambda self, _: cls.get_curricula(self, _) | curricula})
    return task(CartPoleConfig(num_devices=1)).environment


@pytest.fixture(scope="module")
def env():
    return make_environment()


@pytest.fixture(scope="module")
def lives(env):
    """Level, lean, end and fall of many episodes of each env, (env, time)."""
    index_e = jnp.arange(NUM_ENVS)

    @jax.jit
    def rollout(number, state_e):
        key_e = env_keys(jax.random.fold_in(KEY, 100 + number), index_e)
        trajectory, state_e, _ = unroll(env, Still(env.action_size), state_e, None, key_e, num_steps=NUM_STEPS)
        level_et = trajectory.metrics["curriculum/lean"]
        return state_e, (level_et, trajectory.obs["actor"][..., 0], trajectory.done, trajectory.terminated)

    state_e = initial_env_states(env, KEY, index_e)
    state_e = dataclasses.replace(state_e, next_start=initial_next_starts(state_e, KEY, index_e))
    pieces = []
    for number in range(NUM_ROLLOUTS):
        state_e, piece = rollout(number, state_e)
        pieces.append(piece)
    return tuple(np.concatenate(x, axis=1) for x in zip(*pieces, strict=True))


def episodes_of(lives, env_index):
    """Level, lean at the start, and whether it fell, of each whole episode of an env."""
    level_t, lean_t, done_t, fell_t = (x[env_index] for x in lives)
    ends = np.flatnonzero(done_t)
    starts = np.concatenate([[0], ends[:-1] + 1])
    for start, end in zip(starts, ends, strict=True):
        assert len(set(level_t[start : end + 1])) == 1  # the same during an episode
    return list(zip(level_t[starts], lean_t[starts], fell_t[ends], strict=True))


def test_level_moves_up_and_down_at_the_ends_of_the_env_s_own_episodes_and_wraps(lives):
    seen = {"up": 0, "down": 0, "stopped": 0}
    beyond = []
    for i in range(NUM_ENVS):
        episodes = episodes_of(lives, i)
        np.testing.assert_allclose(episodes[0][0], 1 / 3, rtol=1e-6)
        for (level, _, fell), (after, _, _) in itertools.pairwise(episodes):
            if not fell and level + 1 / 3 > 1.0001:
                beyond.append(after)
                continue
            expected = max(level - 1 / 3, 0.0) if fell else level + 1 / 3
            seen["up" if not fell else "down" if level > 0 else "stopped"] += 1
            np.testing.assert_allclose(after, expected, atol=1e-6)
    assert min(seen.values()) >= 5, seen
    # Drawn uniformly from 0 to 1, as `draw` does unless it is overridden.
    assert len(beyond) >= 10
    assert min(beyond) >= 0
    assert max(beyond) <= 1
    assert len(np.unique(beyond)) == len(beyond)


def test_episode_starts_where_its_level_says_though_starts_are_made_ahead(lives):
    for i in range(NUM_ENVS):
        for level, lean, _ in episodes_of(lives, i):
            np.testing.assert_allclose(lean, 0.02 * level, atol=1e-6)


def test_envs_have_levels_of_their_own(lives):
    level_et = lives[0]
    assert len(np.unique(np.round(level_et[:, -1], 4))) >= 4


def test_first_episodes_are_at_the_start_and_those_of_evaluations_at_any_level(env):
    levels = lambda full_task: jax.jit(
        lambda: initial_env_states(env, KEY, jnp.arange(64), full_task=full_task).inner.levels
    )()
    training, evaluation = levels(False), levels(True)
    np.testing.assert_allclose(training["lean"], np.full(64, 1 / 3), rtol=1e-6)
    np.testing.assert_array_equal(training["balance"], np.zeros(64))
    np.testing.assert_array_equal(evaluation["balance"], np.ones(64))
    counts, _ = np.histogram(evaluation["lean"], bins=4, range=(0, 1))
    assert counts.min() >= 8  # 16 in each on average
    # The same of an env, however many there are.
    few = jax.jit(lambda: initial_env_states(env, KEY, jnp.arange(3), full_task=True).inner.levels["lean"])()
    np.testing.assert_array_equal(few, evaluation["lean"][:3])


def test_robot_that_blew_up_stays_at_its_level(env):
    def ended(qvel):
        state = env.first_episode(KEY)
        state = env.step(state, jnp.zeros(2))
        physics = dataclasses.replace(state.inner.physics, qvel=jnp.full(2, qvel))
        inner = dataclasses.replace(state.inner, physics=physics, next_levels={"lean": jnp.float32(0.5)})
        after = env.step(dataclasses.replace(state, inner=inner), jnp.zeros(2))
        return after.inner.next_levels["lean"], after.metrics["termination/not_finite"]

    np.testing.assert_allclose(jax.jit(ended)(1e9), (0.5, 1.0))
    np.testing.assert_allclose(jax.jit(ended)(0.0), (2 / 3, 0.0), rtol=1e-6)


class Returning(ksim.AbstractEnvCurriculum):
    """Changes its level by a number that is told."""

    change: object
    start: float = 0.25

    def __call__(self, context):
        return jnp.asarray(self.change)


def test_change_that_is_not_finite_leaves_the_level():
    env = make_environment(lean=Returning(jnp.nan))
    step = lambda key: env.step(env.first_episode(key), jnp.zeros(2)).inner.next_levels["lean"]
    np.testing.assert_allclose(jax.jit(step)(KEY), 0.25)


@pytest.mark.parametrize(
    ("curriculum", "message"),
    [
        (Returning((0.1, 0.2)), r"Curriculum 'lean' must return a scalar for one env, but returned shape \(2,\)"),
        (rewards.Alive(), "Term 'lean' must be a AbstractCurriculum or AbstractEnvCurriculum, not Alive"),
    ],
)
def test_curriculum_that_cannot_work_is_an_error_before_anything_compiles(curriculum, message):
    with pytest.raises(ksim.ConfigError, match=message):
        check_environment(make_environment(lean=curriculum))


def run(run_dir, max_iterations, **options):
    config = CartPoleConfig(
        run_dir=str(run_dir), max_iterations=max_iterations, save_every_n_iterations=2, resume="auto", **options
    )
    assert CartPoleTask(config).run().exit_code == 0


def levels_of(run_dir):
    """The arrays of a run's newest checkpoint that hold per-env levels or what they depend on."""
    arrays = read_checkpoint(newest(run_dir)).arrays
    inner = "envs.env_state.inner."
    return {name: arrays[f"{inner}{name}['lean']"] for name in ("levels", "next_levels", "levels_above_one")}


@pytest.mark.long
@only_in_full("three trainings of a robot; test_resume.py resumes the point mass")
def test_resumed_run_has_the_levels_of_the_whole_one_also_on_other_numbers_of_devices(tmp_path):
    run(tmp_path / "whole", 8, num_devices=1)
    run(tmp_path / "half", 4, num_devices=1)
    expected = levels_of(tmp_path / "whole")
    assert len(np.unique(expected["levels"])) > 1
    for num_devices in (1, 4):
        run_dir = tmp_path / str(num_devices)
        shutil.copytree(tmp_path / "half", run_dir)
        run(run_dir, 8, num_devices=num_devices)
        for name, levels in levels_of(run_dir).items():
            np.testing.assert_array_equal(levels, expected[name], err_msg=name)
        assert_same_metrics(run_dir, tmp_path / "whole", 1e-6 if num_devices == 1 else 1e-4)


def test_checkpoint_holds_the_levels_of_single_envs_only_where_there_are_some():
    class Shared(CartPoleTask):
        """All that a task had before there were per-env curricula."""

        def get_curricula(self, physics_model):
            curricula = super().get_curricula(physics_model)
            return {name: curricula[name] for name in ("reach", "balance")}

        def get_resets(self, physics_model):
            return []

    leaves = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(Shared(CartPoleConfig(num_devices=1)).environment.first_episode, KEY).inner
    )
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    assert [name for name in names if "level" in name] == [".levels['balance']", ".levels['reach']"]
    assert not [name for name in names if "curriculum" in name]
