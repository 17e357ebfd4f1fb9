import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp.randomizers import (
    RandomActuatorGains,
    RandomArmature,
    RandomBodyMass,
    RandomCenterOfMass,
    RandomDamping,
    RandomFriction,
    RandomGravity,
    RandomInertia,
    RandomMotorStrength,
)
from ksim.physics import compile_model
from tests.support.contexts import DT, biped, draws, make_context
from tests.support.robots import biped_spec

MODEL = biped().mj_model
# Of the biped: the trunk has 5 kg, each leg 1.2 kg.
WORLD, TRUNK, LEFT_LEG, RIGHT_LEG = range(4)


def overrides_of(term, **context):
    """Fields that the randomizer draws for many keys, in rows."""
    return draws(lambda key: term(make_context(key=key, **context)))


def test_random_friction_when_drawn_is_one_number_for_all_geoms_that_fills_its_range():
    sliding_ng = overrides_of(RandomFriction(friction=(0.4, 0.9)))["geom_friction"][:, :, 0]
    np.testing.assert_array_equal(np.ptp(sliding_ng, axis=1), 0.0)
    np.testing.assert_allclose([sliding_ng.min(), sliding_ng.max()], [0.4, 0.9], atol=0.01)
    assert ((sliding_ng >= 0.4) & (sliding_ng <= 0.9)).all()


def test_random_friction_when_drawn_leaves_the_torsional_and_rolling_as_they_are():
    friction_ng3 = overrides_of(RandomFriction())["geom_friction"]
    np.testing.assert_allclose(friction_ng3[:, :, 1:], np.tile(MODEL.geom_friction[:, 1:], (300, 1, 1)), rtol=1e-6)


def test_random_friction_when_geoms_are_named_leaves_the_others_as_they_are():
    # The biped's friction is MuJoCo's own, 1.
    friction_ng3 = overrides_of(RandomFriction(friction=(1.4, 1.9), geoms=("left_foot", "right_foot")))["geom_friction"]
    feet = [MODEL.geom(name).id for name in ("left_foot", "right_foot")]
    changed_g = (np.asarray(friction_ng3)[:, :, 0] != 1.0).all(axis=0)
    np.testing.assert_array_equal(np.flatnonzero(changed_g), feet)
    np.testing.assert_array_equal(np.delete(friction_ng3[:, :, 0], feet, axis=1), 1.0)


def test_random_body_mass_when_drawn_fills_its_range_around_the_body_s_own():
    # 5 - 1 to 5 + 2 kg
    mass_nb = overrides_of(RandomBodyMass(body="trunk", added=(-1.0, 2.0)))["body_mass"]
    np.testing.assert_allclose([mass_nb[:, TRUNK].min(), mass_nb[:, TRUNK].max()], [4.0, 7.0], atol=0.03)
    assert ((mass_nb[:, TRUNK] >= 4.0) & (mass_nb[:, TRUNK] <= 7.0)).all()


def test_random_body_mass_when_drawn_leaves_other_bodies_as_they_are():
    mass_nb = overrides_of(RandomBodyMass(body="trunk"))["body_mass"]
    np.testing.assert_allclose(np.delete(mass_nb, TRUNK, axis=1), np.tile([0, 1.2, 1.2], (300, 1)), rtol=1e-6)


def test_random_body_mass_when_a_leg_grows_so_do_the_subtrees_that_carry_it():
    drawn = overrides_of(RandomBodyMass(body="left_leg", added=(0.5, 1.0)))
    added_n = drawn["body_mass"][:, LEFT_LEG] - 1.2
    added_nb = drawn["body_subtreemass"] - MODEL.body_subtreemass
    for body in (WORLD, TRUNK, LEFT_LEG):
        np.testing.assert_allclose(added_nb[:, body], added_n, atol=1e-5)
    np.testing.assert_allclose(added_nb[:, RIGHT_LEG], 0.0, atol=1e-6)


def test_random_body_mass_when_applied_as_mujoco_sums_it_has_its_subtree_masses():
    drawn = RandomBodyMass(body="right_leg")(make_context())
    mass_b, subtree_b = np.asarray(drawn["body_mass"]), np.asarray(drawn["body_subtreemass"])
    expected_b = mass_b.copy()
    for body in (RIGHT_LEG, LEFT_LEG, TRUNK):
        expected_b[MODEL.body_parentid[body]] += expected_b[body]
    np.testing.assert_allclose(subtree_b, expected_b, rtol=1e-6)


def test_random_body_mass_when_another_came_before_adds_to_what_it_left():
    before = RandomBodyMass(body="left_leg", added=(1.0, 1.0))(make_context())
    after = RandomBodyMass(body="trunk", added=(2.0, 2.0))(make_context(overrides=before))
    # 5 + 2 and 1.2 + 1 kg; the whole 7.4 + 3 kg.
    np.testing.assert_allclose(after["body_mass"], [0, 7.0, 2.2, 1.2], rtol=1e-6)
    np.testing.assert_allclose(after["body_subtreemass"], [10.4, 10.4, 2.2, 1.2], rtol=1e-6)


def test_random_friction_when_another_came_before_keeps_what_it_left():
    before = RandomFriction(friction=(1.5, 1.5), geoms=("left_foot",))(make_context())
    after = RandomFriction(friction=(1.7, 1.7), geoms=("right_foot",))(make_context(overrides=before))
    feet = [MODEL.geom(name).id for name in ("left_foot", "right_foot")]
    np.testing.assert_allclose(after["geom_friction"][feet, 0], [1.5, 1.7], rtol=1e-6)


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (RandomFriction(geoms=("left_fot",)), r"no geom 'left_fot'.*'left_foot'"),
        (RandomBodyMass(body="trunc"), r"no body 'trunc'.*'trunk'"),
        (RandomCenterOfMass(body="trunc"), r"no body 'trunc'.*'trunk'"),
        (RandomInertia(body="trunc"), r"no body 'trunc'.*'trunk'"),
        (RandomArmature(joints=("left_hop",)), r"no joint 'left_hop'.*'left_hip'"),
        (RandomDamping(joints=("left_hop",)), r"no joint 'left_hop'.*'left_hip'"),
    ],
)
def test_randomizer_when_name_is_unknown_names_the_near_misses(term, message):
    with pytest.raises(ConfigError, match=message):
        term(make_context())


@pytest.mark.parametrize("added", [-5.0, -6.0])
def test_random_body_mass_when_nothing_would_be_left_is_an_error_that_says_so(added):
    # The trunk has 5 kg.
    with pytest.raises(ConfigError, match=rf"'trunk' adds {added} kg to 5 kg, which must stay positive"):
        RandomBodyMass(body="trunk", added=(added, 1.0))(make_context())


def test_random_center_of_mass_when_drawn_fills_its_range_around_the_body_s_own_along_each_axis():
    ipos_nb3 = overrides_of(RandomCenterOfMass(body="left_leg", max_offset=0.02))["body_ipos"]
    offset_n3 = np.asarray(ipos_nb3[:, LEFT_LEG] - MODEL.body_ipos[LEFT_LEG])
    np.testing.assert_allclose(offset_n3.min(0), -0.02, atol=0.002)
    np.testing.assert_allclose(offset_n3.max(0), 0.02, atol=0.002)
    # The standard error of a correlation over 300 draws is 1 / sqrt(300) = 0.06.
    assert (np.abs(np.corrcoef(offset_n3.T) - np.eye(3)) < 0.25).all()


def test_random_center_of_mass_when_drawn_leaves_other_bodies_as_they_are():
    ipos_b3 = RandomCenterOfMass(body="left_leg")(make_context())["body_ipos"]
    np.testing.assert_allclose(
        np.delete(ipos_b3, LEFT_LEG, axis=0), np.delete(MODEL.body_ipos, LEFT_LEG, axis=0), rtol=1e-6
    )


def test_random_inertia_when_drawn_multiplies_all_moments_of_the_body_alone():
    drawn = RandomInertia(body="trunk", factor=(1.5, 1.5))(make_context())
    assert list(drawn) == ["body_inertia"]
    factor_b = np.array([[1], [1.5], [1], [1]])
    np.testing.assert_allclose(drawn["body_inertia"], factor_b * MODEL.body_inertia, rtol=1e-6)


def test_random_inertia_when_drawn_is_one_factor_for_all_moments_that_fills_its_range():
    inertia_nb3 = overrides_of(RandomInertia(body="trunk", factor=(0.8, 1.3)))["body_inertia"]
    factor_n3 = inertia_nb3[:, TRUNK] / MODEL.body_inertia[TRUNK]
    np.testing.assert_allclose(np.ptp(factor_n3, axis=1), 0.0, atol=1e-6)
    np.testing.assert_allclose([factor_n3.min(), factor_n3.max()], [0.8, 1.3], atol=0.03)


# The six of the base come first and have neither armature nor damping.
ARMATURE, DAMPING = [0] * 6 + [0.01, 0.01], [0] * 6 + [0.2, 0.2]


@pytest.mark.parametrize(
    ("kind", "field", "before"), [(RandomArmature, "dof_armature", ARMATURE), (RandomDamping, "dof_damping", DAMPING)]
)
def test_random_armature_and_damping_when_joints_are_named_multiply_theirs_alone(kind, field, before):
    drawn = kind(factor=(1.5, 1.5), joints=("right_hip",))(make_context())
    np.testing.assert_allclose(drawn[field], [*before[:7], 1.5 * before[7]], rtol=1e-6)


@pytest.mark.parametrize(("kind", "field"), [(RandomArmature, "dof_armature"), (RandomDamping, "dof_damping")])
def test_random_armature_and_damping_when_another_came_before_multiply_what_it_left(kind, field):
    # 2 * 1.5
    before = kind(factor=(2.0, 2.0))(make_context())
    after = kind(factor=(1.5, 1.5))(make_context(overrides=before))
    np.testing.assert_allclose(after[field], 3 * getattr(MODEL, field), rtol=1e-6)


def test_random_actuator_gains_when_drawn_keep_servos_servos():
    # kp 40 * 1.5 both in the gain of the target and in the pull of the position, kd 2 * 0.5.
    drawn = RandomActuatorGains(kp_factor=(1.5, 1.5), kd_factor=(0.5, 0.5))(make_context())
    np.testing.assert_allclose(drawn["actuator_gainprm"][:, 0], [60, 60], rtol=1e-6)
    np.testing.assert_allclose(drawn["actuator_biasprm"][:, :3], [[0, -60, -1], [0, -60, -1]], rtol=1e-6)


def test_random_actuator_gains_when_ranges_are_wide_have_no_force_at_the_target_at_rest():
    drawn = overrides_of(RandomActuatorGains(kp_factor=(0.5, 2.0), kd_factor=(0.5, 2.0)))
    np.testing.assert_allclose(drawn["actuator_gainprm"][:, :, 0], -drawn["actuator_biasprm"][:, :, 1], rtol=1e-6)


def test_random_actuator_gains_when_actuators_are_motors_is_an_error_that_says_what_was_found():
    motors = compile_model(biped_spec(), dt=0.004, ctrl_dt=DT)
    with pytest.raises(ConfigError, match=r"no actuator is a position servo \(found: force\)"):
        RandomActuatorGains()(make_context(model=motors))


def test_random_motor_strength_when_drawn_multiplies_both_ends_of_the_force_range():
    # -20 to 20 N m
    drawn = RandomMotorStrength(factor=(0.5, 0.5))(make_context())
    np.testing.assert_allclose(drawn["actuator_forcerange"], [[-10, 10], [-10, 10]], rtol=1e-6)


@pytest.mark.parametrize(
    ("term", "factors_of"),
    [
        (RandomArmature(factor=(0.5, 2.0)), lambda drawn: drawn["dof_armature"][:, 6:] / 0.01),
        (RandomDamping(factor=(0.5, 2.0)), lambda drawn: drawn["dof_damping"][:, 6:] / 0.2),
        (RandomMotorStrength(factor=(0.5, 2.0)), lambda drawn: drawn["actuator_forcerange"][:, :, 1] / 20),
        (
            RandomActuatorGains(kp_factor=(0.5, 2.0), kd_factor=(0.5, 2.0)),
            lambda drawn: drawn["actuator_biasprm"][:, :, 1:3].reshape(300, 4) / np.array([-40, -2, -40, -2]),
        ),
    ],
    ids=["armature", "damping", "motor_strength", "actuator_gains"],
)
def test_factors_when_drawn_fill_their_range_for_each_joint_apart(term, factors_of):
    factor_nj = np.asarray(factors_of(overrides_of(term)))
    np.testing.assert_allclose(factor_nj.min(0), 0.5, atol=0.05)
    np.testing.assert_allclose(factor_nj.max(0), 2.0, atol=0.05)
    # The standard error of a correlation over 300 draws is 1 / sqrt(300) = 0.06.
    assert (np.abs(np.corrcoef(factor_nj.T) - np.eye(factor_nj.shape[1])) < 0.25).all()


def test_random_gravity_when_drawn_fills_its_range_around_the_model_s_own():
    gravity_n3 = overrides_of(RandomGravity(magnitude=0.5))["opt.gravity"]
    np.testing.assert_allclose(gravity_n3.min(0), [-0.5, -0.5, -9.81 - 0.5], atol=0.05)
    np.testing.assert_allclose(gravity_n3.max(0), [0.5, 0.5, -9.81 + 0.5], atol=0.05)


def test_random_gravity_when_another_came_before_adds_to_what_it_left():
    before = {"opt.gravity": jnp.array([1.0, 2.0, 3.0])}
    after = RandomGravity(magnitude=0.0)(make_context(overrides=before))
    np.testing.assert_allclose(after["opt.gravity"], [1, 2, 3])
