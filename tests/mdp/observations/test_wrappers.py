"""Observations made of others: late, slow, tilted, or with their past."""

import jax
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import observations
from ksim.mdp.noise import UniformBias, UniformNoise, noise_key
from ksim.mdp.term import Context
from tests.support.contexts import TOUCH, draws, make_context, turned, values_over
from tests.support.robots import biped_spec

AIR_TIME = observations.FootAirTime(sensors=TOUCH)
HEIGHT = observations.BaseHeight()


def at_heights(*heights):
    """Contexts of a reset and of the steps after it, each with a key of its own."""
    return [make_context(height=height, key=jax.random.key(t)) for t, height in enumerate(heights)]


def test_history_when_the_episode_starts_repeats_the_first_value():
    history_t31 = values_over(observations.History(observation=HEIGHT, steps=3), *at_heights(0.5))
    np.testing.assert_allclose(history_t31[0], [[0.5], [0.5], [0.5]])


def test_history_when_values_follow_has_the_newest_first_and_drops_the_oldest():
    history_t31 = values_over(observations.History(observation=HEIGHT, steps=3), *at_heights(0.1, 0.2, 0.3, 0.4))
    np.testing.assert_allclose(history_t31[2], [[0.3], [0.2], [0.1]], rtol=1e-6)
    np.testing.assert_allclose(history_t31[3], [[0.4], [0.3], [0.2]], rtol=1e-6)


def test_history_when_the_observation_is_a_vector_has_a_row_per_step():
    contexts = [make_context(joint_vel=(1, 2)), make_context(joint_vel=(3, 4))]
    history_t22 = values_over(observations.History(observation=observations.JointVelocity(), steps=2), *contexts)
    np.testing.assert_array_equal(history_t22[1], [[3, 4], [1, 2]])


@pytest.mark.parametrize(
    ("delay", "expected"),
    # Until the delay has passed, the episode's first value.
    [(0, [0.1, 0.2, 0.3, 0.4]), (1, [0.1, 0.1, 0.2, 0.3]), (2, [0.1, 0.1, 0.1, 0.2])],
)
def test_delayed_when_the_delay_is_fixed_is_the_value_of_so_many_steps_ago(delay, expected):
    term = observations.Delayed(observation=HEIGHT, steps=(delay, delay))
    np.testing.assert_allclose(values_over(term, *at_heights(0.1, 0.2, 0.3, 0.4))[:, 0], expected, rtol=1e-6)


def test_delayed_when_an_episode_goes_on_keeps_its_delay():
    # The height is the step's number: by how much the observation is behind, it is late.
    term = observations.Delayed(observation=HEIGHT, steps=(1, 5))
    seen_t = values_over(term, *at_heights(*range(15)))[:, 0]
    assert len(set(np.arange(5, 15) - seen_t[5:])) == 1


def wrapped(observation):
    """The observation in each wrapper."""
    return observations.History(observation=observation, steps=1), observations.Delayed(observation=observation)


def test_wrappers_when_the_observation_has_a_memory_see_it_brought_up_to_date():
    # In the air for 0, 0.02, 0.04 and 0.06 s.
    in_the_air = [make_context()] * 4
    for term in (
        observations.History(observation=AIR_TIME, steps=2),
        observations.Delayed(observation=AIR_TIME, steps=(1, 1)),
    ):
        newest_or_late_t = values_over(term, *in_the_air).reshape(4, -1)[:, -1]
        np.testing.assert_allclose(newest_or_late_t, [0, 0, 0.02, 0.04], rtol=1e-5)


def test_history_when_it_wraps_a_delayed_observation_has_its_late_values():
    # A step late: 0.1, 0.1, 0.2, 0.3; of these the last two.
    term = observations.History(observation=observations.Delayed(observation=HEIGHT, steps=(1, 1)), steps=2)
    history_t2 = values_over(term, *at_heights(0.1, 0.2, 0.3, 0.4))[:, :, 0]
    np.testing.assert_allclose(history_t2, [[0.1, 0.1], [0.1, 0.1], [0.2, 0.1], [0.3, 0.2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("term", "delays"),
    [
        (observations.Delayed(observation=HEIGHT, steps=(1, 3)), {1, 2, 3}),
        # Both delays are 0 or 1: their sum is 1 where they differ.
        (observations.Delayed(observations.Delayed(observation=HEIGHT, steps=(0, 1)), steps=(0, 1)), {0, 1, 2}),
    ],
    ids=["one", "of a delayed observation, drawn apart"],
)
def test_delayed_when_drawn_for_many_episodes_has_every_delay_of_its_range(term, delays):
    # The height is the step's number, of which the fifth is the last.
    def late_by(key):
        memory = term.init(make_context(height=0, key=key))
        for t in range(1, 6):
            memory = term.update(make_context(height=t, key=key, memory=memory))
        return 5 - term(make_context(height=5, memory=memory))[0]

    assert set(np.asarray(draws(late_by)).tolist()) == delays


def test_history_when_the_observation_has_noise_keeps_each_noisy_sample():
    term = observations.History(observation=observations.BaseHeight(noise=UniformNoise(magnitude=0.1)), steps=2)
    history_t2 = values_over(term, *at_heights(0.5, 0.5, 0.5))[:, :, 0]
    assert (np.abs(history_t2 - 0.5) <= 0.1).all()
    # Drawn anew for each sample, and once only.
    assert len(np.unique(history_t2[:, 0])) == 3
    np.testing.assert_array_equal(history_t2[1:, 1], history_t2[:-1, 0])


def test_wrappers_when_the_noise_of_the_observation_remembers_keep_its_memory():
    biased = observations.BaseHeight(noise=UniformBias(magnitude=0.1))
    for term in (*wrapped(biased), observations.Lagged(observation=biased)):
        seen_t = values_over(term, *at_heights(0.5, 0.5, 0.5)).reshape(3, -1)[:, 0]
        assert 0 < abs(seen_t[0] - 0.5) <= 0.1
        np.testing.assert_allclose(seen_t, seen_t[0], rtol=1e-6)


def test_wrappers_when_the_observation_needs_a_field_need_it_too():
    for term in wrapped(observations.ActuatorForce()):
        assert [name for part in term.with_inner_terms() for name in part.needs] == ["actuator_force"]


class Clock(observations.AbstractObservation):
    """An observation that brings a sensor of its own."""

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        spec.add_sensor(name="clock", type=mujoco.mjtSensor.mjSENS_CLOCK)

    def __call__(self, context: Context) -> jax.Array:
        return context.sensor("clock")


def test_wrappers_when_the_observation_edits_the_model_edit_it_too():
    for term in wrapped(Clock()):
        spec = biped_spec()
        term.edit_spec(spec)
        assert spec.sensor("clock") is not None


def test_history_of_foot_contact_is_that_of_the_last_steps():
    # The left foot touches, lifts, touches; the right is down.
    contexts = [make_context(sensors={"left_touch": left, "right_touch": 9}) for left in (9, 0, 9)]
    term = observations.History(observation=observations.FootContact(sensors=TOUCH), steps=3)
    np.testing.assert_array_equal(values_over(term, *contexts)[2], [[1, 1], [0, 1], [1, 1]])


# Slow and tilted sensors.


def test_lagged_when_the_value_jumps_makes_good_a_share_of_what_is_left_at_each_step():
    # Of 0.02 s at a time constant of 0.02 s / ln 2, half: from 0 to 0.8 by 0.4, then 0.2.
    time_constant = 0.02 / np.log(2)
    term = observations.Lagged(observation=HEIGHT, time_constant_s=(time_constant, time_constant))
    np.testing.assert_allclose(values_over(term, *at_heights(0.0, 0.8, 0.8)), [0, 0.4, 0.6], rtol=1e-5)


def test_lagged_when_drawn_for_many_episodes_fills_its_range():
    term = observations.Lagged(observation=HEIGHT, time_constant_s=(0.02, 0.06))

    def after_a_step(key):
        memory = term.init(make_context(height=0.0, key=key))
        return term(make_context(memory=term.update(make_context(height=1.0, key=key, memory=memory))))

    # 1 - exp(-0.02 / 0.06) = 0.283 to 1 - exp(-0.02 / 0.02) = 0.632.
    share_n = np.asarray(draws(after_a_step))
    np.testing.assert_allclose([share_n.min(), share_n.max()], [0.283, 0.632], atol=0.03)


def angle_between(a_n3, b_3):
    return np.arccos(np.clip(a_n3 @ b_3, -1, 1))


def test_misaligned_when_drawn_for_many_episodes_turns_by_up_to_the_angle_in_every_direction():
    term = observations.Misaligned(observation=observations.ProjectedGravity(), max_angle=0.1)
    gravity_n3 = np.asarray(draws(lambda key: term(make_context(memory=term.init(make_context(key=key))))), np.float64)
    np.testing.assert_allclose(np.linalg.norm(gravity_n3, axis=1), 1, rtol=1e-5)
    angle_n = angle_between(gravity_n3 / np.linalg.norm(gravity_n3, axis=1, keepdims=True), np.array([0, 0, -1]))
    assert angle_n.max() < 0.1 + 1e-3
    assert angle_n.max() > 0.08
    # The mean direction is straight down: the error of each of 300 is below 0.1 / sqrt(300) = 0.006.
    np.testing.assert_allclose(gravity_n3[:, :2].mean(0), 0, atol=0.02)


def test_misaligned_when_an_episode_goes_on_turns_by_the_same_rotation():
    term = observations.Misaligned(observation=observations.BaseAngularVelocity(), max_angle=0.5)
    contexts = [make_context(ang_vel_body=x, key=jax.random.key(t)) for t, x in enumerate(np.eye(3))]
    rotation_33 = values_over(term, *contexts).astype(np.float64)
    # The images of the axes are at right angles, and right-handed.
    np.testing.assert_allclose(rotation_33 @ rotation_33.T, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(np.linalg.det(rotation_33), 1, rtol=1e-5)


def test_misaligned_when_the_angle_is_zero_changes_nothing_of_any_of_the_vectors():
    term = observations.Misaligned(observation=observations.SitePosition(sites=("left_foot", "imu")), max_angle=0.0)
    site_xpos_s3 = [[0, 0, 0.5], [0.1, 0.2, 0.3], [0, 0, 0]]
    seen_t23 = values_over(term, make_context(derived={"site_xpos": site_xpos_s3}, orientation=turned("z", 0)))
    np.testing.assert_allclose(seen_t23[0], [[0.1, 0.2, -0.2], [0, 0, 0]], atol=1e-6)


def test_misaligned_when_the_observation_is_no_vector_of_three_is_an_error():
    term = observations.Misaligned(observation=observations.JointPosition(), max_angle=0.1)
    with pytest.raises(ConfigError, match=r"vectors of three.*JointPosition has shape \(2,\)"):
        term.init(make_context())


def test_wrappers_around_each_other_draw_apart():
    # The n-th split of a key is what folding in n gives: the wrapped term's key and the noise's must be none of them.
    key = jax.random.key(3)
    wrapper = observations.Misaligned(observation=observations.ProjectedGravity(), max_angle=0.1)
    inner = wrapper._inner(make_context(key=key)).key
    drawn_by_misaligned = [jax.random.key_data(k).tolist() for k in jax.random.split(key, 4)]
    assert jax.random.key_data(inner).tolist() not in drawn_by_misaligned
    assert jax.random.key_data(noise_key(key)).tolist() not in drawn_by_misaligned
