"""Native MuJoCo and MuJoCo Warp in place of MJX."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from mujoco import mjx

from ksim.envs.engines import NativePhysics, WarpPhysics
from ksim.envs.task import ExternalEnv, WrappedConfig, WrappedTask
from ksim.envs.wrapped import WrappedEnvironment
from ksim.errors import ConfigError
from ksim.physics.contact_sizes import ContactSizes
from tests.envs.test_wrapped import State
from tests.support.engines import WARP
from tests.support.scale import scale

PENDULUM = """
<mujoco>
  <worldbody>
    <body pos="0 0 1">
      <joint name="hinge" axis="0 1 0" damping=".1"/>
      <geom type="capsule" size=".05" fromto="0 0 0 .5 0 0"/>
    </body>
    <body pos="1 0 1"><freejoint/> <geom type="box" size=".1 .2 .3"/></body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
</mujoco>
"""


IN_PLACE = pytest.mark.parametrize("engine", ["mujoco", WARP])


def other_physics(engine, mj_model, model, sizes=None):
    if engine == "mujoco":
        return NativePhysics(mj_model, model, 1)
    return WarpPhysics(mj_model, model, sizes or ContactSizes(contacts=16, constraints=64))


@pytest.fixture(scope="module")
def models():
    mj_model = mujoco.MjModel.from_xml_string(PENDULUM)
    return mj_model, mjx.put_model(mj_model, impl="jax")


def stepped(model, mj_model):
    """Position and velocity after three steps by whatever `mjx.step` is, from a quaternion that is not of norm 1."""

    def run():
        data = mjx.make_data(mj_model, impl="jax").replace(ctrl=jnp.ones(1))
        data = data.replace(qpos=data.qpos.at[4:].multiply(2.0), qvel=data.qvel + 1.0)
        data, _ = jax.lax.scan(lambda data, _: (mjx.step(model, data), None), data, length=3)
        return data.qpos, data.qvel

    return jax.jit(run)()


def check_same(physics, model, mj_model):
    expected = stepped(model, mj_model)
    with physics.instead_of_mjx():
        found = stepped(model, mj_model)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)
    return found


@pytest.mark.long
@IN_PLACE
def test_model_that_an_environment_changes_is_stepped_with_its_changes(models, engine):
    mj_model, model = models
    physics = other_physics(engine, mj_model, model)
    own = check_same(physics, model, mj_model)
    heavier = {"body_mass": model.body_mass * 3, "body_inertia": model.body_inertia * jnp.array([3.0, 1.0, 2.0])}
    changed = check_same(physics, model.tree_replace({**heavier, "opt.gravity": jnp.array([0.0, 0.0, -5.0])}), mj_model)
    assert abs(own[1][0] - changed[1][0]) > 0.01  # of the pendulum
    assert abs(own[1][3] - changed[1][3]) > 0.01  # of the box, which falls


@IN_PLACE
def test_change_of_a_model_that_the_other_engine_cannot_make_is_refused(models, engine):
    mj_model, model = models
    physics = other_physics(engine, mj_model, model)
    changed = model.tree_replace({"mesh_vert": jnp.zeros_like(model.mesh_vert)})
    with physics.instead_of_mjx(), pytest.raises(ConfigError, match="the environment changes mesh_vert of its model"):
        stepped(changed, mj_model)


@pytest.mark.long
@IN_PLACE
def test_options_of_the_solver_that_mjx_was_given_hold(models, engine):
    mj_model, model = models
    weightless = model.tree_replace({"opt.timestep": jnp.float32(0.004), "opt.gravity": jnp.zeros(3)})
    found = check_same(other_physics(engine, mj_model, weightless), weightless, mj_model)
    assert abs(found[0][3] - 1.0 - 3 * 0.004) < 1e-5  # neither falls nor steps of 2 ms


DOOR = """
<mujoco>
  <worldbody>
    <body name="door" pos="0 0 1">
      <joint name="hinge" axis="0 1 0"/>
      <geom type="capsule" size=".05" fromto="0 0 0 .5 0 0"/>
      <body name="handle" pos=".5 0 0">
        <joint name="handle" axis="0 1 0" frictionloss=".1"/>
        <geom type="box" size=".05 .02 .02" pos=".01 0 0" mass=".2"/>
      </body>
    </body>
  </worldbody>
  <equality><weld name="lock" body1="door"/></equality>
  <actuator><motor joint="hinge"/></actuator>
  <sensor><subtreecom body="door"/></sensor>
</mujoco>
"""


def door(change=None, *, is_locked=False, engine="mjx"):
    """Angles of the door after 10 steps by an engine, and the position of its center of mass."""
    mj_model = mujoco.MjModel.from_xml_string(DOOR)
    model = mjx.put_model(mj_model, impl="jax")

    def run():
        changed = model if change is None else model.tree_replace(change(model))
        data = mjx.make_data(mj_model, impl="jax").replace(eq_active=jnp.array([is_locked]))
        data, _ = jax.lax.scan(lambda data, _: (mjx.step(changed, data), None), data, length=10)
        return data.qpos, data.subtree_com[1]

    other = contextlib.nullcontext() if engine == "mjx" else other_physics(engine, mj_model, model).instead_of_mjx()
    with other:
        return jax.tree.map(np.asarray, jax.jit(run)())


DOOR_CHANGES = {
    "body_ipos": lambda model: {"body_ipos": model.body_ipos + jnp.array([0.05, 0.0, 0.02])},
    "body_mass": lambda model: {"body_mass": model.body_mass * jnp.array([1.0, 1.0, 5.0])},
    "friction that there was not": lambda model: {"dof_frictionloss": model.dof_frictionloss + 0.2},
}


@pytest.mark.long
@pytest.mark.parametrize("engine", ["mujoco", *scale([], [WARP])])
@pytest.mark.parametrize("change", DOOR_CHANGES)
def test_change_of_a_model_reaches_the_constants_that_mujoco_derives_from_it(change, engine):
    found, expected = (door(DOOR_CHANGES[change], engine=name) for name in (engine, "mjx"))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected)


@IN_PLACE
def test_weld_that_is_off_in_the_data_holds_nothing(engine):
    # Free, the door falls by 1.5 g / l t^2 / 2, some 0.006 rad in 0.02 s.
    assert abs(door(is_locked=True, engine=engine)[0][0]) < 1e-3
    assert 0.003 < door(is_locked=False, engine=engine)[0][0] < 0.01


def test_model_that_an_environment_wrote_to_before_or_after_it_gave_it_to_mjx_is_what_is_stepped():
    mj_model = mujoco.MjModel.from_xml_string(DOOR)
    mj_model.body_mass[2] *= 5
    model = mjx.put_model(mj_model, impl="jax")
    native = NativePhysics(mj_model, model.replace(geom_size=model.geom_size * 2), 1).mj_model
    np.testing.assert_allclose(native.body_subtreemass[0], mj_model.body_mass.sum())
    np.testing.assert_allclose(native.geom_rbound, [2 * (0.25 + 0.05), 2 * np.sqrt(0.05**2 + 2 * 0.02**2)], rtol=1e-6)
    np.testing.assert_array_equal(native.body_invweight0, mj_model.body_invweight0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: {"opt.iterations": 7}, r"changes opt.iterations of its model"),
        (lambda model: {"geom_contype": model.geom_contype * 2}, r"changes geom_contype of its model"),
        (lambda model: {"stat.meaninertia": model.stat.meaninertia * 2}, r"changes stat.meaninertia of its model"),
        (lambda model: {"geom_rbound": model.geom_rbound * 2}, r"Change geom_size instead"),
        (lambda model: {"opt.wind": jnp.ones(3)}, r"the compiled model has no fluid"),
    ],
)
@IN_PLACE
def test_change_that_the_other_engine_would_not_see_is_refused_by_name(change, words, engine):
    with pytest.raises(ConfigError, match=words):
        door(change, engine=engine)


def test_models_that_an_environment_draws_with_another_centre_of_mass_of_a_free_box_are_refused(models):
    mj_model, model = models
    native = NativePhysics(mj_model, model, 1)
    offsets = jnp.array([[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    native.check_models(model.replace(body_ipos=model.body_ipos[None] + offsets))
    with pytest.raises(ConfigError, match=r"engine \(mujoco\): body_ipos of body.*Or leave the option out"):
        native.check_models(model.replace(body_ipos=model.body_ipos[None] + offsets[::-1] + offsets[1]))


BALL = """
<mujoco>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .1"><joint name="up" type="slide" axis="0 0 1"/><geom size=".1"/></body>
  </worldbody>
  <actuator><motor joint="up"/></actuator>
</mujoco>
"""


class Ball:
    """A ball on the ground. `read` makes of its data what it also observes; `later` observes that a step later."""

    action_size = 1

    def __init__(self, read, *, later=False):
        self.mj_model = mujoco.MjModel.from_xml_string(BALL)
        self.mjx_model, self.read, self.later = mjx.put_model(self.mj_model, impl="jax"), read, later

    @property
    def unwrapped(self):
        return self

    def reset(self, rng):
        data = mjx.forward(self.mjx_model, mjx.make_data(self.mj_model, impl="jax"))
        info = {"read": 0.0 * data.qpos[0]}
        return State(data, self.observation(data, info), jnp.zeros(()), jnp.zeros(()), {}, info)

    def observation(self, data, info):
        return jnp.append(data.qpos, info["read"] if self.later else self.read(data))

    def step(self, state, action):
        data = mjx.step(self.mjx_model, state.data.replace(ctrl=action))
        obs = self.observation(data, state.info)
        return dataclasses.replace(state, data=data, obs=obs, info={"read": self.read(data)})


def wrapped(ball, engine, sizes=None):
    physics = other_physics(engine, ball.mj_model, ball.mjx_model, sizes)
    return WrappedEnvironment(env=ball, actor_obs=None, critic_obs=None, episode_length=10, physics=physics)


class BallTask(WrappedTask[WrappedConfig]):
    def make(self, config):
        env = Ball(lambda data: jnp.float32(data._impl.contact.geom[0, 0]))
        return ExternalEnv(env, 0.002, 0.002, mj_model=env.mj_model, mjx_model=env.mjx_model)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("read", "missed"),
    [
        (lambda data: data._impl.contact.dist[0], ["contact.dist"]),
        (lambda data: (data._impl.contact.dist[0] < 0).astype(float), ["contact.dist"]),
        (lambda data: jnp.float32(data._impl.contact.geom[0, 0]), ["contact.geom"]),
        (lambda data: data.qacc[0] + data.site_xpos.sum() + data.qfrc_actuator[0], []),
    ],
    ids=["number", "condition", "whole number", "nothing"],
)
def test_what_an_environment_reads_that_native_mujoco_does_not_give_is_found_by_name(read, missed, later):
    ball = Ball(read, later=later)
    assert wrapped(ball, "mujoco").fields_missed() == missed


def test_environment_that_reads_it_is_refused_natively():
    task = BallTask("ball", WrappedConfig(engine="mujoco", num_envs=8, num_devices=1))
    with pytest.raises(ConfigError, match=r"ball reads contact\.geom of mjx\.Data, .* set engine=mjx"):
        task.check()


@pytest.mark.parametrize("engine", [WARP])
def test_constraints_that_warp_dropped_are_counted_and_the_option_is_named(engine):
    ball = Ball(lambda data: data.qpos[0])
    keys = jax.random.split(jax.random.key(0), 2)

    def dropped(constraints):
        env = wrapped(ball, engine, ContactSizes(contacts=4, constraints=constraints))
        fallen = lambda key: jax.lax.fori_loop(0, 5, lambda _, state: env.step(state, jnp.zeros(1)), env.reset(key))
        metrics = jax.jit(jax.vmap(fallen))(keys).metrics
        metrics = {name: float(x.mean()) for name, x in metrics.items()}
        return metrics["dropped/constraints"], env.problem(metrics)

    assert dropped(4) == (0.0, "")
    share, words = dropped(1)
    assert share == 1.0
    assert words.endswith("warp_constraints (1) is too small. Set warp_constraints=2.")
