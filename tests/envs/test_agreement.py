"""Native MuJoCo beside MJX, before the one takes the other's place in an environment."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from mujoco import mjx

from ksim.envs.agreement import TOLERANCE, gap_to_mjx, in_words, kept_gap, usual_share
from ksim.envs.engines import NativePhysics
from ksim.envs.task import ExternalEnv, WrappedConfig, WrappedTask
from ksim.envs.wrapped import WrappedEnvironment
from ksim.errors import ConfigError
from tests.envs.test_wrapped import State

RESTING = """
<mujoco>
  <option timestep="0.002" iterations="100" ls_iterations="50"/>
  <worldbody>
    <geom type="plane" size="0 0 1"/>
    <body pos="0 0 0.0985"><freejoint/><geom type="{kind}" size="0.1 0.1 0.1" mass="5"/><site name="centre"/></body>
  </worldbody>
  <actuator><motor site="centre" gear="0 0 1 0 0 0"/></actuator>
</mujoco>
"""


class Resting:
    """A body that rests on a plane, tilted by up to 0.02 rad."""

    action_size = 1

    def __init__(self, kind):
        self.mj_model = mujoco.MjModel.from_xml_string(RESTING.format(kind=kind))
        self.mjx_model = mjx.put_model(self.mj_model, impl="jax")

    def reset(self, rng):
        half = jax.random.uniform(rng, minval=0.004, maxval=0.01)
        data = mjx.make_data(self.mj_model, impl="jax")
        quaternion = jnp.stack([jnp.cos(half), jnp.sin(half), 0.0, 0.0])
        data = mjx.forward(self.mjx_model, data.replace(qpos=data.qpos.at[3:7].set(quaternion)))
        return State(data, data.qpos, jnp.zeros(()), jnp.zeros(()), {}, {})

    def step(self, state, action):
        data = mjx.step(self.mjx_model, state.data.replace(ctrl=action))
        return dataclasses.replace(state, data=data, obs=data.qpos)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "agrees"), [("sphere", True), ("box", False)])
def test_engines_agree_on_a_sphere_on_a_plane_and_not_on_a_tilted_box(kind, agrees):
    made = Resting(kind)
    native = NativePhysics(made.mj_model, made.mjx_model, 1)
    env = WrappedEnvironment(env=made, actor_obs=None, critic_obs=None, episode_length=100, physics=native)
    gap = gap_to_mjx(env, made.mjx_model)
    assert gap < 1e-3 if agrees else gap > 10 * TOLERANCE


class Diverging(Resting):
    """Its velocities are not numbers after the first step."""

    def step(self, state, action):
        state = super().step(state, action)
        return dataclasses.replace(state, data=state.data.replace(qvel=jnp.full_like(state.data.qvel, jnp.nan)))


@pytest.mark.long
def test_gap_is_infinite_where_a_visited_velocity_is_not_finite():
    made = Diverging("sphere")
    native = NativePhysics(made.mj_model, made.mjx_model, 1)
    env = WrappedEnvironment(env=made, actor_obs=None, critic_obs=None, episode_length=100, physics=native)
    assert gap_to_mjx(env, made.mjx_model) == np.inf


def test_share_is_of_the_change_of_the_state_or_of_the_median_where_it_is_at_rest():
    before = np.zeros((3, 2))
    by_mjx = np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 0.0]])  # changes of 2, 4 and 0: the median is 2
    by_native = by_mjx + np.array([[0.1, 0.0], [0.1, 0.0], [0.0, 0.4]])
    # Shares of 0.1 / 2, 0.1 / 4 and 0.4 / 2: sorted, nine tenths of the way from 0 to 2 is 0.8 of that from 1 to 2.
    np.testing.assert_allclose(usual_share(before, by_native, by_mjx), 0.05 + 0.8 * (0.2 - 0.05))
    by_native[0, 0] = np.nan
    assert usual_share(before, by_native, by_mjx) == np.inf


def test_share_passes_over_a_few_states_that_differ():
    before, by_mjx = np.zeros((100, 1)), np.ones((100, 1))
    by_native = by_mjx + 0.001
    by_native[:9] += 1.0
    np.testing.assert_allclose(usual_share(before, by_native, by_mjx), 0.001)
    by_native[:12] += 1.0
    assert usual_share(before, by_native, by_mjx) > 1


def test_words_name_the_gap_and_the_tolerance():
    assert in_words(TOLERANCE / 2) == (True, "one physics step is within 0.03 of that of MJX")
    agrees, words = in_words(1.37)
    assert not agrees
    assert words == "one physics step differs from that of MJX by 137% of its change, 5% at most agree"
    assert not in_words(float("inf"))[0]


def test_mjx_leaves_out_corners_of_a_tilted_box_that_touch_the_plane():
    # Tilted by 0.01 rad, two corners are 1.5 + 1 mm deep and two 1.5 - 1 mm: more than 1 mm apart, which MJX drops.
    model = mujoco.MjModel.from_xml_string(RESTING.format(kind="box"))
    data = mujoco.MjData(model)
    data.qpos[3:7] = [np.cos(0.005), np.sin(0.005), 0, 0]
    mujoco.mj_forward(model, data)
    assert data.ncon == 4
    model_x = mjx.put_model(model, impl="jax")
    collide = jax.jit(lambda qpos: mjx.collision(model_x, mjx.kinematics(model_x, start.replace(qpos=qpos))))
    start = mjx.make_data(model, impl="jax")
    assert int((np.asarray(collide(data.qpos)._impl.contact.dist) < 0).sum()) == 2


class Compared(WrappedTask):
    """Says how far apart its engines are instead of finding it out."""

    gap = 0.0

    @classmethod
    def published_config(cls, name):
        return WrappedConfig(env=name)

    def make(self, config):
        return ExternalEnv(env=None, dt=0.002, ctrl_dt=0.02, mj_model=None, mjx_model="its own")


class OfferedNatively(WrappedConfig):
    def agrees_natively(self):
        return True


class FakeNative(NativePhysics):
    def __init__(self, refusal=""):
        self.refusal = refusal

    def check_models(self, models):
        if self.refusal:
            raise ConfigError(f"engine (mujoco): {self.refusal}")


@dataclasses.dataclass
class FakeEnvironment:
    physics: object = None
    missed: tuple = ()
    randomizer: object = dataclasses.field(default_factory=lambda: types.SimpleNamespace(drawn=None))

    def fields_missed(self):
        return list(self.missed)


@pytest.fixture
def compared(monkeypatch):
    def made(engine, gap, missed=(), native=FakeNative):
        monkeypatch.setattr("ksim.envs.agreement.gap_to_mjx", lambda env, mjx_model: gap)
        monkeypatch.setattr(Compared, "_native", lambda self, num_devices: native())
        plain = lambda self, physics=None, engine="": FakeEnvironment(physics, missed)
        monkeypatch.setattr(Compared, "_environment", plain)
        return Compared(dataclasses.replace(OfferedNatively(env="box", num_devices=1), engine=engine))

    return made


def no_native():
    raise ConfigError("engine (mujoco): the environment's model has built-in delays")


def test_auto_keeps_mjx_where_native_mujoco_differs_and_says_so(compared):
    engine, reason = compared("auto", 1.37).picked_engine
    assert engine == "mjx"
    assert "differs from that of MJX by 137%" in reason
    engine, reason = compared("auto", 1e-5).picked_engine
    assert engine == "mujoco"
    assert "within 1e-05 of that of MJX" in reason
    engine, reason = compared("auto", 0.0, ["contact.dist"]).picked_engine
    assert (engine, reason) == ("mjx", "auto: native MuJoCo does not give contact.dist")


def test_native_mujoco_that_was_asked_for_and_differs_warns(compared):
    with pytest.warns(UserWarning, match=r"engine \(mujoco\): one physics step differs .* in box\. Set engine=mjx"):
        engine, reason = compared("mujoco", 1.37).picked_engine
    assert engine == "mujoco"
    assert "differs from that of MJX by 137%" in reason
    with pytest.raises(ConfigError, match=r"engine \(mujoco\): box reads contact\.dist of mjx\.Data"):
        _ = compared("mujoco", 0.0, ["contact.dist"]).picked_engine


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        (lambda: FakeNative("body_ipos differs"), "body_ipos differs"),
        (no_native, "the environment's model has built-in"),
    ],
    ids=["models", "model"],
)
def test_auto_keeps_mjx_where_native_mujoco_refuses_the_model_and_says_so(compared, native, reason):
    task = compared("auto", 0.0, native=native)
    engine, words = task.picked_engine
    assert engine == "mjx"
    assert words.startswith(f"auto: {reason}")
    assert task.get_environment("mujoco", 1).physics is None
    with pytest.raises(ConfigError, match=reason):
        compared("mujoco", 0.0, native=native).get_environment("mujoco", 1)


@pytest.mark.filterwarnings("ignore:engine .mujoco.")
@pytest.mark.parametrize(
    ("engine", "gap", "is_native"), [("auto", 1.37, False), ("auto", 0, True), ("mujoco", 1.37, True)]
)
def test_evaluations_step_natively_where_training_may(compared, engine, gap, is_native):
    task = compared(engine, gap)
    assert (task.picked_engine.name == "mujoco") == is_native
    assert (task.get_environment("mujoco", 1).physics is not None) == is_native


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """A function that says how far apart the engines are, and how often they were compared to find that out."""
    monkeypatch.setattr("ksim.envs.agreement.cache_directory", lambda: str(tmp_path))
    calls = []
    monkeypatch.setattr("ksim.envs.agreement.gap_to_mjx", lambda env, mjx_model: calls.append(env) or 0.25)
    made = Resting("sphere")

    def gap(package="mujoco", options=(), mj_model=made.mj_model, mjx_model=made.mjx_model):
        native = NativePhysics(mj_model, mjx_model, 1)
        env = WrappedEnvironment(env=made, actor_obs=None, critic_obs=None, episode_length=100, physics=native)
        return kept_gap(env, mjx_model, package, options), len(calls)

    return gap


def test_engines_are_compared_once_for_a_package_its_options_and_its_model(measured, tmp_path):
    assert measured() == (0.25, 1)
    assert measured() == (0.25, 1)
    assert measured(options=["sim_dt=0.02"]) == (0.25, 2)
    heavier = mujoco.MjModel.from_xml_string(RESTING.format(kind="sphere").replace('mass="5"', 'mass="6"'))
    assert measured(mj_model=heavier, mjx_model=mjx.put_model(heavier, impl="jax")) == (0.25, 3)
    for file in (tmp_path / "engines").iterdir():
        file.write_text("{")
    assert measured() == (0.25, 4)


def test_engines_are_compared_at_every_start_where_code_may_change_or_nothing_is_kept(measured, monkeypatch):
    assert [measured(package="")[1] for _ in range(2)] == [1, 2]
    for directory in (None, "gs://bucket/programs"):
        monkeypatch.setattr("ksim.envs.agreement.cache_directory", lambda directory=directory: directory)
        assert [measured()[1] - measured()[1] for _ in range(2)] == [-1, -1]
