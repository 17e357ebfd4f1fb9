import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.physics import FlatTile, Ground, RoughTile, SlopeTile, StairsTile, Terrain, compile_model
from tests.support.robots import biped_spec

RNG = np.random.default_rng(0)


def compiled(terrain):
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=0.02, terrain=terrain)


def test_stairs_when_climbed_rise_by_the_height_of_a_step_per_width():
    tile = StairsTile(step_height=(0.0, 0.1), step_width=0.4, platform_m=0.8)
    # Along the middle of 4 m: 0 to 0.4 m level, then a step each 0.4 m until the platform of 0.8 m in the middle.
    profile = tile.heights(1.0, 41, 0.1, RNG)[20]
    expected = [0.0] * 4 + [0.1] * 4 + [0.2] * 4 + [0.3] * 4 + [0.4] * 5
    np.testing.assert_allclose(profile[:21], expected, atol=1e-9)
    np.testing.assert_allclose(profile[::-1], profile)


def test_stairs_down_are_stairs_up_upside_down():
    up, down = (StairsTile(down=down).heights(0.5, 41, 0.1, RNG) for down in (False, True))
    np.testing.assert_allclose(up, -down)


def test_slope_rises_by_its_incline_up_to_the_platform():
    profile = SlopeTile(slope=(0.0, 0.5), platform_m=1.0).heights(0.4, 41, 0.1, RNG)[20]
    np.testing.assert_allclose(profile[10], 0.2 * 1.0)  # 1 m from the edge, incline 0.4 * 0.5
    np.testing.assert_allclose(profile[[15, 20, 25]], 0.2 * 1.5)


@pytest.mark.parametrize(("difficulty", "amplitude"), [(0.0, 0.0), (0.5, 0.05), (1.0, 0.1)])
def test_rough_stays_within_its_height_and_nearly_fills_it(difficulty, amplitude):
    heights = RoughTile(height=(0.0, 0.1)).heights(difficulty, 61, 0.1, RNG)
    assert np.abs(heights).max() <= amplitude + 1e-9
    assert np.abs(heights).max() >= 0.9 * amplitude


@pytest.mark.parametrize("tile", [FlatTile(), RoughTile(), StairsTile(), SlopeTile()])
def test_every_tile_ends_at_height_zero(tile):
    heights = tile.heights(1.0, 31, 0.2, RNG)
    for edge in (heights[0], heights[-1], heights[:, 0], heights[:, -1]):
        np.testing.assert_allclose(edge, 0.0, atol=1e-9)


def test_tiles_lie_by_difficulty_along_x_and_by_kind_along_y():
    terrain = Terrain(tiles=(FlatTile(), StairsTile(step_height=(0.0, 0.1))), num_levels=3, tile_m=4.0, border_m=1.0)
    center_lk2 = terrain.tile_centers()
    np.testing.assert_allclose(center_lk2[:, 0], [(-4, -2), (0, -2), (4, -2)])
    np.testing.assert_allclose(center_lk2[:, 1], [(-4, 2), (0, 2), (4, 2)])
    ground = compiled(terrain).ground
    np.testing.assert_allclose(ground.half_size, [7.0, 5.0])  # 3 and 2 tiles of 4 m, and the border
    height_lk = np.asarray(ground.height(jnp.asarray(center_lk2)))
    # 3 steps to the platform of 1.6 m, 0, 0.05 and 0.1 m each.
    np.testing.assert_allclose(height_lk, [(0, 0), (0, 0.15), (0, 0.3)], atol=1e-5)


def test_ground_is_where_a_ray_of_mujoco_meets_it():
    model = compiled(Terrain(tiles=(RoughTile(height=(0.05, 0.2)),), num_levels=2, tile_m=3.0))
    data = mujoco.MjData(model.mj_model)
    mujoco.mj_forward(model.mj_model, data)
    position_n2 = np.random.default_rng(1).uniform((-3, -1.5), (3, 1.5), (50, 2))
    seen_n = []
    for x, y in position_n2:
        floor_only = np.array([1, 0, 0, 0, 0, 0], np.uint8)
        distance = mujoco.mj_ray(
            model.mj_model, data, np.array([x, y, 3.0]), np.array([0, 0, -1.0]), floor_only, 1, 1, np.zeros(1, np.int32)
        )
        seen_n.append(3.0 - distance)
    assert np.ptp(seen_n) > 0.1
    np.testing.assert_allclose(model.ground.height(jnp.asarray(position_n2)), seen_n, atol=1e-4)


def test_ground_beyond_the_heightfield_is_that_of_its_edge():
    model = compiled(Terrain(border_m=2.0))
    np.testing.assert_allclose(model.ground.height(jnp.array([[1e3, 0.0], [0.0, -1e3]])), 0.0, atol=1e-6)


def test_ground_of_a_plane_is_its_height():
    spec = mujoco.MjSpec.from_string(
        "<mujoco><worldbody><geom type='plane' size='1 1 1' pos='0 0 .3'/></worldbody></mujoco>"
    )
    np.testing.assert_allclose(Ground(spec.compile()).height(jnp.zeros((4, 3))), [0.3] * 4)


def test_terrain_keeps_what_the_floor_was():
    spec = biped_spec()
    spec.geom("floor").friction = [0.7, 0.01, 0.001]
    floor = compile_model(spec, dt=0.004, ctrl_dt=0.02, terrain=Terrain()).mj_model.geom("floor")
    assert floor.type == mujoco.mjtGeom.mjGEOM_HFIELD
    assert (floor.contype, floor.conaffinity) == (1, 0)
    np.testing.assert_allclose(floor.friction, [0.7, 0.01, 0.001])


def test_terrain_when_the_model_has_no_floor_says_so():
    spec = biped_spec()
    spec.delete(spec.geom("floor"))
    with pytest.raises(ConfigError, match="one plane, but it has 0"):
        compile_model(spec, dt=0.004, ctrl_dt=0.02, terrain=Terrain())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tiles": ()}, "at least one kind"),
        ({"num_levels": 0}, "num_levels=0"),
        ({"spacing": 4.0}, r"spacing \(4.0 m\)"),
        ({"border_m": -1.0}, r"border_m \(-1.0 m\)"),
    ],
)
def test_terrain_that_cannot_be_is_an_error(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Terrain(**arguments)


def test_ground_is_the_floor_and_not_a_wall():
    wall = "<geom type='plane' size='1 1 1' pos='2 0 1' euler='0 -90 0'/>"
    floor = "<geom type='plane' size='1 1 1' pos='0 0 .3' euler='0 0 30'/>"
    spec = mujoco.MjSpec.from_string(f"<mujoco><worldbody>{wall}{floor}</worldbody></mujoco>")
    np.testing.assert_allclose(Ground(spec.compile()).height(jnp.zeros(3)), 0.3, rtol=1e-6)


def test_heightfield_that_is_turned_is_an_error():
    spec = biped_spec()
    Terrain().edit_spec(spec)
    spec.geom("floor").quat = [1, 0.1, 0, 0]
    with pytest.raises(ConfigError, match="not be turned"):
        compile_model(spec, dt=0.004, ctrl_dt=0.02)
