"""Tracking in whole training steps: what a perfect robot earns, starts where it fails, any number of devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.checkpoint.format import read_checkpoint
from ksim.errors import ConfigError
from ksim.mdp import curriculum, terminations
from ksim.mdp.curriculum import CurriculumContext
from ksim.physics.names import place_base
from tests.support.checkpoints import newest
from tests.support.motion_tasks import FloaterConfig, FloaterTask, TiltedFloaterTask
from tests.support.recorded import run_job
from tests.support.scale import only_in_full
from tests.support.tasks import train_iterations


@pytest.fixture(scope="module")
def env():
    return FloaterTask(FloaterConfig(num_devices=1)).environment


@pytest.fixture(scope="module")
def starts(env):
    """The states at the starts of many episodes of the full task."""
    return jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 400))


def motions_of(env):
    return env.mdp.commands["motion"].motions


def in_frame(env, state, frame):
    """The physics of a state, in a frame of the motion."""
    motions = motions_of(env)
    at = {"qpos": jnp.asarray(motions.qpos[frame]), "qvel": jnp.asarray(motions.qvel[frame])}
    return dataclasses.replace(state.inner.physics, **at)


def test_episode_starts_in_a_frame_and_is_to_reach_the_next(env, starts):
    motions = motions_of(env)
    frame_e = np.asarray(starts.inner.commands["motion"][:, 0]).astype(int)
    np.testing.assert_allclose(starts.inner.physics.qpos, motions.qpos[frame_e - 1], atol=1e-6)
    np.testing.assert_allclose(starts.inner.physics.qvel, motions.qvel[frame_e - 1], atol=1e-6)


def test_episodes_start_anywhere_but_in_last_frames(env, starts):
    motions = motions_of(env)
    frame_e = np.asarray(starts.inner.commands["motion"][:, 0]).astype(int) - 1
    assert not np.isin(frame_e, motions.last).any()
    # 50 frames in 400 episodes: 8 expected for each.
    assert len(np.unique(frame_e)) > 45
    assert np.bincount(motions.clip[frame_e]).tolist() == pytest.approx([240, 160], abs=40)


def test_episodes_start_where_the_failure_rate_is_high(env):
    motions = motions_of(env)
    level_b = np.zeros(motions.num_bins, np.float32)
    level_b[-1] = 1.0
    key_e = jax.random.split(jax.random.key(1), 400)
    state_e = jax.jit(jax.vmap(lambda key: env._reset(key, {"starts": jnp.asarray(level_b)})[0]))(key_e)
    start_e = np.asarray(state_e.inner.commands["motion"][:, 0]).astype(int) - 1
    share_b = np.bincount(motions.bin[start_e], minlength=motions.num_bins) / 400
    # One bin fails: it and the two before it have weights 1, 0.8 and 0.64; a tenth of the starts is anywhere.
    expected_b = 0.1 * motions.bin_size / motions.bin_size.sum()
    expected_b[-3:] += 0.9 * np.array([0.64, 0.8, 1.0]) / 2.44
    np.testing.assert_allclose(share_b, expected_b, atol=0.08)


def test_robot_that_is_in_the_commanded_frame_earns_everything_and_has_no_error(env):
    state = jax.jit(env.reset)(jax.random.key(3))
    physics = in_frame(env, state, int(state.inner.commands["motion"][0]))
    physics = env.engine.forward(physics, jnp.zeros(1), {})
    context = dataclasses.replace(
        env._context(state.inner, jnp.zeros(1)), physics=physics, commands=state.inner.commands
    )
    for name, reward in env.mdp.rewards.items():
        np.testing.assert_allclose(reward(context), 1.0, atol=1e-4, err_msg=name)
    for name, error in env.mdp.commands["motion"].errors(context, state.inner.commands["motion"]).items():
        np.testing.assert_allclose(error, 0.0, atol=1e-3, err_msg=name)
    assert not any(bool(term(context)) for term in env.mdp.terminations.values() if not term.truncates)


def test_robot_that_has_drifted_and_turned_has_an_error_of_its_anchor_alone(env):
    state, names = jax.jit(env.reset)(jax.random.key(3)), env.engine.model.names
    physics = in_frame(env, state, int(state.inner.commands["motion"][0]))
    physics = place_base(physics, names, jnp.array([0.1, -0.05, 0.0]), jnp.float32(0.3))
    physics = env.engine.forward(physics, jnp.zeros(1), {})
    context = dataclasses.replace(env._context(state.inner, jnp.zeros(1)), physics=physics)
    for name in ("positions", "orientations", "velocities", "angular_velocities"):
        np.testing.assert_allclose(env.mdp.rewards[f"track_body_{name}"](context), 1.0, atol=1e-4, err_msg=name)
    # exp(-(0.1^2 + 0.05^2) / (2 * 0.2^2)), and exp(-0.3^2 / (2 * 0.3^2))
    np.testing.assert_allclose(env.mdp.rewards["track_anchor_position"](context), np.exp(-0.0125 / 0.08), rtol=1e-4)
    np.testing.assert_allclose(env.mdp.rewards["track_anchor_orientation"](context), np.exp(-0.5), rtol=1e-3)
    errors = env.mdp.commands["motion"].errors(context, state.inner.commands["motion"])
    np.testing.assert_allclose(errors["root_position_m"], np.sqrt(0.0125), rtol=1e-4)
    np.testing.assert_allclose(errors["root_orientation_rad"], 0.3, rtol=1e-3)
    np.testing.assert_allclose(errors["joint_position_rad"], 0.0, atol=1e-6)


def test_episode_is_truncated_in_the_last_frame_of_its_clip(env):
    step = jax.jit(env.step)
    state, steps = jax.jit(env.reset)(jax.random.key(3)), 0
    motions = motions_of(env)
    frame = int(state.inner.commands["motion"][0])
    left = motions.last[motions.clip[frame]] - frame + 1
    while not (state.truncated or state.terminated):
        # Held in the motion, so that it cannot fail.
        physics = in_frame(env, state, int(state.inner.commands["motion"][0]) - 1)
        state = step(dataclasses.replace(state, inner=dataclasses.replace(state.inner, physics=physics)), jnp.zeros(1))
        steps += 1
    assert bool(state.truncated)
    assert steps == left


@pytest.fixture(scope="module")
def on_one():
    return train_iterations(TiltedFloaterTask(FloaterConfig(num_devices=1)), 4)


@pytest.mark.long
@only_in_full("as other algorithms, which CI tries in two processes")
def test_training_is_the_same_in_two_processes_of_two_devices(on_one, tmp_path):
    job, reference = run_job(tmp_path, "floater", 4), on_one[0].learner
    np.testing.assert_allclose(job.learner.levels["starts"], reference.levels["starts"], rtol=1e-6)
    for x, y in zip(jax.tree.leaves(job.learner.params), jax.tree.leaves(reference.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    for metrics, expected in zip(job.history, on_one[1], strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.long
@only_in_full("as all terms together, which CI tries")
def test_both_engines_track_alike(env):
    other = FloaterTask(FloaterConfig(num_devices=1, engine="mjx")).environment
    states = [jax.jit(each.reset)(jax.random.key(3)) for each in (env, other)]
    steps = [jax.jit(each.step) for each in (env, other)]
    for _ in range(5):
        states = [step(state, jnp.full(1, 0.3)) for step, state in zip(steps, states, strict=True)]
        np.testing.assert_allclose(states[0].obs["actor"], states[1].obs["actor"], atol=1e-4)
        np.testing.assert_allclose(states[0].reward, states[1].reward, atol=1e-4)


@pytest.mark.long
def test_failure_rates_are_higher_where_the_motion_cannot_be_tracked(on_one):
    level_b = np.ravel(on_one[0].learner.levels["starts"])
    # The arm of the second clip, whose bins are the last four, is too fast for an untrained policy.
    assert level_b[6:].mean() > level_b[:6].mean() + 0.1
    assert len(np.unique(level_b)) > 3
    assert "curriculum/starts/max" in on_one[1][0]
    assert not any(name.startswith("curriculum_bin") for name in on_one[1][0])


@pytest.mark.long
@only_in_full("as per-env levels, which CI tries")
def test_failure_rates_go_on_from_a_checkpoint_on_another_number_of_devices(on_one, tmp_path):
    options = {"run_dir": str(tmp_path / "run"), "save_every_n_iterations": 1}
    assert TiltedFloaterTask(FloaterConfig(num_devices=2, max_iterations=2, **options)).run().exit_code == 0
    assert (
        TiltedFloaterTask(FloaterConfig(num_devices=1, max_iterations=4, resume="auto", **options)).run().exit_code == 0
    )
    arrays = read_checkpoint(newest(tmp_path / "run")).arrays
    (level_b,) = (x for name, x in arrays.items() if "levels['starts']" in name and "learner" in name)
    np.testing.assert_allclose(np.ravel(level_b), np.ravel(on_one[0].learner.levels["starts"]), rtol=1e-5)


def test_failure_rate_is_failures_per_pass_and_stays_where_nobody_was(env):
    motions = motions_of(env)
    term = curriculum.AdaptiveStarts(motions=motions, command="motion", rate=0.25)
    steps_b, failures_b = np.zeros((2, motions.num_bins), np.float32)
    # Ten passes of the first bin with three failures, and more failures than passes of the second.
    steps_b[:2] = 10 * motions.bin_size[0], motions.bin_size[1]
    failures_b[:2] = 3, 5
    context = CurriculumContext(
        jnp.int32(1), {}, 0.02, num_steps=jnp.asarray(steps_b), num_failures=jnp.asarray(failures_b)
    )
    level_b = term(jnp.full(motions.num_bins, 0.5), context)
    np.testing.assert_allclose(level_b[:3], [0.5 + 0.25 * (0.3 - 0.5), 0.5 + 0.25 * (1 - 0.5), 0.5], rtol=1e-6)


def test_steps_of_one_pass_are_as_many_in_each_bin_as_it_has_frames_to_start_from(env):
    # The frames that a pass reaches: all but the first of each clip.
    motions, term = motions_of(env), env.mdp.curricula["starts"]
    reached = np.setdiff1d(np.arange(len(motions.bin)), motions.first)
    context = env._context(jax.jit(env.reset)(jax.random.key(0)).inner, jnp.zeros(1))
    at = lambda frame: dataclasses.replace(context, commands={"motion": frame[None].astype(jnp.float32)})
    bin_n = jax.vmap(lambda frame: term.bin_of(at(frame)))(jnp.asarray(reached))
    np.testing.assert_array_equal(np.bincount(bin_n), motions.bin_size)


class Differing(FloaterTask):
    def get_curricula(self, physics_model):
        other = FloaterTask(FloaterConfig(num_devices=1)).motions
        return {"starts": curriculum.AdaptiveStarts(motions=other, command="motion")}


class Wrong(FloaterTask):
    def get_terminations(self, physics_model):
        return [terminations.MotionEnded(command="motoin")]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Differing, "other motions than its command 'motion'"),
        (Wrong, r"no command 'motoin'\. Did you mean 'motion'"),
    ],
)
def test_term_that_does_not_fit_its_command_is_an_error(task, message):
    with pytest.raises(ConfigError, match=message):
        task(FloaterConfig(num_devices=1)).check()
