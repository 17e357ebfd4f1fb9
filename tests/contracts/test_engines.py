"""Every engine runs the same script and is compared with plain MuJoCo."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.parallel.layout import LAYOUTS
from ksim.physics.engine import DERIVED_FIELDS, control_step
from ksim.physics.select import make_engine, pick_engine
from tests.support.engines import ENGINES, MJX
from tests.support.robots import biped_model
from tests.support.scale import long, scale

NUM_ENVS, NUM_STEPS = 3, 20
NEEDS = ("xpos", "xquat", "cvel", "actuator_force", "subtree_com")
FIELDS = ("sensordata", *NEEDS)


@functools.cache
def engine_of(name):
    return make_engine(name, biped_model(), NEEDS, num_devices=1)


def script():
    """Start, controls and model fields of each env: one lands hard, one is light, one slides."""
    rng = np.random.default_rng(0)
    model = biped_model().mj_model
    qpos = np.tile(model.qpos0, (NUM_ENVS, 1))
    qpos[:, 2] += [0.0, 0.1, 0.02]
    qvel = 0.3 * rng.standard_normal((NUM_ENVS, model.nv))
    ctrl = 0.3 * rng.standard_normal((NUM_STEPS, NUM_ENVS, model.nu))
    friction = np.tile(model.geom_friction, (NUM_ENVS, 1, 1))
    friction[:, :, 0] = np.array([1.0, 0.6, 0.1])[:, None]
    mass = np.tile(model.body_mass, (NUM_ENVS, 1)) * np.array([1.0, 0.5, 1.5])[:, None]
    gravity = np.tile(model.opt.gravity, (NUM_ENVS, 1)) * np.array([1.0, 1.0, 0.8])[:, None]
    subtree_mass = np.tile(model.body_subtreemass, (NUM_ENVS, 1)) * np.array([1.0, 0.5, 1.5])[:, None]
    overrides = {"geom_friction": friction, "body_mass": mass, "body_subtreemass": subtree_mass, "opt.gravity": gravity}
    return qpos, qvel, ctrl, overrides


@functools.cache
def plain_mujoco():
    """The script on one MjData per env: derived fields at the start, and states and fields after each control step."""
    qpos, qvel, ctrl, overrides = script()
    starts, runs = [], []
    for env in range(NUM_ENVS):
        model = biped_model().mj_model
        for field in ("geom_friction", "body_mass", "body_subtreemass"):
            getattr(model, field)[:] = overrides[field][env]
        model.opt.gravity[:] = overrides["opt.gravity"][env]
        data = mujoco.MjData(model)
        data.qpos, data.qvel = qpos[env], qvel[env]
        mujoco.mj_forward(model, data)
        starts.append({name: np.array(getattr(data, name)) for name in FIELDS})
        data = mujoco.MjData(model)
        data.qpos, data.qvel = qpos[env], qvel[env]
        records = []
        for t in range(NUM_STEPS):
            data.ctrl = ctrl[t, env]
            mujoco.mj_step(model, data, nstep=biped_model().decimation)
            records.append({name: np.array(getattr(data, name)) for name in ("qpos", "qvel", "time", *FIELDS)})
        runs.append(jax.tree.map(lambda *x: np.stack(x), *records))
    stack = lambda trees: jax.tree.map(lambda *x: np.stack(x), *trees)
    return stack(starts), stack(runs)


def inputs_of_script():
    """The script as the inputs of `run_envs`: one row per env."""
    qpos, qvel, ctrl, overrides = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), script())
    return qpos, qvel, ctrl.swapaxes(0, 1), overrides


def run_envs(engine):
    """A function of the script's inputs to the states at the start and after each control step, for all envs."""

    def one_env(qpos, qvel, ctrl_t, overrides):
        start = dataclasses.replace(engine.model.start(), qpos=qpos, qvel=qvel)
        start = engine.forward(start, jnp.zeros(ctrl_t.shape[1]), overrides)

        def step(state, ctrl):
            state, _ = control_step(engine, state, ctrl, overrides)
            return state, state

        return start, jax.lax.scan(step, start, ctrl_t)[1]

    return jax.vmap(one_env)


@functools.cache
def compiled(name):
    return jax.jit(run_envs(engine_of(name)))


@functools.cache
def results(name):
    return compiled(name)(*inputs_of_script())


@pytest.mark.parametrize("name", ["mujoco", MJX])
def test_reset_gives_the_derived_fields_of_mj_forward(name):
    expected, _ = plain_mujoco()
    start, _ = results(name)
    for field in FIELDS:
        np.testing.assert_allclose(start.derived[field], expected[field], rtol=2e-3, atol=1e-3, err_msg=field)


@pytest.mark.parametrize("name", ENGINES)
def test_trajectory_with_randomized_models_equals_that_of_mj_step(name):
    _, expected = plain_mujoco()
    _, states = results(name)
    tolerance = {"rtol": 1e-3, "atol": 2e-3} if name == "mjx" else {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(states.qpos, expected["qpos"], **tolerance)
    np.testing.assert_allclose(states.time, expected["time"], rtol=1e-5)
    # Derived fields over the first steps, while rounding has not yet moved a contact by a substep.
    for field in FIELDS:
        actual, wanted = states.derived[field][:, :3], expected[field][:, :3]
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(actual, wanted, rtol=1e-2, atol=2e-3 * scale, err_msg=field)


@pytest.mark.parametrize("name", ENGINES)
def test_randomized_fields_change_the_motion(name):
    _, states = results(name)
    assert np.abs(states.qpos[0, -1] - states.qpos[2, -1]).max() > 1e-2


@pytest.mark.parametrize("name", ENGINES)
def test_touch_sensors_read_the_ground_and_not_the_air(name):
    start, states = results(name)
    touch = slice(3, 5)
    np.testing.assert_array_equal(start.derived["sensordata"][1, touch], 0.0)  # 0.1 m above the ground
    assert (states.derived["sensordata"][0, -1, touch] > 1.0).any()


@pytest.mark.parametrize("name", ENGINES)
def test_engine_is_deterministic(name):
    chex.assert_trees_all_equal(results(name), compiled(name)(*inputs_of_script()))


@pytest.mark.parametrize("layout", ["pmap", *scale([], long(("shard_map",)))])
@pytest.mark.parametrize("name", ["mujoco", MJX])
def test_engine_on_two_devices_equals_that_on_one(name, layout):
    num_steps = 5
    qpos, qvel, ctrl, overrides = inputs_of_script()
    inputs = qpos, qvel, ctrl[:, :num_steps], overrides
    # The second device has the envs in the reverse order.
    on_two = lambda tree: jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), tree)
    two = LAYOUTS[layout](jax.devices()[:2], "device")
    placed = two.shard(jax.tree.map(jnp.concatenate, on_two(inputs)))
    _, split = two.map(run_envs(engine_of(name)))(*placed)
    whole = on_two(jax.tree.map(lambda x: x[:, :num_steps], results(name)[1]))
    chex.assert_trees_all_close(whole, split, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ENGINES)
def test_state_that_is_not_finite_stays_so_and_harms_no_other(name):
    qpos, *others = inputs_of_script()
    healthy, sick = results(name)[1], compiled(name)(qpos.at[0, 2].set(jnp.nan), *others)[1]
    assert not np.isfinite(sick.qpos[0]).all(axis=-1).any()
    chex.assert_trees_all_equal(*(jax.tree.map(lambda x: x[1:], state) for state in (healthy, sick)))
    import pathlib

    assert not pathlib.Path("MUJOCO_LOG.TXT").exists()


@pytest.mark.parametrize("name", ENGINES)
def test_every_derived_field_has_mujocos_shape(name):
    model = biped_model()
    engine, data = make_engine(name, model, DERIVED_FIELDS, num_devices=1), mujoco.MjData(model.mj_model)
    state = jax.eval_shape(lambda ctrl: engine.forward(model.start(), ctrl, {}), jnp.zeros(model.mj_model.nu))
    for field in DERIVED_FIELDS:
        assert state.derived[field].shape == np.shape(getattr(data, field)), field


def test_unknown_derived_field_is_an_error():
    with pytest.raises(ConfigError, match=r"'xpoz'.*xpos"):
        make_engine("mujoco", biped_model(), ("xpoz",), num_devices=1)


@pytest.mark.parametrize(
    ("engine", "platform", "expected"),
    [("auto", "cpu", "mujoco"), ("auto", "gpu", "mjx"), ("auto", "tpu", "mjx"), ("mjx", "cpu", "mjx")],
)
def test_engine_is_picked_by_platform_unless_asked_for(engine, platform, expected):
    assert pick_engine(engine, platform).name == expected
