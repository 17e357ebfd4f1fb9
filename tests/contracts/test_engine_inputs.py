"""Controls per substep, forces from outside and motors that weaken with speed: every engine against plain MuJoCo."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.physics import DcMotorActuators, compile_model
from ksim.physics.engine import control_step
from ksim.physics.select import make_engine
from tests.support.engines import BOTH, ENGINES, MJX
from tests.support.robots import biped_spec

NUM_STEPS = 6
MOTORS = DcMotorActuators(kp=60.0, kd=1.0, no_load_speed=4.0, stall_ratio=1.5)
LIMIT = 20.0  # N m, of the biped's motors


@functools.cache
def model_of(with_motors):
    # High above the ground, so that rounding cannot move a contact by a substep.
    spec = biped_spec()
    spec.body("trunk").pos = [0, 0, 5]
    return compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[MOTORS.edit_spec] if with_motors else [])


def script():
    """Controls per substep, and a wrench on the trunk per control step."""
    rng = np.random.default_rng(0)
    ctrl_tsu = 0.5 * rng.standard_normal((NUM_STEPS, 5, 2))
    wrench_t6 = 10.0 * rng.standard_normal((NUM_STEPS, 6))
    return ctrl_tsu, wrench_t6


def plain_mujoco(with_motors):
    """Positions after each control step of the script."""
    model, (ctrl_tsu, wrench_t6) = model_of(with_motors).mj_model, script()
    data = mujoco.MjData(model)
    trunk, limit = model.body("trunk").id, np.array([-LIMIT, LIMIT])
    qpos_t = []
    for ctrl_su, wrench_6 in zip(ctrl_tsu, wrench_t6, strict=True):
        data.xfrc_applied[trunk] = wrench_6
        for ctrl_u in ctrl_su:
            data.ctrl = ctrl_u
            if with_motors:
                # At 4 rad/s nothing is left of the stall torque of 30 N m.
                speed_u = data.qvel[-2:] / 4.0
                high_u = np.clip(1.5 * LIMIT * (1 - speed_u), 0, LIMIT)
                low_u = np.clip(-1.5 * LIMIT * (1 + speed_u), -LIMIT, 0)
                model.actuator_forcerange = np.stack([low_u, high_u], axis=1)
            mujoco.mj_step(model, data)
        qpos_t.append(np.array(data.qpos))
    model.actuator_forcerange = limit
    return np.stack(qpos_t)


@functools.cache
def program(name, with_motors):
    """Positions after each control step under controls, wrenches on the trunk and limits of the motors."""
    model = model_of(with_motors)
    curve = MOTORS.motor_curve(model) if with_motors else None
    engine = make_engine(name, model, applies=("xfrc_applied",), motor_curve=curve)
    trunk = model.names.index("body", "trunk")

    def run(inputs, force_range):
        overrides = {"actuator_forcerange": force_range}

        def step(state, inputs):
            ctrl_su, wrench_6 = inputs

            def push(state, overrides):
                wrench_b6 = state.applied["xfrc_applied"].at[trunk].add(wrench_6)
                return dataclasses.replace(state, applied={"xfrc_applied": wrench_b6}), overrides

            state, _ = control_step(engine, state, ctrl_su, overrides, [push])
            return state, state.qpos

        start = engine.forward(model.start(), jnp.zeros(2), overrides)
        return jax.lax.scan(step, start, inputs)[1]

    return jax.jit(run)


@functools.cache
def trajectory(name, with_motors, constant_ctrl=False, limit_factor=1.0):
    ctrl_tsu, wrench_t6 = script()
    ctrl_tsu = np.broadcast_to(ctrl_tsu[:, :1], ctrl_tsu.shape) if constant_ctrl else ctrl_tsu
    force_range = limit_factor * model_of(with_motors).mj_model.actuator_forcerange
    inputs = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), ((ctrl_tsu, wrench_t6), force_range))
    return np.asarray(program(name, with_motors)(*inputs))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("with_motors", [False, pytest.param(True, marks=pytest.mark.long)])
def test_trajectory_under_pushes_and_controls_per_substep_equals_that_of_mj_step(name, with_motors):
    np.testing.assert_allclose(trajectory(name, with_motors), plain_mujoco(with_motors), rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("name", ["mujoco", MJX])
def test_motor_curve_and_controls_per_substep_matter_here(name):
    assert np.abs(trajectory(name, True)[-1] - trajectory(name, True, constant_ctrl=True)[-1]).max() > 0.01
    assert np.abs(trajectory(name, True)[-1] - trajectory(name, True, limit_factor=0.3)[-1]).max() > 0.01


@pytest.mark.long
def test_both_engines_agree_on_weaker_motors_of_one_env():
    first, second = (trajectory(name, True, limit_factor=0.3) for name in BOTH)
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=5e-4)


def test_unknown_applied_field_is_an_error():
    with pytest.raises(ConfigError, match=r"'xfrc'.*xfrc_applied"):
        make_engine("mujoco", model_of(False), applies=("xfrc",))


def test_dc_motor_at_rest_at_speed_and_beyond_has_the_torque_of_its_line():
    curve = MOTORS.motor_curve(model_of(True))
    limits_u2 = np.array([[-LIMIT, LIMIT]] * 2)
    np.testing.assert_allclose(curve(np.zeros(2), limits_u2), limits_u2)
    # At 3 rad/s of 4: 30 * (1 - 0.75) = 7.5 forwards; backwards 30 * 1.75, limited to 20. Beyond 4 rad/s: nothing.
    np.testing.assert_allclose(curve(np.array([3.0, -3.0]), limits_u2), [[-20, 7.5], [-7.5, 20]])
    np.testing.assert_allclose(curve(np.array([5.0, -5.0]), limits_u2), [[-20, 0], [0, 20]])
    np.testing.assert_allclose(curve(jnp.array([3.0, -3.0]), jnp.asarray(limits_u2)), [[-20, 7.5], [-7.5, 20]])


@pytest.mark.parametrize("name", ["mujoco", MJX])
def test_forward_after_a_push_and_a_fast_motor_is_as_before(name):
    model = model_of(True)
    engine = make_engine(
        name, model, ("actuator_force",), applies=("xfrc_applied",), motor_curve=MOTORS.motor_curve(model)
    )
    nv, start = model.mj_model.nv, model.start()
    forward = jax.jit(lambda qvel: engine.forward(dataclasses.replace(start, qvel=qvel), jnp.full(2, 0.2), {}))

    def pushed(state):
        push = lambda state, overrides: (
            dataclasses.replace(state, applied={"xfrc_applied": jnp.full((4, 6), 50.0)}),
            {},
        )
        return control_step(engine, state, jnp.zeros(2), {}, [push])[0]

    before = forward(jnp.zeros(nv))
    jax.jit(pushed)(forward(jnp.full(nv, 5.0)))
    chex.assert_trees_all_equal(forward(jnp.zeros(nv)), before)
    assert np.abs(before.derived["actuator_force"]).min() > 1.0
