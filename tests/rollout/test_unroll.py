import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim import ConfigError, Environment, EnvState
from ksim.nn import AbstractActorCritic, ActorCriticOutput, Gaussian
from ksim.rollout.environment import check_environment
from ksim.rollout.starts import initial_env_states
from ksim.rollout.unroll import unroll


class Countdown(Environment):
    """Counts steps; ends after `end_after`, by falling or by a time limit."""

    end_after: int
    truncates: bool
    start: float = 0.0

    @property
    def action_size(self):
        return 1

    def reset(self, key):
        return self._state(jnp.float32(self.start))

    def step(self, state, action):
        return self._state(state.inner + 1)

    def _state(self, count):
        ends = count >= self.end_after
        return EnvState(
            inner=count,
            obs={"actor": count[None]},
            reward=count,
            terminated=ends & (not self.truncates),
            truncated=ends & self.truncates,
            metrics={},
        )


class ValueIsTheObservation(AbstractActorCritic):
    """Its value is ten times the observation, and it remembers how many steps it took."""

    def initial_carry(self):
        return jnp.zeros(())

    def __call__(self, obs, carry):
        x = obs["actor"]
        return ActorCriticOutput(Gaussian(mean=carry[None], std=jnp.ones(1)), 10 * x[0]), carry + 1


def run(env, num_steps, **options):
    state_e = initial_env_states(env, jax.random.key(0), jnp.arange(2))
    key_e = jax.random.split(jax.random.key(1), 2)
    options |= {"num_steps": num_steps, "deterministic": True}
    return unroll(env, ValueIsTheObservation(), state_e, jnp.zeros(2), key_e, **options)


@pytest.mark.parametrize("truncates", [True, False])
def test_next_value_is_that_of_the_state_reached_before_the_reset(truncates):
    trajectory, _, _ = run(Countdown(end_after=3, truncates=truncates), num_steps=5)
    # Observed 0 1 2 0 1; reached 1 2 3 1 2. A fall has no value to bootstrap, and none is computed.
    np.testing.assert_array_equal(trajectory.value[0], [0, 10, 20, 0, 10])
    expected = [10, 20, 30 if truncates else 0, 10, 20]
    np.testing.assert_array_equal(trajectory.next_value[0], expected)
    np.testing.assert_array_equal(trajectory.done[0], [False, False, True, False, False])
    np.testing.assert_array_equal(trajectory.terminated[0], trajectory.done[0] & (not truncates))


@pytest.mark.parametrize("truncates", [True, False])
def test_observations_reached_are_those_before_the_reset(truncates):
    trajectory, _, _ = run(Countdown(end_after=3, truncates=truncates), num_steps=5, reached_groups=("actor",))
    np.testing.assert_array_equal(trajectory.obs["actor"][0, :, 0], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(trajectory.reached["actor"][0, :, 0], [1, 2, 3, 1, 2])


def test_last_step_bootstraps_with_its_true_successor():
    trajectory, state_e, _ = run(Countdown(end_after=9, truncates=True), num_steps=4)
    np.testing.assert_array_equal(trajectory.next_value[:, -1], [40, 40])
    np.testing.assert_array_equal(state_e.inner, [4, 4])


def test_rewards_are_those_of_the_states_reached():
    trajectory, _, _ = run(Countdown(end_after=3, truncates=True), num_steps=4)
    np.testing.assert_array_equal(trajectory.reward[0], [1, 2, 3, 1])


def test_memory_starts_afresh_with_the_episode():
    trajectory, _, carry_e = run(Countdown(end_after=3, truncates=False), num_steps=5)
    # The action is the memory: 0 1 2, then from the start again.
    np.testing.assert_array_equal(trajectory.action[0, :, 0], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(carry_e, [2, 2])


def test_rollouts_chain_into_one():
    env = Countdown(end_after=3, truncates=True)
    first, state_e, carry_e = run(env, num_steps=2)
    key_e = jax.random.split(jax.random.key(5), 2)
    second, _, _ = unroll(env, ValueIsTheObservation(), state_e, carry_e, key_e, num_steps=3, deterministic=True)
    whole, _, _ = run(env, num_steps=5)
    np.testing.assert_array_equal(jnp.concatenate([first.reward, second.reward], axis=1), whole.reward)


class Growing(Countdown):
    def step(self, state, action):
        return dataclasses.replace(super().step(state, action), obs={"actor": jnp.zeros(2)})


class Floating(Countdown):
    def _state(self, count):
        state = super()._state(count)
        return EnvState(count, state.obs, count, state.terminated.astype(float), state.truncated, {})


class Mute(Countdown):
    def _state(self, count):
        return dataclasses.replace(super()._state(count), obs={"policy": count[None]})


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (Growing, ConfigError, r"obs\['actor'\] is float32\[1\] after a reset and float32\[2\]"),
        # Told by the check, or before that by the tests' own check of types.
        (Floating, (ConfigError, TypeError), "terminated"),
        (Mute, ConfigError, r"\(policy\) must contain the group 'actor'"),
    ],
)
def test_environment_that_returns_something_else_is_an_error(environment, error, message):
    with pytest.raises(error, match=message):
        check_environment(environment(end_after=3, truncates=True))
