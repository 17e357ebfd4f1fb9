"""Uneven ground: heightfields made of tiles of rising difficulty, and the height of the ground at any position."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.checks import CheckedModule, check_rule, ranged
from ksim.errors import ConfigError

HFIELD_NAME = "ksim_terrain"
_BASE_THICKNESS_M = 0.5


class AbstractTile(CheckedModule):
    """A kind of ground on a square tile. The edges of every tile have height 0, so tiles join."""

    @abstractmethod
    def heights(self, difficulty: float, num_points: int, spacing: float, rng: np.random.Generator) -> np.ndarray:
        """Heights, in m, of a square of points.

        Args:
            difficulty: From 0, the easiest, to 1.
            num_points: Points along each side.
            spacing: Distance between neighbours, in m.

        Returns:
            Heights, (points along y, points along x).
        """


class FlatTile(AbstractTile):
    """Level ground."""

    def heights(self, difficulty: float, num_points: int, spacing: float, rng: np.random.Generator) -> np.ndarray:
        return np.zeros((num_points, num_points))


class RoughTile(AbstractTile):
    """Random bumps. height: their range, in m, up and down, at the lowest and the highest difficulty.

    bump_m: distance between the bumps, in m; in between, the ground is bilinear.
    """

    height: tuple[float, float] = ranged((0.0, 0.06), least=0.0)
    bump_m: float = ranged(0.3, above=0.0)

    def heights(self, difficulty: float, num_points: int, spacing: float, rng: np.random.Generator) -> np.ndarray:
        amplitude = _between(self.height, difficulty)
        num_bumps = max(round((num_points - 1) * spacing / self.bump_m), 1) + 1
        coarse = rng.uniform(-amplitude, amplitude, (num_bumps, num_bumps))
        coarse[[0, -1]] = 0.0
        coarse[:, [0, -1]] = 0.0
        places = np.linspace(0, num_bumps - 1, num_points)
        weight = np.maximum(1 - np.abs(places[:, None] - np.arange(num_bumps)), 0.0)
        return weight @ coarse @ weight.T


class StairsTile(AbstractTile):
    """Concentric steps around a platform. step_height: of one step, in m, at the lowest and the highest difficulty.

    step_width: depth of a step, in m. platform_m: side of the platform, in m. down: the steps lead down to the platform
    instead of up.
    """

    step_height: tuple[float, float] = ranged((0.02, 0.12), least=0.0)
    step_width: float = ranged(0.4, above=0.0)
    platform_m: float = ranged(1.6, least=0.0)
    down: bool = False

    def heights(self, difficulty: float, num_points: int, spacing: float, rng: np.random.Generator) -> np.ndarray:
        from_edge = _distance_from_edge(num_points, spacing)
        # Rounded before floor, so that a step width that divides the distance gives whole steps.
        last = np.floor(np.round((from_edge.max() - self.platform_m / 2) / self.step_width, 6))
        steps = np.clip(np.floor(np.round(from_edge / self.step_width, 6)), 0, max(last, 0))
        return (-1 if self.down else 1) * _between(self.step_height, difficulty) * steps


class SlopeTile(AbstractTile):
    """A pyramid with a platform on top. slope: its incline, rise over run, at the lowest and the highest difficulty.

    platform_m: side of the platform, in m. down: a pit instead.
    """

    slope: tuple[float, float] = ranged((0.0, 0.4), least=0.0)
    platform_m: float = ranged(1.6, least=0.0)
    down: bool = False

    def heights(self, difficulty: float, num_points: int, spacing: float, rng: np.random.Generator) -> np.ndarray:
        from_edge = _distance_from_edge(num_points, spacing)
        run = np.minimum(from_edge, max(from_edge.max() - self.platform_m / 2, 0.0))
        return (-1 if self.down else 1) * _between(self.slope, difficulty) * run


class Terrain(CheckedModule):
    """A heightfield of square tiles that replaces the model's floor (its plane).

    Along x the difficulty rises from 0 to 1 in `num_levels` rows. Along y the kinds of tiles follow each other. The
    heightfield is centred on the world's origin and has a level border at the height of the floor.

    tiles: kinds of ground. num_levels: degrees of difficulty. tile_m: side of a tile, in m. spacing: distance between
    the points of the heightfield, in m. border_m: width of the border, in m. seed: random seed of the ground.
    """

    tiles: tuple[AbstractTile, ...] = (FlatTile(), RoughTile(), StairsTile(), StairsTile(down=True))
    num_levels: int = ranged(5, least=1)
    tile_m: float = 6.0
    spacing: float = 0.1
    border_m: float = 4.0
    seed: int = 0

    def __check_init__(self) -> None:
        if not self.tiles:
            raise ConfigError("A Terrain must have at least one kind of tile.")
        is_met = 0 < self.spacing <= self.tile_m / 2
        rule = f"positive and at most half of tile_m ({self.tile_m} m)"
        check_rule(f"Terrain's spacing ({self.spacing} m)", is_met, rule)
        check_rule(f"Terrain's border_m ({self.border_m} m)", self.border_m >= 0, "zero or more")

    def heights(self) -> np.ndarray:
        """Heights of all points, in m, (points along y, points along x)."""
        num_cells = round(self.tile_m / self.spacing)
        num_border = round(self.border_m / self.spacing)
        rng = np.random.default_rng(self.seed)
        inner = np.zeros((num_cells * len(self.tiles) + 1, num_cells * self.num_levels + 1))
        for column, tile in enumerate(self.tiles):
            for level in range(self.num_levels):
                difficulty = level / max(self.num_levels - 1, 1)
                patch = tile.heights(difficulty, num_cells + 1, self.tile_m / num_cells, rng)
                y, x = column * num_cells, level * num_cells
                inner[y : y + num_cells + 1, x : x + num_cells + 1] += patch
        return np.pad(inner, num_border)

    def tile_centers(self) -> Float[np.ndarray, "l k 2"]:
        """Centres of the tiles in the world, in m: (level, kind, x and y)."""
        x_l = (np.arange(self.num_levels) - (self.num_levels - 1) / 2) * self.tile_m
        y_k = (np.arange(len(self.tiles)) - (len(self.tiles) - 1) / 2) * self.tile_m
        return np.stack(np.meshgrid(x_l, y_k, indexing="ij"), axis=-1)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        """Turns the model's floor into the heightfield; its friction, material and contact bits stay.

        Raises:
            ConfigError: The model has no plane, or several.
        """
        planes = [geom for geom in spec.worldbody.geoms if geom.type == mujoco.mjtGeom.mjGEOM_PLANE]
        if len(planes) != 1:
            raise ConfigError(f"A terrain replaces the floor of a model with one plane, but it has {len(planes)}.")
        heights_yx = self.heights()
        low, high = heights_yx.min(), heights_yx.max()
        half_y, half_x = (np.array(heights_yx.shape) - 1) / 2 * self.tile_m / round(self.tile_m / self.spacing)
        spec.add_hfield(
            name=HFIELD_NAME,
            nrow=heights_yx.shape[0],
            ncol=heights_yx.shape[1],
            size=[half_x, half_y, max(high - low, 1e-3), _BASE_THICKNESS_M],
            userdata=heights_yx.ravel(),
        )
        floor = planes[0]
        floor.type, floor.hfieldname = mujoco.mjtGeom.mjGEOM_HFIELD, HFIELD_NAME
        floor.pos = [0.0, 0.0, floor.pos[2] + low]


class Ground:
    """The height of the ground of a compiled model: of its heightfield, or else of its floor.

    The floor is the first plane of the world that faces up. A heightfield must belong to worldbody and not be rotated.

    Attributes:
        half_size: Half the heightfield's extent along x and y, in m; None without a heightfield.
        center: The heightfield's centre in the world, in m.
        level: The height of the floor in the world, or of the heightfield's edge, in m; 0 if there is neither.
    """

    def __init__(self, mj_model: mujoco.MjModel) -> None:
        self.half_size: np.ndarray | None = None
        self.center = np.zeros(2)
        self.level = 0.0
        types = mj_model.geom_type.tolist()
        on_world = mj_model.geom_bodyid == 0
        # A quaternion with x = y = 0 rotates only about the vertical: a plane with such a quaternion faces up.
        faces_up = np.all(np.abs(mj_model.geom_quat[:, 1:3]) < 1e-6, axis=1)
        floors = np.flatnonzero(on_world & faces_up & (mj_model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)))
        if floors.size:
            self.level = float(mj_model.geom_pos[floors[0], 2])
        if int(mujoco.mjtGeom.mjGEOM_HFIELD) not in types:
            return
        geom = types.index(int(mujoco.mjtGeom.mjGEOM_HFIELD))
        if not on_world[geom] or np.abs(mj_model.geom_quat[geom, 1:]).max() > 1e-6:
            raise ConfigError(
                "The model's heightfield must be part of the world and not be turned, or the height of the ground is "
                "not known. Move it into worldbody, without a quat or euler."
            )
        field = int(mj_model.geom_dataid[geom])
        num_rows, num_cols = int(mj_model.hfield_nrow[field]), int(mj_model.hfield_ncol[field])
        start = int(mj_model.hfield_adr[field])
        data = mj_model.hfield_data[start : start + num_rows * num_cols].reshape(num_rows, num_cols)
        self.half_size = np.array(mj_model.hfield_size[field, :2])
        self.center = np.array(mj_model.geom_pos[geom, :2])
        heights_yx = data * mj_model.hfield_size[field, 2] + mj_model.geom_pos[geom, 2]
        self._heights_yx = heights_yx.astype(np.float32)
        self.level = float(heights_yx[0, 0])

    def height(self, position: Float[Array, "*n 2"] | Float[Array, "*n 3"]) -> Float[Array, "*n"]:
        """The height of the ground in the world, in m, under positions; beyond a heightfield, the height of its edge.

        As in MuJoCo, each cell of a heightfield is two triangles, split from its lowest to its highest corner.
        """
        if self.half_size is None:
            return jnp.full(position.shape[:-1], self.level)
        num_rows, num_cols = self._heights_yx.shape
        last = np.array([num_cols - 1, num_rows - 1])
        place = (position[..., :2] - self.center + self.half_size) / (2 * self.half_size) * last
        place = jnp.clip(place, 0.0, last)
        corner = jnp.minimum(place.astype(jnp.int32), last - 1)
        x, y = corner[..., 0], corner[..., 1]
        u, v = jnp.moveaxis(place - corner, -1, 0)
        heights_yx = jnp.asarray(self._heights_yx)
        here, across = heights_yx[y, x], heights_yx[y + 1, x + 1]
        right, up = heights_yx[y, x + 1], heights_yx[y + 1, x]
        return here + jnp.where(u >= v, (right - here) * u + (across - right) * v, (across - up) * u + (up - here) * v)


def _between(bounds: Sequence[float], fraction: float) -> float:
    return bounds[0] + fraction * (bounds[1] - bounds[0])


def _distance_from_edge(num_points: int, spacing: float) -> np.ndarray:
    """Distance of each point of a tile from the nearest edge, in m."""
    from_end = np.minimum(np.arange(num_points), np.arange(num_points)[::-1]) * spacing
    return np.minimum.outer(from_end, from_end)


def footprint(radius: float, spacing: float = 0.1) -> Float[np.ndarray, "n 2"]:
    """Points of a disc around the origin, in m, at which to sample the ground under a robot."""
    count = math.ceil(radius / spacing)
    line = np.arange(-count, count + 1) * spacing
    points = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    return points[np.linalg.norm(points, axis=1) <= radius + 1e-9]
