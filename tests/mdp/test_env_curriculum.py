"""Per-env curricula: when a robot moves to another row of the terrain, by contexts made by hand."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp.env_curriculum import TerrainCurriculum
from ksim.physics import FlatTile, PhysicsModel, Terrain, compile_model
from tests.support.contexts import draws, make_context
from tests.support.robots import ACTUATORS, biped_spec

# Crossed 2 m from the centre of a tile; a step is a third.
TERRAIN = Terrain(tiles=(FlatTile(),), num_levels=4, tile_m=4.0, border_m=1.0, spacing=1.0)
UP, STAY, DOWN = 1 / 3, 0.0, -1 / 3
DT, NUM_STEPS = 0.1, 20
"""Few and long steps: whole episodes last 2 s."""


@functools.cache
def model_on(terrain: Terrain | None) -> PhysicsModel:
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=DT, edits=[ACTUATORS.edit_spec], terrain=terrain)


def make_curriculum(**fields):
    return TerrainCurriculum(**({"command": "velocity", "episode_s": NUM_STEPS * DT} | fields))


def change_after(positions_t2, command_3, term=None):
    """The change of the level if the episode ends at the last of these positions, one for each step."""
    term = term or make_curriculum()
    at = lambda position_2, step: make_context(
        model=model_on(TERRAIN),
        ground_position=position_2,
        commands={"velocity": jnp.asarray(command_3, jnp.float32)},
        episode_step=jnp.int32(step),
    )
    context = at((7.0, -3.0), 0)
    context = dataclasses.replace(context, memory=term.init(context))
    for step, position_2 in enumerate(positions_t2, 1):
        context = dataclasses.replace(at(position_2, step), memory=context.memory)
        context = dataclasses.replace(context, memory=term.update(context))
    return float(term(context))


def straight(speed, num_steps=NUM_STEPS):
    """Positions of a robot that walks along y from (7, -3)."""
    return [(7.0, -3.0 + speed * DT * step) for step in range(1, num_steps + 1)]


@pytest.mark.parametrize(
    ("walked_m", "commanded_m", "expected"),
    # The border is 2 m away. Commanded for the whole episode of 2 s.
    [(2.1, 2.0, UP), (1.9, 2.0, STAY), (1.9, 3.9, DOWN), (2.1, 9.0, UP), (0.9, 2.0, DOWN), (0.0, 0.0, STAY)],
)
def test_row_changes_by_the_distance_from_the_start(walked_m, commanded_m, expected):
    whole_s = NUM_STEPS * DT
    change = change_after(straight(walked_m / whole_s), (commanded_m / whole_s, 0.0, 0.0))
    np.testing.assert_allclose(change, expected, atol=1e-6)


def test_robot_that_crosses_its_tile_and_comes_back_moves_up():
    out = straight(3.0, num_steps=NUM_STEPS // 2)  # 3 m
    np.testing.assert_allclose(change_after([*out, *reversed(out)], (1.0, 0.0, 0.0)), UP, atol=1e-6)


def test_robot_that_falls_on_its_way_is_judged_by_the_whole_episode():
    # At the commanded 1 m/s for 0.8 s of 2 s: 0.8 m of 2 m, less than half. After 1.2 s it is more.
    command = (0.0, 1.0, 0.0)
    np.testing.assert_allclose(change_after(straight(1.0, num_steps=8), command), DOWN, atol=1e-6)
    np.testing.assert_allclose(change_after(straight(1.0, num_steps=12), command), STAY, atol=1e-6)


def test_robot_that_is_commanded_to_turn_need_not_leave_its_circle():
    # 1 m/s at 2 pi rad/s: a circle of 0.32 m across, of which half is asked for; the path is 2 m long.
    command = (1.0, 0.0, 2 * np.pi)
    for walked_m, expected in ((0.2, STAY), (0.12, DOWN)):
        change = change_after(straight(walked_m / (NUM_STEPS * DT)), command)
        np.testing.assert_allclose(change, expected, atol=1e-6)


def test_thresholds_are_fields():
    far = make_curriculum(up_fraction=0.75)  # 3 m
    np.testing.assert_allclose(change_after(straight(1.25), (1.0, 0.0, 0.0), far), STAY, atol=1e-6)  # 2.5 m
    strict = make_curriculum(down_fraction=0.9)
    np.testing.assert_allclose(change_after(straight(0.8), (1.0, 0.0, 0.0), strict), DOWN, atol=1e-6)


def test_draw_is_any_of_the_rows_with_equal_probability():
    term = make_curriculum()
    level_n = np.asarray(draws(lambda key: term.draw(key, model_on(TERRAIN))))
    levels, counts = np.unique(np.round(level_n, 4), return_counts=True)
    np.testing.assert_allclose(levels, [0, 1 / 3, 2 / 3, 1], atol=1e-4)
    assert counts.min() > 0.7 * len(level_n) / 4


ONE_ROW = Terrain(tiles=(FlatTile(),), num_levels=1, tile_m=4.0, border_m=1.0, spacing=1.0)


@pytest.mark.parametrize(
    ("fields", "terrain", "message"),
    [
        ({}, None, "needs a terrain. Define get_terrain"),
        ({}, ONE_ROW, "at least two levels, but num_levels is 1"),
        ({"start": 0.5}, TERRAIN, r"start=0.5, which must be a row of the terrain: 0, 0.3333, 0.6667, 1\."),
        ({"command": "velocty"}, TERRAIN, "no command 'velocty'. Did you mean 'velocity'"),
        ({"command": "height"}, TERRAIN, r"three numbers, but 'height' has shape \(1,\)"),
    ],
)
def test_curriculum_that_cannot_work_is_an_error(fields, terrain, message):
    commands = {"velocity": jnp.zeros(3), "height": jnp.zeros(1)}
    with pytest.raises(ConfigError, match=message):
        make_curriculum(**fields).init(make_context(model=model_on(terrain), commands=commands))
