"""Resets: changes to the initial state, applied in order. It is the first keyframe, or the reference pose at rest."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp

from ksim.checks import check_field, ranged
from ksim.errors import ConfigError
from ksim.mdp.commands import motion_command
from ksim.mdp.term import Context, Term
from ksim.physics.names import add_to_base_velocity, place_base, tilt_base
from ksim.physics.terrain import footprint
from ksim.types import PhysicsState


class AbstractReset(Term):
    """A change to the initial state of an episode."""

    @abstractmethod
    def __call__(self, context: Context) -> PhysicsState:
        """The state with the change; derived fields are computed afterwards."""


class RandomJointPositions(AbstractReset):
    """Adds a uniform number from [-magnitude, magnitude], in rad, to joint positions, within the joint limits."""

    magnitude: float = ranged(0.1, least=0.0)
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

    magnitude: float = ranged(0.1, least=0.0)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> PhysicsState:
        places = context.model.names.joint_qvel(self.joints)
        offset_j = jax.random.uniform(context.key, (len(places),), minval=-self.magnitude, maxval=self.magnitude)
        return dataclasses.replace(context.physics, qvel=context.physics.qvel.at[places].add(offset_j))


class RandomBasePosition(AbstractReset):
    """Moves the base by uniform numbers: up to `max_offset`, in m, along x and y, up to `max_lift` upwards."""

    max_offset: float = ranged(0.5, least=0.0)
    max_lift: float = ranged(0.0, least=0.0)

    def __call__(self, context: Context) -> PhysicsState:
        high = jnp.array([self.max_offset, self.max_offset, self.max_lift])
        low = jnp.array([-self.max_offset, -self.max_offset, 0.0])
        offset_3 = jax.random.uniform(context.key, (3,), minval=low, maxval=high)
        return place_base(context.physics, context.model.names, offset_3, jnp.zeros(()))


class ToKeyframe(AbstractReset):
    """Starts from a keyframe of the model, by name, or from one of several with equal probability.

    Positions, velocities, activations and the poses of mocap bodies are those of the keyframe; its time and controls
    are ignored, because an episode starts at time 0 and its actions set the controls.
    """

    keyframes: tuple[str, ...]

    def __check_init__(self) -> None:
        if not self.keyframes:
            raise ConfigError("ToKeyframe names no keyframe. Name at least one.")

    def __call__(self, context: Context) -> PhysicsState:
        starts = [context.model.start(name) for name in self.keyframes]
        pick = jax.random.randint(context.key, (), 0, len(starts))
        start = jax.tree.map(lambda *x: jnp.stack(x)[pick], *starts)
        return dataclasses.replace(context.physics, qpos=start.qpos, qvel=start.qvel, act=start.act, extra=start.extra)


class ToPose(AbstractReset):
    """Sets joint positions. `pose`: rad by joint name; other joints are unchanged."""

    pose: Mapping[str, float]

    def __check_init__(self) -> None:
        if not self.pose:
            raise ConfigError("ToPose has an empty pose. Give it rad by the names of joints.")

    def __call__(self, context: Context) -> PhysicsState:
        names, joints = context.model.names, tuple(self.pose)
        places, range_j2 = names.joint_qpos(joints), names.joint_range(joints)
        for name, (low, high) in zip(joints, range_j2, strict=True):
            if not low <= self.pose[name] <= high:
                raise ConfigError(
                    f"ToPose puts joint {name!r} at {self.pose[name]:g} rad, which must be within its limits, "
                    f"{low:g} to {high:g}."
                )
        pose_j = jnp.array(list(self.pose.values()), jnp.float32)
        return dataclasses.replace(context.physics, qpos=context.physics.qpos.at[places].set(pose_j))


class ToMotion(AbstractReset):
    """Starts in the frame of a reference motion at which its command starts, with the velocities of that frame.

    Put it before resets that add noise. command: name of a `MotionCommand`.
    """

    command: str

    def __call__(self, context: Context) -> PhysicsState:
        command = motion_command(context, self.command)
        motions, frame = command.motions, command.start(context)
        qpos, qvel = jnp.asarray(motions.qpos)[frame], jnp.asarray(motions.qvel)[frame]
        return dataclasses.replace(context.physics, qpos=qpos, qvel=qvel)


class RandomBaseTilt(AbstractReset):
    """Tilts the base by uniform angles, in rad: up to `max_pitch` about its own y axis, then `max_roll` about its x."""

    max_roll: float = ranged(0.1, least=0.0)
    max_pitch: float = ranged(0.1, least=0.0)

    def __call__(self, context: Context) -> PhysicsState:
        high = jnp.array([self.max_roll, self.max_pitch])
        roll, pitch = jax.random.uniform(context.key, (2,), minval=-high, maxval=high)
        return tilt_base(context.physics, context.model.names, roll, pitch)


class RandomHeading(AbstractReset):
    """Turns the base about the vertical by a uniform angle from [-max_yaw, max_yaw], in rad."""

    max_yaw: float = ranged(math.pi, least=0.0)

    def __call__(self, context: Context) -> PhysicsState:
        yaw = jax.random.uniform(context.key, minval=-self.max_yaw, maxval=self.max_yaw)
        return place_base(context.physics, context.model.names, jnp.zeros(3), yaw)


class RandomBaseVelocity(AbstractReset):
    """Adds uniform numbers to the base's velocity: up to `max_lin_vel`, in m/s, horizontally, up to `max_yaw_rate`."""

    max_lin_vel: float = ranged(0.2, least=0.0)
    max_yaw_rate: float = ranged(0.2, least=0.0)

    def __call__(self, context: Context) -> PhysicsState:
        high = jnp.array([self.max_lin_vel, self.max_lin_vel, self.max_yaw_rate])
        x, y, yaw_rate = jax.random.uniform(context.key, (3,), minval=-high, maxval=high)
        zero = jnp.zeros(())
        lin_vel_3, ang_vel_3 = jnp.stack([x, y, zero]), jnp.stack([zero, zero, yaw_rate])
        return add_to_base_velocity(context.physics, context.model.names, lin_vel_3, ang_vel_3)


class RandomBaseMotion(AbstractReset):
    """Adds uniform numbers to all six components of the base's velocity.

    max_lin_vel: bounds, in m/s, along the world's x, y and z. max_ang_vel: bounds, in rad/s, about the base's own x, y
    and z.
    """

    max_lin_vel: tuple[float, float, float] = (0.2, 0.2, 0.2)
    max_ang_vel: tuple[float, float, float] = (0.2, 0.2, 0.2)

    def __check_init__(self) -> None:
        for field in ("max_lin_vel", "max_ang_vel"):
            value = getattr(self, field)
            is_met = len(value) == 3 and all(component >= 0 for component in value)
            check_field(self, field, is_met, "three numbers, at least 0")

    def __call__(self, context: Context) -> PhysicsState:
        high = jnp.array([*self.max_lin_vel, *self.max_ang_vel])
        change_6 = jax.random.uniform(context.key, (6,), minval=-high, maxval=high)
        return add_to_base_velocity(context.physics, context.model.names, change_6[:3], change_6[3:])


class OnTerrain(AbstractReset):
    """Starts on a tile of the terrain, drawn from those up to the level of a curriculum, and lifts the base onto it.

    level: name of the curriculum: its level 0 allows only the easiest tiles, 1 all; None allows all. easier: True also
    allows easier tiles than the level's, as for a common curriculum; False does not, as for
    `TerrainCurriculum`. spread: largest distance from the tile's centre along x and y, in m. radius: radius of a disc
    around the base, in m, on whose highest ground the base is put.
    """

    level: str | None = None
    easier: bool = eqx.field(default=True, kw_only=True)
    spread: float = ranged(0.5, least=0.0)
    radius: float = ranged(0.4, least=0.0)

    def __check_init__(self) -> None:
        check_field(self, "easier", self.easier or self.level is not None, "True where no level is given")

    def __call__(self, context: Context) -> PhysicsState:
        terrain = context.model.terrain
        if terrain is None:
            raise ConfigError("OnTerrain needs a terrain. Define get_terrain, or leave the term out.")
        center_lk2 = jnp.asarray(terrain.tile_centers(), jnp.float32)
        num_levels, num_kinds, _ = center_lk2.shape
        hardest = num_levels - 1 if self.level is None else context.level(self.level) * (num_levels - 1)
        level_key, kind_key, offset_key = jax.random.split(context.key, 3)
        drawn = jnp.floor(jax.random.uniform(level_key) * (1 + hardest))
        level = (drawn if self.easier else jnp.round(hardest)).astype(jnp.int32)
        kind = jax.random.randint(kind_key, (), 0, num_kinds)
        place_2 = center_lk2[jnp.minimum(level, num_levels - 1), kind]
        place_2 += jax.random.uniform(offset_key, (2,), minval=-self.spread, maxval=self.spread)
        ground = jnp.max(context.model.ground.height(place_2 + footprint(self.radius)))
        offset_3 = jnp.concatenate([place_2, ground[None] - context.model.ground.level])
        return place_base(context.physics, context.model.names, offset_3, jnp.zeros(()))
