"""Environments of Brax's interface as ksim's: hand-worked, without the packages."""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.envs.task import ExternalEnv, WrappedConfig, WrappedTask, check_name, main, parsed_options
from ksim.envs.wrapped import Randomizer, WrappedEnvironment, observation_names, shown_state
from ksim.errors import ConfigError
from ksim.preflight.start import inspect_start
from ksim.rollout.environment import check_environment
from ksim.train.start import Start, started_progress
from tests.support.processes import exit_code, finish, start
from tests.support.tasks import WITHOUT_REPORTS

KEY = jax.random.key(3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    data: jax.Array
    obs: object
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    mass: jax.Array
    size: jax.Array
    mesh_convex: tuple = (None,)  # as MJX has it for a mesh that nothing collides with


class Walk:
    """Adds `mass` times the action to a number, and ends at 3. It is as careless with types as such environments are.

    `info` holds the key, as theirs does, and counts steps in place.
    """

    action_size = 1
    observation = staticmethod(lambda data: jnp.stack([data, -data]))

    def __init__(self):
        self._mjx_model = Model(jnp.float32(1.0), jnp.arange(2.0))

    @property
    def mjx_model(self):
        return self._mjx_model

    @property
    def unwrapped(self):
        return self

    def reset(self, rng):
        data = jax.random.uniform(rng)
        return State(data, self.observation(data), 0.0, jnp.zeros(()), {"reward/x": 0.0, "speed": 0.0}, self.info(rng))

    def info(self, rng):
        return {"rng": rng, "steps": 0}

    def step(self, state, action):
        data = state.data + self.mjx_model.mass * action[0]
        state.info.update(steps=state.info["steps"] + 1)
        metrics = {"reward/x": data, "speed": action[0]}
        return dataclasses.replace(
            state, data=data, obs=self.observation(data), reward=data, done=data >= 3, metrics=metrics
        )


class CutWalk(Walk):
    """Says itself that its episodes are cut off."""

    def info(self, rng):
        return super().info(rng) | {"truncation": jnp.zeros(())}

    def step(self, state, action):
        state = super().step(state, action)
        state.info["truncation"] = state.done.astype(float)
        return state


def wrapped(env=None, **options):
    return WrappedEnvironment(
        **{"env": env or Walk(), "actor_obs": None, "critic_obs": None, "episode_length": 10} | options
    )


def play(env, actions, key=KEY):
    states = [jax.jit(env.reset)(key)]
    for action in actions:
        states.append(jax.jit(env.step)(states[-1], jnp.float32([action])))
    return states


def test_reset_and_step_are_those_of_the_environment_with_the_key_as_it_knows_keys():
    start, after = play(wrapped(), [0.5])
    expected = jax.random.uniform(jax.random.key_data(KEY))
    np.testing.assert_allclose(start.obs["actor"], [expected, -expected])
    np.testing.assert_allclose([start.reward, after.reward], [0, expected + 0.5])
    assert {name: float(x) for name, x in after.metrics.items()} == {
        "reward/x": pytest.approx(expected + 0.5),
        "env/speed": 0.5,
    }
    assert after.inner.state.info["steps"] == 1
    assert check_environment(wrapped()) == {"actor": 2}


def test_actions_beyond_their_bounds_are_clipped():
    _, after = play(wrapped(), [-7.0])
    assert after.metrics["env/speed"] == -1


def test_end_is_a_termination_and_the_time_limit_a_truncation():
    fallen = play(wrapped(), [1.0] * 3)[-1]
    assert (fallen.terminated, fallen.truncated) == (True, False)
    states = play(wrapped(episode_length=2), [0.0, 0.0])
    assert [bool(state.truncated) for state in states] == [False, False, True]
    assert not states[-1].terminated


def test_first_episodes_in_training_are_cut_after_parts_of_their_length_and_the_next_are_whole():
    env, key_e = wrapped(episode_length=5), jax.random.split(KEY, 100)
    first_e, reset_e = (jax.vmap(start)(key_e) for start in (env.first_episode, env.reset))
    assert set(np.unique(first_e.inner.num_steps)) == {0, 1, 2, 3, 4}
    assert not first_e.truncated.any()
    np.testing.assert_array_equal(first_e.obs["actor"], reset_e.obs["actor"])
    next_e = jax.vmap(env.next_episode)(first_e, key_e)
    assert not next_e.inner.num_steps.any()
    assert not reset_e.inner.num_steps.any()


def test_end_that_the_environment_calls_a_truncation_is_one():
    cut = play(wrapped(CutWalk()), [1.0] * 3)[-1]
    assert (cut.terminated, cut.truncated) == (False, True)


def test_repeated_action_adds_up_the_rewards_of_its_steps_until_the_end():
    one_by_one = play(wrapped(), [1.0] * 3)
    twice = play(wrapped(action_repeat=2), [1.0, 1.0])
    np.testing.assert_allclose(twice[1].reward, one_by_one[1].reward + one_by_one[2].reward)
    # The third step ends the episode, and there is no fourth.
    np.testing.assert_allclose(twice[2].reward, one_by_one[3].reward)
    assert twice[2].terminated
    assert twice[2].inner.state.info["steps"] == 3
    # Of steps of 0.1 s, two to an action.
    spec = mujoco.MjSpec.from_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
    shown = shown_state(spec.compile(), 0.1, 2, lambda state: (jnp.zeros(0), jnp.zeros(0), {}))
    assert shown.model.ctrl_dt == 0.2
    np.testing.assert_allclose([shown.physics_of(state).time for state in twice], [0.0, 0.2, 0.4], rtol=1e-6)
    limited = play(wrapped(action_repeat=2, episode_length=4), [0.0, 0.0])
    assert [bool(state.truncated) for state in limited] == [False, False, True]


class ManyObservations(Walk):
    observation = staticmethod(
        lambda data: {"state": data[None], "privileged_state": jnp.stack([data, data]), "pixels": jnp.zeros((4, 4, 3))}
    )


def test_named_observations_become_those_of_actor_and_critic():
    env = ManyObservations()
    assert observation_names(env, None, None) == ("state", "privileged_state")
    assert observation_names(env, "privileged_state", "privileged_state") == ("privileged_state", None)
    state = play(wrapped(env, actor_obs="state", critic_obs="privileged_state"), [])[0]
    assert {group: x.shape for group, x in state.obs.items()} == {"actor": (1,), "critic": (2,)}
    assert observation_names(Walk(), None, None) == (None, None)


def test_published_observations_are_those_of_an_environment_that_has_them():
    assert observation_names(ManyObservations(), None, None, ("privileged_state", "state")) == (
        "privileged_state",
        "state",
    )
    assert observation_names(ManyObservations(), "state", None, ("privileged_state", None)) == (
        "state",
        "privileged_state",
    )
    assert observation_names(ManyObservations(), None, None, ("proprioception", None)) == ("state", "privileged_state")
    assert observation_names(Walk(), None, None, ("state", "state")) == (None, None)


@pytest.mark.parametrize(
    ("env", "actor", "message"),
    [
        (ManyObservations(), "pixels", r"'pixels' has shape \(4, 4, 3\), and ksim learns from vectors only"),
        (ManyObservations(), "velocity",
         r"actor_obs \(velocity\): .* observes 'pixels', 'privileged_state', 'state'\. Name"),
        (Walk(), "state", r"actor_obs \(state\): Walk has a single observation, without names\. Leave it out"),
    ],
)  # fmt: skip
def test_observation_that_is_not_there_or_is_an_image_is_refused(env, actor, message):
    with pytest.raises(ConfigError, match=message):
        observation_names(env, actor, None)


def randomize(model, keys):
    """As the functions of such environments do: the mass has a row for each env, the size is shared."""
    mass = jax.vmap(lambda key: jax.random.uniform(key, minval=2.0, maxval=9.0))(keys)
    return Model(mass, model.size), Model(0, None)


def test_model_is_drawn_for_each_episode_and_kept_until_its_end():
    env = Walk()
    own = env._mjx_model
    task_env = wrapped(env, randomizer=Randomizer(env, randomize), episode_length=100)
    masses = []
    for seed in range(3):
        start, *after = play(task_env, [0.1, 0.1], jax.random.key(seed))
        moved = np.diff([state.inner.state.data for state in (start, *after)])
        np.testing.assert_allclose(moved, moved[0], rtol=1e-4)
        masses.append(float(moved[0] / 0.1))
    assert 2 < min(masses) < max(masses) < 9
    assert len(set(masses)) == 3
    assert env._mjx_model is own


class Forgetful(Walk):
    def step(self, state, action):
        return dataclasses.replace(super().step(state, action), metrics={})


def test_step_that_returns_another_structure_is_refused():
    with pytest.raises(ConfigError, match=r"Forgetful\.step must return a state of the structure that its reset"):
        check_environment(wrapped(Forgetful()))


class WalkTask(WrappedTask[WrappedConfig]):
    @classmethod
    def published_config(cls, name):
        check_name(name, ["walk", "run"], "python -m walks")
        small = {"num_envs": 4, "rollout_length": 3, "num_devices": 1, "actor_sizes": [4], "critic_sizes": [4]}
        return WrappedConfig(env=name, tensorboard=False, max_iterations=2, **small, **WITHOUT_REPORTS)

    def make(self, config):
        check_name(config.env, ["walk", "run"], "python -m walks")
        return ExternalEnv(Walk(), dt=0.01, ctrl_dt=0.02)


@pytest.mark.long
def test_task_trains_an_environment_by_its_name_with_the_options_published_for_it(tmp_path, capsys):
    task = WalkTask("walk")
    assert (task.config.num_envs, task.config.dt, task.config.ctrl_dt) == (4, 0.01, 0.02)
    run_dir = tmp_path / "run"
    for more in ([], ["max_iterations=3", "resume=auto"]):
        assert exit_code(main, WalkTask, ["walk", f"run_dir={run_dir}", *more]) == 0
    out = capsys.readouterr().out
    assert "iteration 3/3" in out
    assert out.count("Options for walk, as far as") == 1  # not for what is resumed
    assert "num_envs=4 rollout_length=3 max_iterations=2" in out
    assert "actor_sizes=[4]" in out
    assert "kept" not in out
    assert exit_code(main, WalkTask, ["env=walk", "run_mode=eval", f"checkpoint={run_dir}", "eval_num_envs=2"]) == 0
    assert exit_code(main, WalkTask, ["run", f"resume={run_dir}"]) == 2
    assert "env (run) cannot change when a run is resumed: its checkpoint was made with walk" in capsys.readouterr().err


def test_steps_when_actions_are_repeated_count_every_repetition(capsys):
    config = dataclasses.replace(
        WalkTask.published_config("walk"), num_envs=8, action_repeat=5, max_env_steps=250, max_iterations=None
    )
    task = WalkTask("walk", config)
    progress = started_progress(task.config, Start())
    # 8 environments, 3 actions of 5 steps each: 120 in an iteration, of which three reach 250.
    assert (progress.steps_per_iteration, progress.iterations_left) == (120, 3)
    assert progress.advance(2.0)["time/env_steps_per_s"] == 60
    assert progress.env_steps == 120
    task.verify_distributed_setup()
    assert "24 (120 of the environment)" in capsys.readouterr().out
    assert inspect_start(task).figures["steps per iteration"] == "24 (120 of the environment)"


def test_each_environment_has_a_name_and_runs_of_its_own():
    tasks = WalkTask("walk"), WalkTask("run")
    assert [task.task_name for task in tasks] == ["walk", "run"]
    assert [task.title for task in tasks] == ["WalkTask('walk')", "WalkTask('run')"]


class Broken(Walk):
    def step(self, state, action):
        return state.nothing


class BrokenTask(WalkTask):
    def make(self, config):
        return ExternalEnv(Broken(), dt=0.01, ctrl_dt=0.02)


def test_environment_that_fails_by_itself_is_named_with_the_place():
    with pytest.raises(ConfigError, match=r"walk cannot be used: AttributeError: .* \(.*test_wrapped.py, line"):
        BrokenTask("walk").check()


MAKE_ON_DEVICES = """
import jax
from ksim.envs.task import ExternalEnv, WrappedConfig, WrappedTask
from ksim.host.machine import num_cores

class StartingTask(WrappedTask):
    def make(self, config):
        return ExternalEnv(jax.numpy.ones(1), dt=0.01, ctrl_dt=0.02)  # an array, as environments have, which starts JAX

print(StartingTask(WrappedConfig(env="x", num_envs=192, num_devices=NUM_DEVICES)).layout.num_devices, num_cores())
"""


@pytest.mark.long
@pytest.mark.parametrize("asked", [3, None])
def test_cpu_is_divided_into_devices_before_the_environment_starts_jax(asked, tmp_path):
    program = MAKE_ON_DEVICES.replace("NUM_DEVICES", str(asked))
    code, out = finish(start("-c", program, cwd=tmp_path, XLA_FLAGS=None))
    assert code == 0, out
    num_devices, num_cores = map(int, out.splitlines()[-1].split())
    # Its own physics is computed in JAX: a device for each core, with 64 environments or more.
    assert num_devices == (asked or min(num_cores, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wlak"], "Did you mean 'walk'"),
        ([], "No environment is named"),
        (["walk", "engine=mujoco"], "engine (mujoco): walk does not step MJX"),
        (["walk", "ctrl_dt=0.5"], "ctrl_dt (0.5) is 0.02 in walk. Leave it out"),
        (["walk", "randomize=true"], "walk has no randomization of its own"),
        (["walk", "actor_obs=state"], "has a single observation"),
        (["walk", "episode_length=0"], "episode_length (0) must be"),
    ],
)
def test_input_that_cannot_work_ends_with_2_and_leaves_nothing(arguments, message, tmp_path, capsys):
    assert exit_code(main, WalkTask, [*arguments, f"run_dir={tmp_path / 'run'}"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_of_environments_are_checked():
    check_name("CheetahRun", ["CheetahRun"], "python -m x")
    with pytest.raises(
        ConfigError, match=r"'CheetaRun'.* Did you mean 'CheetahRun'\? Name one, as in python -m x CheetahRun"
    ):
        check_name("CheetaRun", ["CheetahRun", "Walker"], "python -m x")
    with pytest.raises(ConfigError, match="No environment is named"):
        check_name("", ["CheetahRun"], "python -m x")


def test_options_of_an_environment_are_read_as_yaml():
    assert parsed_options(["backend=spring", "healthy=false", "range=[1, 2]"]) == {
        "backend": "spring",
        "healthy": False,
        "range": [1, 2],
    }
    with pytest.raises(ConfigError, match="must be name=value"):
        parsed_options(["backend"])
    with pytest.raises(ConfigError, match=r"env_options \(episode_length=7\): that is an option of the task"):
        parsed_options(["episode_length=7"])
