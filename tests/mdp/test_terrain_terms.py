"""Terms that see the ground: two tiles side by side, level and a pyramid of stairs, at one degree of difficulty."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import observations, resets, rewards, terminations
from ksim.physics import FlatTile, StairsTile, Terrain, compile_model
from tests.support.contexts import biped, draws, make_context, turned
from tests.support.robots import ACTUATORS, biped_spec

# Tiles of 4 m: level at y = -2, stairs at y = 2 up to a platform at 3 * 0.1 m. 6 m x 10 m in all.
STAIRS = StairsTile(step_height=(0.1, 0.1), step_width=0.4, platform_m=1.6)
TERRAIN = Terrain(tiles=(FlatTile(), STAIRS), num_levels=1, tile_m=4.0, border_m=1.0)
LEVELS = Terrain(tiles=(FlatTile(),), num_levels=3, tile_m=2.0, border_m=0.5)


def context_at(x, y, height, **fields):
    return make_context(model=biped(terrain=TERRAIN), ground_position=(x, y), height=height, **fields)


@pytest.mark.parametrize(("y", "expected"), [(-2.0, 0.9), (2.0, 0.6)])
def test_base_height_is_above_the_ground_under_the_base(y, expected):
    np.testing.assert_allclose(observations.BaseHeight()(context_at(0.0, y, 0.9)), expected, rtol=1e-5)


def test_base_too_low_is_judged_by_the_ground():
    term = terminations.BaseTooLow(height=0.3)
    assert not term(context_at(0.0, -2.0, 0.4))
    assert term(context_at(0.0, 2.0, 0.4 + 0.15))  # 0.25 m above the platform


def test_foot_clearance_is_above_the_ground_under_each_foot():
    # Both feet at 0.35 m: over level ground 0.35 m clear, over the platform at 0.3 m only 0.05 m, 0.03 m too low.
    term = rewards.FootClearance(sites=("left_foot", "right_foot"), target=0.08)
    spec = biped_spec()
    term.edit_spec(spec)
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[ACTUATORS.edit_spec], terrain=TERRAIN)
    site_xpos = np.zeros((model.mj_model.nsite, 3))
    for site, y in (("left_foot", -2.0), ("right_foot", 2.0)):
        site_xpos[model.names.index("site", site)] = (0.0, y, 0.35)
    moving = {f"ksim_{site}_velocity": (2.0, 0.0, 0.0) for site in ("left_foot", "right_foot")}
    context = make_context(model=model, sensors=moving, derived={"site_xpos": site_xpos})
    np.testing.assert_allclose(term(context), 0.03**2 * 2.0, rtol=1e-3)


def test_height_scan_sees_the_stairs_in_the_base_s_heading():
    # At y = 0.9, facing +y (left): the base is over the second step, 0.2 m; 0.4 m ahead 0.3 m, behind 0.1 m.
    term = observations.HeightScan(size=(0.8, 0.0), spacing=0.4, offset=0.5)
    context = context_at(0.0, 1.0, 0.7, orientation=turned("z", 90))
    # Relative to the base at 0.7 m, and 0.5 added.
    np.testing.assert_allclose(term(context), np.array([0.1, 0.2, 0.3]) - 0.7 + 0.5, atol=1e-5)


def test_height_scan_runs_from_behind_to_ahead_and_from_right_to_left():
    # Facing +x, to the left are the stairs: of each row of the grid, the left point is the higher.
    term = observations.HeightScan(size=(0.4, 0.8), spacing=0.4)
    scan_22 = np.reshape(term(context_at(0.0, 1.0, 0.5)), (2, 3))
    np.testing.assert_allclose(scan_22, [[-0.4, -0.3, -0.2]] * 2, atol=1e-5)


@pytest.mark.parametrize(("size", "axis"), [((0.5, 0.0), 0), ((0.0, 0.5), 1)])
def test_height_scan_when_the_spacing_does_not_divide_the_size_is_centred_on_the_base(size, axis, monkeypatch):
    # Four points fit in 0.5 m at 0.15 m apart, 0.45 m in all. On a slope of 1, heights are places.
    context = make_context(height=0.0)
    monkeypatch.setattr(context.model.ground, "height", lambda position: position[..., axis])
    scan = observations.HeightScan(size=size, spacing=0.15)(context)
    np.testing.assert_allclose(scan, [-0.225, -0.075, 0.075, 0.225], atol=1e-6)


def test_height_scan_is_clipped():
    term = observations.HeightScan(size=(0.0, 0.0), clip=0.25)
    np.testing.assert_allclose(term(context_at(0.0, -2.0, 0.9)), [-0.25])


@pytest.mark.parametrize(("x", "y", "expected"), [(1.9, 0.0, False), (2.1, 0.0, True), (0.0, -4.1, True)])
def test_off_terrain_is_within_the_margin_of_its_edge(x, y, expected):
    # 6 m along x and 10 m along y, less 1 m: up to 2 m and 4 m from the centre.
    assert bool(terminations.OffTerrain(margin=1.0)(context_at(x, y, 0.5))) is expected


def start_positions(term, terrain, level=None):
    model = biped(terrain=terrain)
    levels = {} if level is None else {"hardness": jnp.float32(level)}

    def start(key):
        context = make_context(model=model, height=0.5, levels=levels)
        return term(dataclasses.replace(context, key=key)).qpos[:3]

    return np.asarray(draws(start))


def test_on_terrain_starts_on_every_kind_of_tile_and_as_high_above_it():
    position_n3 = start_positions(resets.OnTerrain(spread=0.3, radius=0.2), TERRAIN)
    on_stairs_n = position_n3[:, 1] > 0
    assert 0.3 < on_stairs_n.mean() < 0.7
    # Up to 0.3 m from the centre and 0.2 m around it is within the platform's 0.8 m.
    np.testing.assert_allclose(position_n3[on_stairs_n, 2], 0.5 + 0.3, rtol=1e-5)
    np.testing.assert_allclose(position_n3[~on_stairs_n, 2], 0.5, rtol=1e-5)
    offset_n2 = np.abs(position_n3[:, :2] - np.where(on_stairs_n[:, None], [0.0, 2.0], [0.0, -2.0]))
    assert 0.25 < offset_n2.max() <= 0.3 + 1e-5


def test_on_terrain_puts_the_base_as_high_above_the_terrain_as_it_was_above_the_floor():
    spec = biped_spec()
    spec.geom("floor").pos = [0, 0, -0.5]
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02, terrain=TERRAIN)
    np.testing.assert_allclose(model.ground.height(jnp.array([1e3, 0.0])), -0.5, atol=1e-6)
    context = make_context(model=model, height=0.1)
    start = lambda key: resets.OnTerrain(spread=0.3, radius=0.2)(dataclasses.replace(context, key=key)).qpos[:3]
    position_n3 = np.asarray(draws(start, 20))
    np.testing.assert_allclose(position_n3[:, 2] - model.ground.height(jnp.asarray(position_n3)), 0.6, atol=1e-5)


@pytest.mark.parametrize(("level", "expected"), [(0.0, {-2}), (0.5, {-2, 0}), (1.0, {-2, 0, 2})])
def test_on_terrain_starts_on_tiles_up_to_the_level_of_its_curriculum(level, expected):
    position_n3 = start_positions(resets.OnTerrain(level="hardness", spread=0.1), LEVELS, level)
    assert set(np.round(position_n3[:, 0] / 2).astype(int) * 2) == expected


@pytest.mark.parametrize(("level", "expected"), [(0.0, {-2}), (0.4, {0}), (0.5, {0}), (1.0, {2})])
def test_on_terrain_without_easier_tiles_starts_on_those_of_the_level(level, expected):
    term = resets.OnTerrain(level="hardness", easier=False, spread=0.1)
    position_n3 = start_positions(term, LEVELS, level)
    assert set(np.round(position_n3[:, 0] / 2).astype(int) * 2) == expected


@pytest.mark.parametrize("term", [resets.OnTerrain(), terminations.OffTerrain()])
def test_term_of_a_terrain_without_one_is_an_error(term):
    with pytest.raises(ConfigError, match="Define get_terrain"):
        term(make_context(key=jax.random.key(0)))


def test_height_scan_over_a_plane_is_level():
    np.testing.assert_allclose(observations.HeightScan(size=(0.2, 0.2))(make_context(height=0.5)), [-0.5] * 9)
