"""Observations of base, bodies, sites and the centre of mass."""

from abc import abstractmethod

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.checks import ranged
from ksim.errors import ConfigError
from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import (
    base_ang_vel_body,
    base_ang_vel_world,
    base_lin_vel_world,
    base_orientation,
    base_position,
    in_base_frame,
)
from ksim.physics.rotations import multiply_quaternions, rotate_inverse, yaw_of


class ProjectedGravity(AbstractObservation):
    """Direction of gravity in the base's frame, a unit vector: (0, 0, -1) when upright."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        orientation = base_orientation(context.physics, context.model.names)
        return rotate_inverse(jnp.array([0.0, 0.0, -1.0]), orientation)


class BaseLinearVelocity(AbstractObservation):
    """Linear velocity of the base in its own frame, in m/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        names = context.model.names
        lin_vel_world_3 = base_lin_vel_world(context.physics, names)
        return rotate_inverse(lin_vel_world_3, base_orientation(context.physics, names))


class BaseAngularVelocity(AbstractObservation):
    """Angular velocity of the base in its own frame, in rad/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_body(context.physics, context.model.names)


class BaseHeight(AbstractObservation):
    """Height of the base above the ground under it, in m."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, ""]:
        return context.height_above_ground(base_position(context.physics, context.model.names))


class BasePosition(AbstractObservation):
    """Position of the base in the world, in m. For the critic only: no robot sensor measures it."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_position(context.physics, context.model.names)


class BaseOrientation(AbstractObservation):
    """Orientation of the base in the world, a unit quaternion (w, x, y, z) with w >= 0."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "4"]:
        orientation = base_orientation(context.physics, context.model.names)
        # q and -q are the same rotation; the policy should see one of them.
        return jnp.where(orientation[0] < 0, -orientation, orientation)


class BaseLinearVelocityWorld(AbstractObservation):
    """Linear velocity of the base in the world frame, in m/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_lin_vel_world(context.physics, context.model.names)


class BaseAngularVelocityWorld(AbstractObservation):
    """Angular velocity of the base in the world frame, in rad/s."""

    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_world(context.physics, context.model.names)


class BodyPosition(AbstractObservation):
    """Positions of bodies relative to the base, in the base's frame, in m. `bodies`: their names."""

    needs = ("xpos",)
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        position_b3 = context.derived("xpos")[_indices(context, "body", self.bodies)]
        return _relative_to_base(context, position_b3)


class HeightScan(AbstractObservation):
    """Height of the ground relative to the base, in m, at points of a grid that shares the base's heading.

    size: extent of the grid, in m, forward and sideways, centred on the base. spacing: between its points, in m; the
    grid has as many as fit in its size, as many behind the base as ahead of it, and as many right as left.
    offset: usual height of the base, in m, added to the values. clip: bound of the result, in m.
    """

    size: tuple[float, float] = (1.0, 0.6)
    spacing: float = 0.1
    offset: float = 0.0
    clip: float = ranged(1.0, above=0.0)
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        if self.spacing <= 0 or min(self.size) < 0:
            raise ConfigError(
                f"HeightScan of {self.size} m needs a spacing ({self.spacing} m) above 0 and no negative size."
            )

    def __call__(self, context: Context) -> Float[Array, " p"]:
        # Rounded first: a spacing that divides the size must count as a whole one.
        last = np.floor(np.round(np.array(self.size) / self.spacing, 6))
        forward, sideways = ((np.arange(n + 1) - n / 2) * self.spacing for n in last)
        grid_p2 = np.stack(np.meshgrid(forward, sideways, indexing="ij"), axis=-1).reshape(-1, 2)
        names = context.model.names
        yaw, position_3 = yaw_of(base_orientation(context.physics, names)), base_position(context.physics, names)
        turn_22 = jnp.array([[jnp.cos(yaw), jnp.sin(yaw)], [-jnp.sin(yaw), jnp.cos(yaw)]])
        height_p = context.model.ground.height(position_3[:2] + grid_p2 @ turn_22) - position_3[2] + self.offset
        return jnp.clip(height_p, -self.clip, self.clip)


class SitePosition(AbstractObservation):
    """Positions of sites relative to the base, in the base's frame, in m. `sites`: their names."""

    needs = ("site_xpos",)
    sites: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        position_s3 = context.derived("site_xpos")[_indices(context, "site", self.sites)]
        return _relative_to_base(context, position_s3)


class BodyPositionWorld(AbstractObservation):
    """Positions of bodies in the world, in m. `bodies`: their names."""

    needs = ("xpos",)
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return context.derived("xpos")[_indices(context, "body", self.bodies)]


class SitePositionWorld(AbstractObservation):
    """Positions of sites in the world, in m. `sites`: their names."""

    needs = ("site_xpos",)
    sites: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return context.derived("site_xpos")[_indices(context, "site", self.sites)]


class BodyOrientation(AbstractObservation):
    """Orientations of bodies in the world, unit quaternions (w, x, y, z). `bodies`: their names."""

    needs = ("xquat",)
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 4"]:
        return context.derived("xquat")[_indices(context, "body", self.bodies)]


class BodyOrientationInBase(AbstractObservation):
    """Orientations of bodies relative to the base, unit quaternions (w, x, y, z) with w >= 0. `bodies`: their names."""

    needs = ("xquat",)
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 4"]:
        xquat_b4 = context.derived("xquat")
        # The base's of the same instant as the bodies'.
        to_base_4 = xquat_b4[context.model.names.base_body()] * np.array([1.0, -1.0, -1.0, -1.0])
        bodies = _indices(context, "body", self.bodies)
        return _one_sign(jnp.stack([multiply_quaternions(to_base_4, xquat_b4[body]) for body in bodies]))


class SiteOrientation(AbstractObservation):
    """Orientations of sites in the world, unit quaternions (w, x, y, z) with w >= 0. `sites`: their names."""

    needs = ("xquat",)
    sites: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "s 4"]:
        model = context.model.mj_model
        xquat_b4 = context.derived("xquat")
        site_quat_s4 = context.overrides.get("site_quat", jnp.asarray(model.site_quat, jnp.float32))
        sites = _indices(context, "site", self.sites)
        return _one_sign(
            jnp.stack([multiply_quaternions(xquat_b4[model.site_bodyid[site]], site_quat_s4[site]) for site in sites])
        )


class CenterOfMassPosition(AbstractObservation):
    """Position of the whole robot's centre of mass relative to the base, in the base's frame, in m."""

    needs = ("subtree_com",)
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "3"]:
        base = context.model.names.base_body()
        return _relative_to_base(context, context.derived("subtree_com")[base][None])[0]


class CenterOfMassInertia(AbstractObservation):
    """MuJoCo's `cinert` of every body but the world: ten numbers of its inertia, in kg, kg m and kg m^2."""

    needs = ("cinert",)
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 10"]:
        return context.derived("cinert")[1:]


class CenterOfMassVelocity(AbstractObservation):
    """MuJoCo's `cvel` of every body but the world: angular, in rad/s, then linear velocity about the centre of mass."""

    needs = ("cvel",)
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 6"]:
        return context.derived("cvel")[1:]


def _indices(context: Context, kind: str, names: tuple[str, ...]) -> np.ndarray:
    return np.array([context.model.names.index(kind, name) for name in names])


def _one_sign(quaternion_n4: Float[Array, "n 4"]) -> Float[Array, "n 4"]:
    # q and -q are the same rotation; the policy should see one of them.
    return jnp.where(quaternion_n4[:, :1] < 0, -quaternion_n4, quaternion_n4)


def _relative_to_base(context: Context, position_n3: Float[Array, "n 3"]) -> Float[Array, "n 3"]:
    physics, names = context.physics, context.model.names
    return in_base_frame(physics, names, position_n3 - base_position(physics, names))


class BodyLinearVelocity(AbstractObservation):
    """Linear velocities of bodies through the world, in the base's frame, in m/s. `bodies`: their names."""

    needs = ("cvel", "subtree_com", "xpos")
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return in_base_frame(context.physics, context.model.names, _body_velocity(context, self.bodies))


class BodyLinearVelocityWorld(AbstractObservation):
    """Linear velocities of bodies in the world frame, in m/s. `bodies`: their names."""

    needs = ("cvel", "subtree_com", "xpos")
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return _body_velocity(context, self.bodies)


class BodyAngularVelocity(AbstractObservation):
    """Angular velocities of bodies through the world, in the base's frame, in rad/s. `bodies`: their names."""

    needs = ("cvel",)
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return in_base_frame(context.physics, context.model.names, _body_ang_vel(context, self.bodies))


class BodyAngularVelocityWorld(AbstractObservation):
    """Angular velocities of bodies in the world frame, in rad/s. `bodies`: their names."""

    needs = ("cvel",)
    bodies: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return _body_ang_vel(context, self.bodies)


class SiteLinearVelocity(AbstractObservation):
    """Linear velocities of sites through the world, in the base's frame, in m/s. `sites`: their names."""

    needs = ("cvel", "subtree_com", "site_xpos")
    sites: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return in_base_frame(context.physics, context.model.names, _site_velocity(context, self.sites))


class SiteLinearVelocityWorld(AbstractObservation):
    """Linear velocities of sites in the world frame, in m/s. `sites`: their names."""

    needs = ("cvel", "subtree_com", "site_xpos")
    sites: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return _site_velocity(context, self.sites)


class SiteAngularVelocity(AbstractObservation):
    """Angular velocities of sites through the world, in the base's frame, in rad/s. `sites`: their names."""

    needs = ("cvel",)
    sites: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        _, body_s = _sites(context, self.sites)
        return in_base_frame(context.physics, context.model.names, context.derived("cvel")[body_s, :3])


class SiteAngularVelocityWorld(AbstractObservation):
    """Angular velocities of sites in the world frame, in rad/s. `sites`: their names."""

    needs = ("cvel",)
    sites: tuple[str, ...]
    noise: AbstractNoise | None = None

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        _, body_s = _sites(context, self.sites)
        return context.derived("cvel")[body_s, :3]


def _body_velocity(context: Context, bodies: tuple[str, ...]) -> Float[Array, "b 3"]:
    body_b = np.array([context.model.names.index("body", name) for name in bodies])
    return velocity_at(context, context.derived("xpos")[body_b], body_b)


def _body_ang_vel(context: Context, bodies: tuple[str, ...]) -> Float[Array, "b 3"]:
    body_b = np.array([context.model.names.index("body", name) for name in bodies])
    return context.derived("cvel")[body_b, :3]


def _site_velocity(context: Context, sites: tuple[str, ...]) -> Float[Array, "s 3"]:
    site_s, body_s = _sites(context, sites)
    return velocity_at(context, context.derived("site_xpos")[site_s], body_s)


def _sites(context: Context, sites: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The sites' indices, and those of the bodies that carry them."""
    site_s = np.array([context.model.names.index("site", name) for name in sites])
    return site_s, context.model.mj_model.site_bodyid[site_s]


def velocity_at(context: Context, position_n3: Float[Array, "n 3"], body_n: np.ndarray) -> Float[Array, "n 3"]:
    """World-frame velocities, in m/s, of points that move with bodies."""
    ang_vel_n3, lin_vel_n3 = jnp.split(context.derived("cvel")[body_n], 2, axis=1)
    # MuJoCo's `cvel` is the velocity of a point at the centre of mass of the body's whole tree.
    center_n3 = context.derived("subtree_com")[context.model.mj_model.body_rootid[body_n]]
    return lin_vel_n3 + jnp.cross(ang_vel_n3, position_n3 - center_n3)


class _Acceleration(AbstractObservation):
    """An acceleration, from the velocities of the last two control steps."""

    @abstractmethod
    def velocity(self, context: Context) -> Float[Array, " n"]:
        """The velocity to differentiate."""

    def init(self, context: Context) -> tuple[Array, Array]:
        velocity_n = self.velocity(context)
        return velocity_n, jnp.zeros_like(velocity_n)

    def update(self, context: Context) -> tuple[Array, Array]:
        before_n, _ = context.memory
        velocity_n = self.velocity(context)
        return velocity_n, (velocity_n - before_n) / context.dt


class BaseLinearAcceleration(_Acceleration):
    """Linear acceleration of the base in its own frame over the last control step, in m/s^2, without gravity."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_lin_vel_world(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return rotate_inverse(context.memory[1], base_orientation(context.physics, context.model.names))


class BaseLinearAccelerationWorld(_Acceleration):
    """Linear acceleration of the base in the world frame over the last control step, in m/s^2, without gravity."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_lin_vel_world(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.memory[1]


class BaseAngularAcceleration(_Acceleration):
    """Angular acceleration of the base in its own frame over the last control step, in rad/s^2."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_body(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.memory[1]


class BaseAngularAccelerationWorld(_Acceleration):
    """Angular acceleration of the base in the world frame over the last control step, in rad/s^2."""

    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return base_ang_vel_world(context.physics, context.model.names)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.memory[1]


class JointAcceleration(_Acceleration):
    """Accelerations of joints over the last control step, in rad/s^2 (m/s^2 for slides). `joints`: default all."""

    joints: tuple[str, ...] | None = None
    noise: AbstractNoise | None = None

    def velocity(self, context: Context) -> Float[Array, " j"]:
        return context.physics.qvel[context.model.names.joint_qvel(self.joints)]

    def __call__(self, context: Context) -> Float[Array, " j"]:
        return context.memory[1]
