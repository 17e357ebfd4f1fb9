import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from ksim import ConfigError
from ksim.mdp import observations, rewards, terminations
from ksim.mdp.term import Context
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.rollout.unroll import NON_FINITE
from tests.support.tasks import BipedConfig, BipedTask


def task_with(**hooks):
    """The biped with some hooks replaced."""
    methods = {name: lambda self, model, value=value: value for name, value in hooks.items()}
    return type("ChangedTask", (BipedTask,), methods)(BipedConfig(num_devices=1))


class Custom(ksim.AbstractReward):
    value: object = 0.0
    scale: float = 1.0

    def __call__(self, context: Context):
        return self.value() if callable(self.value) else self.value


class Undeclared(ksim.AbstractReward):
    scale: float = 1.0

    def __call__(self, context):
        return context.derived("xpos")[1, 2]


class Odd(terminations.AbstractTermination):
    def __call__(self, context):
        return jnp.float32(0)


ERRORS = {
    "get_rewards": [
        ({"mine": Custom(value=lambda: jnp.zeros(2))}, r"Reward 'mine' must return a scalar.*\(2,\)"),
        ([rewards.JointDeviation(joints=("left_hop",))], r"no joint 'left_hop'.*'left_hip'"),
        ([rewards.TrackYawRate(command="speed")],
         r"^Reward 'track_yaw_rate' \(TrackYawRate\): There is no command 'speed'\..*velocity"),
        ({"mine": Custom(value=lambda: None)}, r"^Reward 'mine' must return a scalar for one env, but returned None\."),
        ([Undeclared()], r"needs = \('xpos',\)"),
    ],
    "get_terminations": [([Odd()], r"Termination 'odd' must return a boolean")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("hook", "terms", "message"), [(hook, *row) for hook, rows in ERRORS.items() for row in rows], ids=str
)
def test_term_that_cannot_be_computed_is_an_error_that_names_it_before_anything_compiles(hook, terms, message):
    with pytest.raises(ConfigError, match=message):
        task_with(**{hook: terms}).check()


def test_reward_that_is_not_finite_is_an_error_that_names_it():
    task = task_with(get_rewards={"mine": Custom(value=lambda: jnp.log(-1.0))})
    with pytest.raises(ConfigError, match=r"'reward/mine' is not finite \(nan\).* 8 of 8"):
        task.initial_state()


class Turning(ksim.AbstractCommand):
    def __call__(self, context):
        return jnp.sin(context.episode_step * context.dt)[None] * jnp.ones(3)


@pytest.fixture(scope="module")
def states():
    """States of an environment with own terms, at a reset and after each of four steps."""
    env = task_with(
        get_commands={"velocity": Turning()},
        get_rewards={"a": Custom(value=2.0, scale=3.0), "b": Custom(value=1.0, scale=-1.0)},
        get_terminations=[terminations.TimeLimit(seconds=0.06)],
    ).environment
    step, states = jax.jit(env.step), [jax.jit(env.reset)(jax.random.key(0))]
    for _ in range(4):
        states.append(step(states[-1], jnp.zeros(2)))
    return states


def test_command_may_read_the_model_and_needs_no_memory(states):
    np.testing.assert_allclose(states[1].inner.commands["velocity"], np.sin(0.02), rtol=1e-5)


def test_reward_of_a_step_is_the_scaled_sum_times_the_control_step(states):
    # (3 * 2 - 1 * 1) * 0.02
    np.testing.assert_allclose(states[1].reward, 0.1, rtol=1e-6)
    np.testing.assert_allclose([states[1].metrics["reward/a"], states[1].metrics["reward/b"]], [6.0, -1.0])


def test_time_limit_truncates_and_does_not_terminate(states):
    # 0.06 s are 3 steps of 0.02 s.
    flags = [(bool(state.terminated), bool(state.truncated)) for state in states[1:]]
    assert flags == [(False, False), (False, False), (False, True), (False, True)]


def test_env_whose_state_is_not_finite_is_reset_and_counted_and_disturbs_no_other():
    task = task_with()
    healthy, sick = (task.initial_state() for _ in range(2))
    where = lambda s: s.envs.env_state.inner.physics.qpos
    sick = eqx.tree_at(where, sick, where(sick).at[3, 2].set(jnp.nan))
    step = jax.jit(task.make_train_step(None).algorithm.collect)
    (calm, _), (blown, envs) = (step(s, jax.random.key(0)) for s in (healthy, sick))
    calm, blown = calm.trajectory, blown.trajectory
    # Cut, and not the robot's fault: its value goes on.
    assert blown.done[3, 0]
    assert not blown.terminated[3, 0]
    for name in ("termination/not_finite", NON_FINITE):
        assert blown.metrics[name].sum() == blown.metrics[name][3, 0] == 1
    others = np.arange(8) != 3
    np.testing.assert_array_equal(np.asarray(calm.reward)[others], np.asarray(blown.reward)[others])
    for leaf in jax.tree.leaves((blown.reward, blown.obs["actor"][:, 1:], envs.env_state.obs)):
        assert np.isfinite(leaf).all()


def test_shapes_name_every_observation_and_command():
    terms = {"past": observations.History(observation=observations.JointVelocity(), steps=4)}
    task = task_with(get_observations=terms)
    assert isinstance(task.environment, MdpEnvironment)
    # Two joints, four steps of them; a velocity command has three components.
    assert task.environment.shapes() == {"command/velocity": (3,), "observation/actor/past": (4, 2)}
