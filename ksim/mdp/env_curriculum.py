"""Per-env curricula: each environment has its own level, which moves when its episodes end."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.checks import check_range, ranged, required
from ksim.errors import ConfigError
from ksim.mdp.term import Context, Term
from ksim.physics.model import PhysicsModel


class AbstractEnvCurriculum(Term):
    """A level from 0 (easiest) to 1 (hardest) for each environment, which moves when its episodes end.

    Terms read it as `context.level(name)`; it stays the same during an episode. An environment that would rise above 1
    continues at a level from `draw`, so that no level is forgotten. Episodes of evaluations and of the viewer also have
    levels from `draw`.

    Attributes:
        start: The level of each environment's first episode.
    """

    start: eqx.AbstractVar[float]

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, ""]:
        """The change of the level if the episode ends with this step. It is ignored while the episode continues.

        The context is the one that rewards see: the commands that were in force, and whether the robot fell
        (`terminated`). To judge the whole episode, keep a memory, as any term can.
        """

    def draw(self, key: PRNGKeyArray, model: PhysicsModel) -> Float[Array, ""]:
        """A level drawn from all levels with equal probability; by default uniform from 0 to 1."""
        return jax.random.uniform(key)

    def __check_init__(self) -> None:
        check_range(self, "start", least=0.0, most=1.0)


class _Walk(eqx.Module):
    """The distance that a robot has come in this episode.

    Attributes:
        start_2: Horizontal position at the start, in m, in the world.
        farthest_m: Largest horizontal distance from the start.
        commanded_3: Position, in m, and heading, in rad, of a robot that starts at 0 and follows the commands exactly.
        commanded_m: Largest distance of that robot from its start.
    """

    start_2: Float[Array, "2"]
    farthest_m: Float[Array, ""]
    commanded_3: Float[Array, "3"]
    commanded_m: Float[Array, ""]


class TerrainCurriculum(AbstractEnvCurriculum):
    """Up one row of the terrain when the robot crosses its tile, down one when it walks less than half as commanded.

    The "game-inspired curriculum" of Rudin et al. 2021, "Learning to Walk in Minutes Using Massively Parallel Deep
    Reinforcement Learning" (arXiv:2109.11978). When an episode ends,

        farthest > up_fraction * tile_m                             the environment moves up,
        else farthest < down_fraction * commanded * whole / lasted  it moves down,

    where `farthest` is the largest horizontal distance of the robot from its start during the episode. `commanded` is
    the same distance for a robot that moves exactly as commanded: for a constant velocity, speed times the `lasted`
    seconds of the episode. So `commanded * whole / lasted` is the distance commanded for a `whole` episode of
    `episode_s`, also if the robot fell early. Above the last row the level is drawn from all rows.

    Start episodes with the reset `OnTerrain(level=name, easier=False)`.

    command: name of a velocity command: forward, leftward, yaw rate. episode_s: the time limit of an episode, in s.
    up_fraction: of the side of a tile; 0.5 is the distance from its centre to its border. start: the first row, from
    0, the easiest, to 1, the hardest.
    """

    command: str
    episode_s: float = required(above=0.0)
    up_fraction: float = ranged(0.5, above=0.0)
    down_fraction: float = ranged(0.5, least=0.0, most=1.0)
    start: float = 0.0

    def init(self, context: Context) -> _Walk:
        self._check(context)
        zero = jnp.zeros(())
        return _Walk(context.base.position[:2], zero, jnp.zeros(3), zero)

    def update(self, context: Context) -> _Walk:
        walk: _Walk = context.memory
        position_2 = context.base.position[:2]
        forward, leftward, yaw_rate = context.command(self.command)
        x, y, yaw = walk.commanded_3
        cos, sin = jnp.cos(yaw), jnp.sin(yaw)
        velocity_3 = jnp.stack([cos * forward - sin * leftward, sin * forward + cos * leftward, yaw_rate])
        commanded_3 = jnp.stack([x, y, yaw]) + velocity_3 * context.dt
        return _Walk(
            start_2=walk.start_2,
            farthest_m=jnp.maximum(walk.farthest_m, jnp.linalg.norm(position_2 - walk.start_2)),
            commanded_3=commanded_3,
            commanded_m=jnp.maximum(walk.commanded_m, jnp.linalg.norm(commanded_3[:2])),
        )

    def __call__(self, context: Context) -> Float[Array, ""]:
        num_levels, tile_m = self._terrain(context.model)
        walk: _Walk = context.memory
        lasted_s = jnp.maximum(context.episode_step, 1) * context.dt
        whole_m = walk.commanded_m * jnp.maximum(self.episode_s, lasted_s) / lasted_s
        is_too_near = walk.farthest_m < self.down_fraction * whole_m
        rows = jnp.where(walk.farthest_m > self.up_fraction * tile_m, 1.0, jnp.where(is_too_near, -1.0, 0.0))
        return rows / (num_levels - 1)

    def draw(self, key: PRNGKeyArray, model: PhysicsModel) -> Float[Array, ""]:
        num_levels, _ = self._terrain(model)
        return jax.random.randint(key, (), 0, num_levels) / (num_levels - 1)

    def _terrain(self, model: PhysicsModel) -> tuple[int, float]:
        """The terrain's number of levels, and the side of its tiles, in m."""
        terrain = model.terrain
        if terrain is None:
            raise ConfigError("TerrainCurriculum needs a terrain. Define get_terrain, or leave the curriculum out.")
        if terrain.num_levels < 2:
            raise ConfigError(
                f"TerrainCurriculum needs a terrain of at least two levels, but num_levels is {terrain.num_levels}. "
                "Give the Terrain more, or leave the curriculum out."
            )
        return terrain.num_levels, terrain.tile_m

    def _check(self, context: Context) -> None:
        last = self._terrain(context.model)[0] - 1
        if abs(self.start * last - round(self.start * last)) > 1e-3:
            rows = ", ".join(f"{row / last:.4g}" for row in range(last + 1))
            raise ConfigError(f"TerrainCurriculum has start={self.start}, which must be a row of the terrain: {rows}.")
        shape = context.command(self.command).shape
        if shape != (3,):
            raise ConfigError(
                f"TerrainCurriculum needs a velocity command of three numbers, but {self.command!r} has shape {shape}."
            )
