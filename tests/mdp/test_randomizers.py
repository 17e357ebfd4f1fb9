import numpy as np
import pytest

from ksim.mdp.randomizers import RandomBodyMass, RandomFriction
from ksim.types import ConfigError
from tests.mdp.contexts import biped, draws, make_context

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
    friction_ng3 = overrides_of(RandomFriction(friction=(0.4, 0.9), geoms=("left_foot", "right_foot")))["geom_friction"]
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
    before = RandomFriction(friction=(0.5, 0.5), geoms=("left_foot",))(make_context())
    after = RandomFriction(friction=(0.7, 0.7), geoms=("right_foot",))(make_context(overrides=before))
    feet = [MODEL.geom(name).id for name in ("left_foot", "right_foot")]
    np.testing.assert_allclose(after["geom_friction"][feet, 0], [0.5, 0.7], rtol=1e-6)


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (RandomFriction(geoms=("left_fot",)), r"no geom 'left_fot'.*'left_foot'"),
        (RandomBodyMass(body="trunc"), r"no body 'trunc'.*'trunk'"),
    ],
)
def test_randomizer_when_name_is_unknown_names_the_near_misses(term, message):
    with pytest.raises(ConfigError, match=message):
        term(make_context())
