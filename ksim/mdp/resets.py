"""Starts of episodes: changes to the default pose at rest, applied in order."""

import dataclasses
import math
from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np

from ksim.mdp.term import Context, Term
from ksim.physics.names import add_to_base_velocity, place_base
from ksim.physics.terrain import footprint
from ksim.types import ConfigError, PhysicsState


class AbstractReset(Term):
    """A change to the positions and velocities that an episode starts from."""

    @abstractmethod
    def __call__(self, context: Context) -> PhysicsState:
        """The state with the change; derived fields are computed afterwards."""


class RandomJointPositions(AbstractReset):
    """Adds a uniform number from [-magnitude, magnitude], in rad, to joints, kept within their limits."""

    magnitude: float = 0.1
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> PhysicsState:
        names, qpos = context.model.names, context.physics.qpos
        places = names.joint_qpos(self.joints)
        offset_j = jax.random.uniform(context.key, (len(places),), minval=-self.magnitude, maxval=self.magnitude)
        low, high = names.joint_range(self.joints).T
        moved_j = jnp.clip(qpos[places] + offset_j, low, high)
        return dataclasses.replace(context.physics, qpos=qpos.at[places].set(moved_j))


class RandomJointVelocities(AbstractReset):
    """Adds a uniform number from [-magnitude, magnitude], in rad/s, to joints' velocities."""

    magnitude: float = 0.1
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> PhysicsState:
        places = context.model.names.joint_qvel(self.joints)
        offset_j = jax.random.uniform(context.key, (len(places),), minval=-self.magnitude, maxval=self.magnitude)
        return dataclasses.replace(context.physics, qvel=context.physics.qvel.at[places].add(offset_j))


class RandomBasePosition(AbstractReset):
    """Moves the base by uniform numbers: up to `max_offset`, in m, along x and y, up to `max_lift` upwards."""

    max_offset: float = 0.5
    max_lift: float = 0.0

    def __call__(self, context: Context) -> PhysicsState:
        high = jnp.array([self.max_offset, self.max_offset, self.max_lift])
        low = jnp.array([-self.max_offset, -self.max_offset, 0.0])
        offset_3 = jax.random.uniform(context.key, (3,), minval=low, maxval=high)
        return place_base(context.physics, context.model.names, offset_3, jnp.zeros(()))


class ToKeyframe(AbstractReset):
    """Starts from a keyframe of the model, by name, or from one of several, each as likely."""

    keyframes: tuple[str, ...]

    def __call__(self, context: Context) -> PhysicsState:
        mj_model = context.model.mj_model
        indices = np.array([context.model.names.index("key", name) for name in self.keyframes])
        pick = jax.random.randint(context.key, (), 0, len(indices))
        qpos_kq = jnp.asarray(mj_model.key_qpos[indices], jnp.float32)
        qvel_kv = jnp.asarray(mj_model.key_qvel[indices], jnp.float32)
        return dataclasses.replace(context.physics, qpos=qpos_kq[pick], qvel=qvel_kv[pick])


class RandomHeading(AbstractReset):
    """Turns the base about the vertical by a uniform angle from [-max_yaw, max_yaw], in rad."""

    max_yaw: float = math.pi

    def __call__(self, context: Context) -> PhysicsState:
        yaw = jax.random.uniform(context.key, minval=-self.max_yaw, maxval=self.max_yaw)
        return place_base(context.physics, context.model.names, jnp.zeros(3), yaw)


class RandomBaseVelocity(AbstractReset):
    """Adds uniform numbers to the base's velocity: up to `max_lin_vel`, in m/s, horizontally, up to `max_yaw_rate`."""

    max_lin_vel: float = 0.2
    max_yaw_rate: float = 0.2

    def __call__(self, context: Context) -> PhysicsState:
        high = jnp.array([self.max_lin_vel, self.max_lin_vel, self.max_yaw_rate])
        x, y, yaw_rate = jax.random.uniform(context.key, (3,), minval=-high, maxval=high)
        zero = jnp.zeros(())
        lin_vel_3, ang_vel_3 = jnp.stack([x, y, zero]), jnp.stack([zero, zero, yaw_rate])
        return add_to_base_velocity(context.physics, context.model.names, lin_vel_3, ang_vel_3)


class OnTerrain(AbstractReset):
    """Starts on a tile of the terrain, drawn from those up to the level of a curriculum, and lifts the base onto it.

    level: name of the curriculum, whose 0 allows the easiest tiles only and 1 all; None allows all. spread: how far,
    in m, from the tile's centre along x and y. radius: of the disc around the base whose highest ground counts, in m.
    """

    level: str | None = None
    spread: float = 0.5
    radius: float = 0.4

    def __call__(self, context: Context) -> PhysicsState:
        terrain = context.model.terrain
        if terrain is None:
            raise ConfigError("OnTerrain needs a terrain. Define get_terrain, or leave the term out.")
        center_lk2 = jnp.asarray(terrain.tile_centers(), jnp.float32)
        num_levels, num_kinds, _ = center_lk2.shape
        allowed = num_levels if self.level is None else 1 + context.level(self.level) * (num_levels - 1)
        level_key, kind_key, offset_key = jax.random.split(context.key, 3)
        level = jnp.floor(jax.random.uniform(level_key) * allowed).astype(jnp.int32)
        kind = jax.random.randint(kind_key, (), 0, num_kinds)
        place_2 = center_lk2[jnp.minimum(level, num_levels - 1), kind]
        place_2 += jax.random.uniform(offset_key, (2,), minval=-self.spread, maxval=self.spread)
        ground = jnp.max(context.model.ground.height(place_2 + footprint(self.radius)))
        offset_3 = jnp.concatenate([place_2, ground[None]])
        return place_base(context.physics, context.model.names, offset_3, jnp.zeros(()))
