import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.mdp.events import MassDrop, PushForce, PushVelocity
from tests.support.contexts import draws, make_context

DUE, NOT_DUE = (jnp.float32(1.0), jnp.bool_(True)), (jnp.float32(1.0), jnp.bool_(False))


def pushed_steps(term, num_steps):
    """Numbers of the steps, from 1, before whose physics the base is pushed."""
    memory = term.init(make_context(key=jax.random.key(0)))
    steps = []
    for t in range(1, num_steps + 1):
        context = make_context(key=jax.random.key(t), memory=memory)
        memory = term.update(context)
        physics = term(dataclasses.replace(context, memory=memory))
        if np.abs(physics.qvel).max() > 0:
            steps.append(t)
    return steps


# 0.055 s are nearest to three steps of 0.02 s, 0.2 s are 10 steps; then they begin anew.
@pytest.mark.parametrize(("interval", "num", "expected"), [(0.055, 10, [3, 6, 9]), (0.2, 35, [10, 20, 30])])
def test_push_when_the_interval_is_fixed_happens_at_each(interval, num, expected):
    assert pushed_steps(PushVelocity(interval_s=(interval, interval), speed=(0.5, 0.5)), num) == expected


def test_push_when_the_interval_is_a_range_happens_at_times_within_it():
    # 0.05 to 0.13 s, rounded to whole steps of 0.02 s: 3 to 6.
    steps = pushed_steps(PushVelocity(interval_s=(0.05, 0.13), speed=(0.5, 0.5)), 120)
    assert set(np.diff([0, *steps])) == {3, 4, 5, 6}


def test_push_when_not_due_leaves_the_state_as_it_was():
    context = make_context(lin_vel_world=(1, 2, 3), ang_vel_body=(4, 5, 6), joint_vel=(7, 8), memory=NOT_DUE)
    physics = PushVelocity()(context)
    chex.assert_trees_all_equal(physics, context.physics)


def pushes(term):
    """Changes of qvel by many pushes of a base that moves."""
    context = make_context(lin_vel_world=(1, 2, 3), memory=DUE)
    push = lambda key: term(dataclasses.replace(context, key=key)).qvel - context.physics.qvel
    return np.asarray(draws(push))


def test_push_when_due_adds_a_speed_that_fills_its_range():
    speed_n = np.linalg.norm(pushes(PushVelocity(speed=(0.3, 0.5)))[:, :2], axis=1)
    np.testing.assert_allclose([speed_n.min(), speed_n.max()], [0.3, 0.5], atol=0.01)
    assert (speed_n > 0.3 - 1e-5).all()
    assert (speed_n < 0.5 + 1e-5).all()


def test_push_when_due_is_horizontal_and_changes_nothing_else():
    np.testing.assert_array_equal(pushes(PushVelocity(speed=(0.3, 0.5)))[:, 2:], 0.0)


def test_push_when_due_goes_in_all_directions_alike():
    change_nv = pushes(PushVelocity(speed=(0.5, 0.5)))
    angle_n = np.arctan2(change_nv[:, 1], change_nv[:, 0])
    counts_4, _ = np.histogram(angle_n, bins=4, range=(-np.pi, np.pi))
    # 75 in each quadrant, with a standard deviation of sqrt(300 * 0.25 * 0.75) = 7.5.
    assert (np.abs(counts_4 - 75) < 38).all()


def test_push_is_scaled_by_the_level_of_its_curriculum():
    term = PushVelocity(speed=(0.4, 0.4), level="pushes")
    speed = lambda level: np.linalg.norm(term(make_context(memory=DUE, levels={"pushes": jnp.float32(level)})).qvel)
    np.testing.assert_allclose([speed(0.0), speed(0.25), speed(1.0)], [0.0, 0.1, 0.4], rtol=1e-5)


def forces_over(term, num_steps):
    """The force on the trunk in each step, from the first."""
    memory = term.init(make_context(key=jax.random.key(0)))
    forces = []
    for t in range(1, num_steps + 1):
        context = make_context(key=jax.random.key(t), memory=memory, applied={"xfrc_applied": np.zeros((4, 6))})
        memory = term.update(context)
        physics = term(dataclasses.replace(context, memory=memory))
        forces.append(physics.applied["xfrc_applied"])
    return np.stack(forces)


def test_push_force_acts_on_its_body_alone_for_its_duration():
    # Every 0.1 s, 5 steps of 0.02 s, for 0.04 s, 2 of them.
    force_tb6 = forces_over(PushForce(body="trunk", interval_s=(0.1, 0.1), duration_s=0.04, force=(30.0, 30.0)), 12)
    size_t = np.linalg.norm(force_tb6[:, 1], axis=1)
    np.testing.assert_allclose(size_t, [0, 0, 0, 0, 30, 30, 0, 0, 0, 30, 30, 0], rtol=1e-5)
    np.testing.assert_array_equal(force_tb6[:, 1, 2:], 0.0)  # horizontal, and no torque
    np.testing.assert_array_equal(np.delete(force_tb6, 1, axis=1), 0.0)
    np.testing.assert_array_equal(force_tb6[4], force_tb6[5])  # one push, one direction


def test_push_force_that_is_shorter_than_half_a_control_step_acts_for_one():
    term = PushForce(body="trunk", interval_s=(0.1, 0.1), duration_s=0.005, force=(30.0, 30.0))
    size_t = np.linalg.norm(forces_over(term, 11)[:, 1], axis=1)
    np.testing.assert_allclose(size_t, [0, 0, 0, 0, 30, 0, 0, 0, 0, 30, 0], rtol=1e-5)


def test_mass_drop_starts_with_its_load_and_loses_it_once():
    # A load of 2 kg drops after 0.06 s, 3 steps of 0.02 s. The trunk has 5 kg, and the robot 7.4 kg in all.
    term = MassDrop(body="trunk", mass=(2.0, 2.0), after_s=(0.06, 0.06))
    context = make_context(key=jax.random.key(0))
    memory = term.init(context)
    overrides = term.overrides(dataclasses.replace(context, memory=memory))
    mass_t, total_t = [overrides["body_mass"][1]], [overrides["body_subtreemass"][0]]
    for t in range(1, 6):
        context = make_context(key=jax.random.key(t), memory=memory, overrides=overrides)
        memory = term.update(context)
        context = dataclasses.replace(context, memory=memory)
        overrides = overrides | term.overrides(context)
        mass_t.append(overrides["body_mass"][1])
        total_t.append(overrides["body_subtreemass"][0])
        chex.assert_trees_all_equal(term(context), context.physics)
    np.testing.assert_allclose(mass_t, [7, 7, 7, 5, 5, 5], rtol=1e-6)
    np.testing.assert_allclose(total_t, [9.4, 9.4, 9.4, 7.4, 7.4, 7.4], rtol=1e-6)
