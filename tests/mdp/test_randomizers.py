"""Randomizers, by hand: the fields that they draw, the ranges that they fill and what they refuse."""

import copy
import dataclasses
import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import randomizers as r
from ksim.physics import compile_model
from tests.support.contexts import DT, biped, draws, make_context
from tests.support.robots import ACTUATORS, biped_spec

MODEL = biped().mj_model
# Of the biped: the trunk has 5 kg, each leg 1.2 kg.
WORLD, TRUNK, LEFT_LEG, RIGHT_LEG = range(4)
FEET = [MODEL.geom(name).id for name in ("left_foot", "right_foot")]


@functools.cache
def springy_biped():
    """The biped with a spring in its left hip, and friction where a randomizer wants some."""
    spec = biped_spec()
    spec.joint("left_hip").stiffness = [10.0, 0, 0]
    edits = [ACTUATORS.edit_spec, r.RandomJointFriction().edit_spec]
    return compile_model(spec, dt=0.004, ctrl_dt=DT, edits=edits)


@functools.cache
def motors():
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=DT)


@functools.cache
def limited_joint():
    """The biped with motors up to 20 N m, whose left hip takes at most 8 N m."""
    spec = biped_spec()
    spec.joint("left_hip").actfrcrange = [-8.0, 8.0]
    return compile_model(spec, dt=0.004, ctrl_dt=DT)


@functools.cache
def with_tendons():
    """The biped with a fixed tendon over both hips: a spring, a limit and an equality that are all off by some length.

    The weights of the hips differ.
    """
    spec = biped_spec()
    tendon = spec.add_tendon(name="belt", limited=True, range=[-1.0, 0.1], springlength=[0.0, 0.05])
    tendon.stiffness = [30.0, 0, 0]
    tendon.wrap_joint("left_hip", 1.0)
    tendon.wrap_joint("right_hip", -2.0)
    spec.add_equality(name="belt", type=mujoco.mjtEq.mjEQ_TENDON, name1="belt", objtype=mujoco.mjtObj.mjOBJ_TENDON)
    return compile_model(spec, dt=0.004, ctrl_dt=DT)


@functools.cache
def velocity_servo():
    """The biped whose left hip is a velocity servo and whose right one has no limit of its force."""
    spec = biped_spec()
    ACTUATORS.edit_spec(spec)
    left, right = spec.actuators
    left.gainprm[0], left.biasprm[0:3], right.forcelimited = 5.0, [0, 0, -5.0], False
    return compile_model(spec, dt=0.004, ctrl_dt=DT)


def changed(field, *to):
    """The biped's field with other values at some indices."""
    value = np.array(getattr(MODEL, field))
    for index, x in zip(to[::2], to[1::2], strict=True):
        value[index] = x
    return value


def times(field, factor):
    return factor * getattr(MODEL, field)


def columns(field, *index):
    """Some of a drawn field, in rows of keys."""
    return lambda drawn: drawn[field][:, *index].reshape(len(drawn[field]), -1)


def one(pick):
    """A number that must be the same in all columns."""

    def same(drawn):
        x_nd = pick(drawn)
        np.testing.assert_allclose(np.ptp(x_nd, axis=1), 0.0, atol=1e-6)
        return x_nd[:, :1]

    return same


def row(sentence, term, *arguments, **fields):
    return pytest.param(term, *arguments, fields, id=sentence)


# The six of the base come first and have neither armature nor damping.
ARMATURE, DAMPING = [0] * 6 + [0.01, 0.01], [0] * 6 + [0.2, 0.2]
HALF = r.RandomActuatorGains(kp_factor=(0.5, 0.5), kd_factor=(0.5, 0.5))
WEAK = r.RandomMotorStrength(factor=(0.5, 0.5))

# fmt: off
VALUES = [
    row("friction: keeps what another left", r.RandomFriction(friction=(1.7, 1.7), geoms=("right_foot",)), biped,
        r.RandomFriction(friction=(1.5, 1.5), geoms=("left_foot",)),
        geom_friction=changed("geom_friction", (FEET, 0), [1.5, 1.7])),
    # 5 + 2 and 1.2 + 1 kg; the whole 7.4 + 3 kg.
    row("body mass: adds to what another left", r.RandomBodyMass(body="trunk", added=(2.0, 2.0)), biped,
        r.RandomBodyMass(body="left_leg", added=(1.0, 1.0)), body_mass=[0, 7.0, 2.2, 1.2],
        body_subtreemass=[10.4, 10.4, 2.2, 1.2]),
    # (5 + 1) * 2 and 1.2 * 2 kg; the whole 12 + 2.4 + 1.2.
    row("mass factor: multiplies what another left and sums subtrees",
        r.RandomMassFactor(bodies=("trunk", "left_leg"), factor=(2.0, 2.0)), biped,
        r.RandomBodyMass(body="trunk", added=(1.0, 1.0)), body_mass=[0, 12, 2.4, 1.2],
        body_subtreemass=[15.6, 15.6, 2.4, 1.2]),
    row("inertia: multiplies all moments of the body alone", r.RandomInertia(body="trunk", factor=(1.5, 1.5)), biped,
        None, body_inertia=changed("body_inertia", TRUNK, 1.5 * MODEL.body_inertia[TRUNK])),
    row("armature: multiplies that of named joints alone", r.RandomArmature(factor=(1.5, 1.5), joints=("right_hip",)),
        biped, None, dof_armature=[*ARMATURE[:7], 1.5 * 0.01]),
    row("damping: multiplies that of named joints alone", r.RandomDamping(factor=(1.5, 1.5), joints=("right_hip",)),
        biped, None, dof_damping=[*DAMPING[:7], 1.5 * 0.2]),
    # 2 * 1.5
    row("armature: multiplies what another left", r.RandomArmature(factor=(1.5, 1.5)), biped,
        r.RandomArmature(factor=(2.0, 2.0)), dof_armature=times("dof_armature", 3)),
    row("damping: multiplies what another left", r.RandomDamping(factor=(1.5, 1.5)), biped,
        r.RandomDamping(factor=(2.0, 2.0)), dof_damping=times("dof_damping", 3)),
    # kp 40 * 1.5 both in the gain of the target and in the pull of the position, kd 2 * 0.5.
    row("actuator gains: keep servos servos", r.RandomActuatorGains(kp_factor=(1.5, 1.5), kd_factor=(0.5, 0.5)), biped,
        None, actuator_gainprm=changed("actuator_gainprm", (..., 0), 60),
        actuator_biasprm=changed("actuator_biasprm", (..., slice(3)), [0, -60, -1])),
    row("actuator gains: leave a velocity servo as it is", HALF, velocity_servo, None,
        actuator_gainprm=changed("actuator_gainprm", (..., 0), [5.0, 20.0]),
        actuator_biasprm=changed("actuator_biasprm", (0, slice(3)), [0, 0, -5], (1, slice(3)), [0, -20, -1])),
    # -20 to 20 N m
    row("motor strength: both ends of a servo's force range, not its gain", WEAK, biped, None,
        actuator_forcerange=[[-10, 10], [-10, 10]], actuator_gainprm=times("actuator_gainprm", 1)),
    row("motor strength: the gain of motors", WEAK, motors, None,
        actuator_gainprm=np.array([[0.5] + [0] * 9] * 2)),
    row("gravity: adds to what another left", r.RandomGravity(magnitude=0.0), biped,
        lambda _: {"opt.gravity": jnp.array([1.0, 2.0, 3.0])}, **{"opt.gravity": [1, 2, 3]}),
    row("joint stiffness: multiplies that of springs", r.RandomJointStiffness(factor=(1.5, 1.5)), springy_biped, None,
        jnt_stiffness=[0, 15, 0]),
]
WIDE = (0.5, 2.0)
RANGES = [
    row("friction: one number for all geoms", r.RandomFriction(friction=(0.4, 0.9)), biped,
        one(columns("geom_friction", slice(None), 0)), (0.4, 0.9), atol=0.01),
    # 5 - 1 to 5 + 2 kg
    row("body mass: around the body's own", r.RandomBodyMass(body="trunk", added=(-1.0, 2.0)), biped,
        columns("body_mass", TRUNK), (4.0, 7.0), atol=0.03),
    row("center of mass: around the body's own along each axis", r.RandomCenterOfMass(body="left_leg", max_offset=0.02),
        biped, lambda drawn: drawn["body_ipos"][:, LEFT_LEG] - MODEL.body_ipos[LEFT_LEG], (-0.02, 0.02), atol=0.002),
    row("inertia: one factor for all moments", r.RandomInertia(body="trunk", factor=(0.8, 1.3)), biped,
        one(lambda drawn: drawn["body_inertia"][:, TRUNK] / MODEL.body_inertia[TRUNK]), (0.8, 1.3), atol=0.03),
    row("gravity: around the model's own", r.RandomGravity(magnitude=0.5), biped,
        lambda drawn: drawn["opt.gravity"] - np.array([0, 0, -9.81]), (-0.5, 0.5), atol=0.05),
    row("mass factor: of each body apart", r.RandomMassFactor(bodies=("trunk", "left_leg"), factor=WIDE), biped,
        lambda drawn: drawn["body_mass"][:, 1:3] / MODEL.body_mass[1:3], WIDE, atol=0.05),
    row("armature: of each joint apart", r.RandomArmature(factor=WIDE), biped,
        lambda drawn: drawn["dof_armature"][:, 6:] / 0.01, WIDE, atol=0.05),
    row("damping: of each joint apart", r.RandomDamping(factor=WIDE), biped,
        lambda drawn: drawn["dof_damping"][:, 6:] / 0.2, WIDE, atol=0.05),
    row("motor strength: of each joint apart", r.RandomMotorStrength(factor=WIDE), biped,
        lambda drawn: drawn["actuator_forcerange"][:, :, 1] / 20, WIDE, atol=0.05),
    row("actuator gains: of each joint apart", r.RandomActuatorGains(kp_factor=WIDE, kd_factor=WIDE), biped,
        lambda drawn: drawn["actuator_biasprm"][:, :, 1:3].reshape(300, 4) / np.array([-40, -2, -40, -2]), WIDE,
        atol=0.05),
    row("joint friction: of each joint apart", r.RandomJointFriction(friction=WIDE), springy_biped,
        columns("dof_frictionloss", slice(6, None)), WIDE, atol=0.05),
    row("joint zero: of each joint apart", r.RandomJointZero(max_offset=0.2), springy_biped,
        columns("qpos0", slice(7, None)), (-0.2, 0.2), atol=0.02),
]
ERRORS = [
    row("friction: unknown geom", r.RandomFriction(geoms=("left_fot",)), biped, r"no geom 'left_fot'.*'left_foot'"),
    row("body mass: unknown body", r.RandomBodyMass(body="trunc"), biped, r"no body 'trunc'.*'trunk'"),
    row("center of mass: unknown body", r.RandomCenterOfMass(body="trunc"), biped, r"no body 'trunc'.*'trunk'"),
    row("inertia: unknown body", r.RandomInertia(body="trunc"), biped, r"no body 'trunc'.*'trunk'"),
    row("mass factor: unknown body", r.RandomMassFactor(bodies=("trunc",)), biped, r"no body 'trunc'.*'trunk'"),
    row("armature: unknown joint", r.RandomArmature(joints=("left_hop",)), biped, r"no joint 'left_hop'.*'left_hip'"),
    row("damping: unknown joint", r.RandomDamping(joints=("left_hop",)), biped, r"no joint 'left_hop'.*'left_hip'"),
    row("joint zero: unknown joint", r.RandomJointZero(joints=("left_hop",)), biped,
        r"no joint 'left_hop'.*'left_hip'"),
    row("alignment: unknown site", r.RandomImuAlignment(site="imo"), biped, r"no site 'imo'.*'imu'"),
    # The trunk has 5 kg.
    *(row(f"body mass: nothing would be left, {added} kg", r.RandomBodyMass(body="trunk", added=(added, 1.0)), biped,
          rf"'trunk' adds {added} kg to 5 kg, which must stay positive") for added in (-5.0, -6.0)),
    row("motor strength: of a servo without a force range", r.RandomMotorStrength(), velocity_servo,
        r"force range of actuator 'right_hip'"),
    row("joint friction: the model was not edited", r.RandomJointFriction(), biped,
        r"Pass its edit_spec to compile_model"),
    row("joint stiffness: a named joint without one", r.RandomJointStiffness(joints=("left_hip", "right_hip")),
        springy_biped, r"in each of left_hip, right_hip"),
]
# fmt: on


def at_model(model, **fields):
    return dataclasses.replace(make_context(model=biped(), **fields), model=model(), physics=model().start())


@pytest.mark.parametrize(("term", "model", "before", "expected"), VALUES)
def test_value(term, model, before, expected):
    drawn = term(at_model(model, overrides=before(make_context()) if before else {}))
    for field, value in expected.items():
        np.testing.assert_allclose(drawn[field], value, rtol=1e-6, err_msg=field)


@pytest.mark.parametrize(("term", "model", "pick", "bounds", "options"), RANGES)
def test_draws_fill_the_range_and_stay_within_and_are_apart(term, model, pick, bounds, options):
    low, high = bounds
    drawn_nd = np.asarray(pick(draws(lambda key: term(at_model(model, key=key)))))
    np.testing.assert_allclose(drawn_nd.min(0), low, **options)
    np.testing.assert_allclose(drawn_nd.max(0), high, **options)
    assert ((drawn_nd >= low - 1e-6) & (drawn_nd <= high + 1e-6)).all()
    # The standard error of a correlation over 300 draws is 1 / sqrt(300) = 0.06.
    correlation_dd = np.atleast_2d(np.corrcoef(drawn_nd.T))
    assert (np.abs(correlation_dd - np.eye(len(correlation_dd))) < 0.25).all()


@pytest.mark.parametrize(("term", "model", "message", "_"), ERRORS)
def test_is_an_error(term, model, message, _):
    with pytest.raises(ConfigError, match=message):
        term(at_model(model))


def overrides_of(term, model=biped):
    """Fields that the randomizer draws for many keys, in rows."""
    return draws(lambda key: term(at_model(model, key=key)))


def test_friction_leaves_the_torsional_and_rolling_as_they_are():
    friction_ng3 = overrides_of(r.RandomFriction())["geom_friction"]
    np.testing.assert_allclose(friction_ng3[:, :, 1:], np.tile(MODEL.geom_friction[:, 1:], (300, 1, 1)), rtol=1e-6)


def test_friction_when_geoms_are_named_leaves_the_others_as_they_are():
    # The biped's friction is MuJoCo's own, 1.
    term = r.RandomFriction(friction=(1.4, 1.9), geoms=("left_foot", "right_foot"))
    friction_ng = overrides_of(term)["geom_friction"][:, :, 0]
    np.testing.assert_array_equal(np.flatnonzero((np.asarray(friction_ng) != 1.0).all(axis=0)), FEET)
    np.testing.assert_array_equal(np.delete(friction_ng, FEET, axis=1), 1.0)


def test_body_mass_changes_no_other_body_but_the_subtrees_that_carry_it():
    drawn = overrides_of(r.RandomBodyMass(body="left_leg", added=(0.5, 1.0)))
    np.testing.assert_allclose(
        np.delete(drawn["body_mass"], LEFT_LEG, axis=1), np.tile([0, 5, 1.2], (300, 1)), rtol=1e-6
    )
    added_n = drawn["body_mass"][:, LEFT_LEG] - 1.2
    added_nb = drawn["body_subtreemass"] - MODEL.body_subtreemass
    for body in (WORLD, TRUNK, LEFT_LEG):
        np.testing.assert_allclose(added_nb[:, body], added_n, atol=1e-5)
    np.testing.assert_allclose(added_nb[:, RIGHT_LEG], 0.0, atol=1e-6)


def test_body_mass_has_the_subtree_masses_as_mujoco_sums_them():
    drawn = r.RandomBodyMass(body="right_leg")(make_context())
    expected_b = np.array(drawn["body_mass"])
    for body in (RIGHT_LEG, LEFT_LEG, TRUNK):
        expected_b[MODEL.body_parentid[body]] += expected_b[body]
    np.testing.assert_allclose(drawn["body_subtreemass"], expected_b, rtol=1e-6)


def test_center_of_mass_leaves_other_bodies_as_they_are_and_inertia_other_fields():
    ipos_b3 = r.RandomCenterOfMass(body="left_leg")(make_context())["body_ipos"]
    np.testing.assert_allclose(np.delete(ipos_b3, LEFT_LEG, 0), np.delete(MODEL.body_ipos, LEFT_LEG, 0), rtol=1e-6)
    assert list(r.RandomInertia(body="trunk")(make_context())) == ["body_inertia"]


def test_actuator_gains_when_ranges_are_wide_have_no_force_at_the_target_at_rest():
    drawn = overrides_of(r.RandomActuatorGains(kp_factor=WIDE, kd_factor=WIDE))
    np.testing.assert_allclose(drawn["actuator_gainprm"][:, :, 0], -drawn["actuator_biasprm"][:, :, 1], rtol=1e-6)


def with_overrides(model, overrides):
    changed_model = copy.copy(model().mj_model)
    for field, value in overrides.items():
        getattr(changed_model, field)[:] = value
    return changed_model


def test_motor_strength_above_one_lets_a_joint_with_a_limit_of_its_own_take_more():
    # 20 N m of the motor, of which the joint takes 8 * 1.5; the other joint has no limit, and the motor gives 20 * 1.5.
    model = with_overrides(limited_joint, r.RandomMotorStrength(factor=(1.5, 1.5))(at_model(limited_joint)))
    data = mujoco.MjData(model)
    data.ctrl = 20.0
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.qfrc_actuator[6:], [12.0, 30.0], rtol=1e-6)


def test_joint_zero_leaves_spring_limit_and_equality_of_a_fixed_tendon_where_they_are():
    overrides = r.RandomJointZero(max_offset=0.3)(at_model(with_tendons))
    forces = []
    for changes, offset_2 in ((overrides, overrides["qpos0"][7:]), ({}, np.zeros(2))):
        model = with_overrides(with_tendons, changes)
        data = mujoco.MjData(model)
        data.qpos[7:] = np.array([0.3, -0.1]) + offset_2
        mujoco.mj_forward(model, data)
        forces.append([data.qfrc_passive, data.qfrc_constraint])
    np.testing.assert_allclose(*forces, atol=1e-3)
    assert (np.abs(forces[0])[:, 6:] > 1).all()


def test_mass_factor_multiplies_inertia_alike_and_leaves_other_bodies():
    drawn = overrides_of(r.RandomMassFactor(bodies=("trunk", "left_leg"), factor=WIDE))
    factor_nb = np.asarray(drawn["body_mass"])[:, 1:] / MODEL.body_mass[1:]
    factor_nb3 = np.repeat(factor_nb[..., None], 3, axis=2)
    np.testing.assert_allclose(drawn["body_inertia"][:, 1:] / MODEL.body_inertia[1:], factor_nb3, rtol=1e-5)
    np.testing.assert_allclose(factor_nb[:, 2], 1.0, atol=1e-6)


def test_joint_friction_when_it_edits_a_model_keeps_friction_that_is_there():
    spec = biped_spec()
    spec.joint("left_hip").frictionloss = 0.3
    r.RandomJointFriction(joints=("left_hip",)).edit_spec(spec)
    assert (spec.joint("left_hip").frictionloss, spec.joint("right_hip").frictionloss) == (0.3, 0.0)
    r.RandomJointFriction().edit_spec(spec)
    assert (spec.joint("left_hip").frictionloss, spec.joint("root").frictionloss) == (0.3, 0.0)
    assert 0 < spec.joint("right_hip").frictionloss < 1e-5
    np.testing.assert_array_equal(overrides_of(r.RandomJointFriction(), springy_biped)["dof_frictionloss"][:, :6], 0.0)


def test_joint_zero_moves_spring_and_limits_by_the_same_number_and_not_the_base():
    drawn = overrides_of(r.RandomJointZero(max_offset=0.2), springy_biped)
    offset_nj = np.asarray(drawn["qpos0"][:, 7:])
    np.testing.assert_allclose(drawn["qpos_spring"][:, 7:], offset_nj, atol=1e-6)
    moved_nj2 = drawn["jnt_range"][:, 1:] - springy_biped().mj_model.jnt_range[1:]
    np.testing.assert_allclose(moved_nj2, np.repeat(offset_nj[..., None], 2, axis=2), atol=1e-6)
    np.testing.assert_array_equal(drawn["qpos0"][:, :7], np.tile(MODEL.qpos0[:7].astype(np.float32), (300, 1)))


def test_imu_alignment_turns_the_site_alone_about_all_axes_by_up_to_its_angle():
    quat_ns4 = np.asarray(overrides_of(r.RandomImuAlignment(site="imu", max_angle=0.3))["site_quat"])
    np.testing.assert_array_equal(np.ptp(quat_ns4[:, 1:], axis=0), 0.0)
    # Of a turn by an angle about an axis: (cos(angle / 2), sin(angle / 2) axis).
    xyz_n3 = quat_ns4[:, 0, 1:]
    angle_n = 2 * np.arcsin(np.linalg.norm(xyz_n3, axis=1))
    np.testing.assert_allclose([angle_n.min(), angle_n.max()], [0, 0.3], atol=0.01)
    axis_n3 = xyz_n3 / np.linalg.norm(xyz_n3, axis=1, keepdims=True)
    # Means of 300, each with a standard deviation of sqrt(1 / 3 / 300) = 0.033.
    np.testing.assert_allclose(axis_n3.mean(0), 0.0, atol=0.15)
