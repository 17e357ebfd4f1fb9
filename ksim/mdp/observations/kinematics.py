"""Observations of base, bodies, sites and the centre of mass."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.checks import ranged
from ksim.errors import ConfigError
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import ChangeOfVelocity, Context
from ksim.physics.rotations import multiply_quaternions, rotate_inverse, yaw_of


class ProjectedGravity(AbstractObservation):
    """Direction of gravity in the base's frame, a unit vector: (0, 0, -1) when upright."""

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return rotate_inverse(jnp.array([0.0, 0.0, -1.0]), context.base.orientation)


class BaseLinearVelocity(AbstractObservation):
    """Linear velocity of the base in its own frame, in m/s."""

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return rotate_inverse(context.base.lin_vel_world, context.base.orientation)


class BaseAngularVelocity(AbstractObservation):
    """Angular velocity of the base in its own frame, in rad/s."""

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.base.ang_vel_body


class BaseHeight(AbstractObservation):
    """Height of the base above the ground under it, in m."""

    def __call__(self, context: Context) -> Float[Array, ""]:
        return context.height_above_ground(context.base.position)


class BasePosition(AbstractObservation):
    """Position of the base in the world, in m. For the critic only: no robot sensor measures it."""

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.base.position


class BaseOrientation(AbstractObservation):
    """Orientation of the base in the world, a unit quaternion (w, x, y, z) with w >= 0."""

    def __call__(self, context: Context) -> Float[Array, "4"]:
        orientation = context.base.orientation
        # q and -q are the same rotation; the policy should see one of them.
        return jnp.where(orientation[0] < 0, -orientation, orientation)


class BaseLinearVelocityWorld(AbstractObservation):
    """Linear velocity of the base in the world frame, in m/s."""

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.base.lin_vel_world


class BaseAngularVelocityWorld(AbstractObservation):
    """Angular velocity of the base in the world frame, in rad/s."""

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return context.base.ang_vel_world


def velocity_at(context: Context, position_n3: Float[Array, "n 3"], body_n: np.ndarray) -> Float[Array, "n 3"]:
    """World-frame velocities, in m/s, of points that move with bodies."""
    ang_vel_n3, lin_vel_n3 = jnp.split(context.derived("cvel")[body_n], 2, axis=1)
    # MuJoCo's `cvel` is the velocity of a point at the centre of mass of the body's whole tree.
    center_n3 = context.derived("subtree_com")[context.model.mj_model.body_rootid[body_n]]
    return lin_vel_n3 + jnp.cross(ang_vel_n3, position_n3 - center_n3)


class _OfBodies(AbstractObservation):
    """Bodies by name: where they are and how they move in the world."""

    bodies: tuple[str, ...]

    def places(self, context: Context) -> np.ndarray:
        """Their indices in the model."""
        return np.array([context.model.names.index("body", name) for name in self.bodies])

    def position(self, context: Context) -> Float[Array, "b 3"]:
        """Their positions, in m."""
        return context.derived("xpos")[self.places(context)]

    def lin_vel(self, context: Context) -> Float[Array, "b 3"]:
        """Their linear velocities, in m/s."""
        places = self.places(context)
        return velocity_at(context, context.derived("xpos")[places], places)

    def ang_vel(self, context: Context) -> Float[Array, "b 3"]:
        """Their angular velocities, in rad/s."""
        return context.derived("cvel")[self.places(context), :3]


class _OfSites(AbstractObservation):
    """Sites by name, likewise; they move with the bodies that carry them."""

    sites: tuple[str, ...]

    def places(self, context: Context) -> np.ndarray:
        """Their indices in the model."""
        return np.array([context.model.names.index("site", name) for name in self.sites])

    def carriers(self, context: Context) -> np.ndarray:
        """The indices of the bodies that carry them."""
        return context.model.mj_model.site_bodyid[self.places(context)]

    def position(self, context: Context) -> Float[Array, "s 3"]:
        """Their positions, in m."""
        return context.derived("site_xpos")[self.places(context)]

    def lin_vel(self, context: Context) -> Float[Array, "s 3"]:
        """Their linear velocities, in m/s."""
        return velocity_at(context, self.position(context), self.carriers(context))

    def ang_vel(self, context: Context) -> Float[Array, "s 3"]:
        """Their angular velocities, in rad/s."""
        return context.derived("cvel")[self.carriers(context), :3]


class BodyPosition(_OfBodies):
    """Positions of bodies relative to the base, in the base's frame, in m. `bodies`: their names."""

    needs = ("xpos",)

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return context.base.relative(self.position(context))


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
        yaw, position_3 = yaw_of(context.base.orientation), context.base.position
        turn_22 = jnp.array([[jnp.cos(yaw), jnp.sin(yaw)], [-jnp.sin(yaw), jnp.cos(yaw)]])
        height_p = context.model.ground.height(position_3[:2] + grid_p2 @ turn_22) - position_3[2] + self.offset
        return jnp.clip(height_p, -self.clip, self.clip)


class SitePosition(_OfSites):
    """Positions of sites relative to the base, in the base's frame, in m. `sites`: their names."""

    needs = ("site_xpos",)

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return context.base.relative(self.position(context))


class BodyPositionWorld(_OfBodies):
    """Positions of bodies in the world, in m. `bodies`: their names."""

    needs = ("xpos",)

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return self.position(context)


class SitePositionWorld(_OfSites):
    """Positions of sites in the world, in m. `sites`: their names."""

    needs = ("site_xpos",)

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return self.position(context)


class BodyOrientation(_OfBodies):
    """Orientations of bodies in the world, unit quaternions (w, x, y, z) with w >= 0. `bodies`: their names."""

    needs = ("xquat",)

    def __call__(self, context: Context) -> Float[Array, "b 4"]:
        return _one_sign(context.derived("xquat")[self.places(context)])


class BodyOrientationInBase(_OfBodies):
    """Orientations of bodies relative to the base, unit quaternions (w, x, y, z) with w >= 0. `bodies`: their names."""

    needs = ("xquat",)

    def __call__(self, context: Context) -> Float[Array, "b 4"]:
        xquat_b4 = context.derived("xquat")
        # The base's of the same instant as the bodies'.
        to_base_4 = xquat_b4[context.model.names.base_body()] * np.array([1.0, -1.0, -1.0, -1.0])
        return _one_sign(jnp.stack([multiply_quaternions(to_base_4, xquat_b4[i]) for i in self.places(context)]))


class SiteOrientation(_OfSites):
    """Orientations of sites in the world, unit quaternions (w, x, y, z) with w >= 0. `sites`: their names."""

    needs = ("xquat",)

    def __call__(self, context: Context) -> Float[Array, "s 4"]:
        model, xquat_b4 = context.model.mj_model, context.derived("xquat")
        site_quat_s4 = context.overrides.get("site_quat", jnp.asarray(model.site_quat, jnp.float32))
        places = zip(self.carriers(context), self.places(context), strict=True)
        return _one_sign(jnp.stack([multiply_quaternions(xquat_b4[body], site_quat_s4[site]) for body, site in places]))


class CenterOfMassPosition(AbstractObservation):
    """Position of the whole robot's centre of mass relative to the base, in the base's frame, in m."""

    needs = ("subtree_com",)

    def __call__(self, context: Context) -> Float[Array, "3"]:
        base = context.model.names.base_body()
        return context.base.relative(context.derived("subtree_com")[base][None])[0]


class CenterOfMassInertia(AbstractObservation):
    """MuJoCo's `cinert` of every body but the world: ten numbers of its inertia, in kg, kg m and kg m^2."""

    needs = ("cinert",)

    def __call__(self, context: Context) -> Float[Array, "b 10"]:
        return context.derived("cinert")[1:]


class CenterOfMassVelocity(AbstractObservation):
    """MuJoCo's `cvel` of every body but the world: angular, in rad/s, then linear velocity about the centre of mass."""

    needs = ("cvel",)

    def __call__(self, context: Context) -> Float[Array, "b 6"]:
        return context.derived("cvel")[1:]


def _one_sign(quaternion_n4: Float[Array, "n 4"]) -> Float[Array, "n 4"]:
    # q and -q are the same rotation; the policy should see one of them.
    return jnp.where(quaternion_n4[:, :1] < 0, -quaternion_n4, quaternion_n4)


class BodyLinearVelocity(_OfBodies):
    """Linear velocities of bodies through the world, in the base's frame, in m/s. `bodies`: their names."""

    needs = ("cvel", "subtree_com", "xpos")

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return context.base.to_frame(self.lin_vel(context))


class BodyLinearVelocityWorld(_OfBodies):
    """Linear velocities of bodies in the world frame, in m/s. `bodies`: their names."""

    needs = ("cvel", "subtree_com", "xpos")

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return self.lin_vel(context)


class BodyAngularVelocity(_OfBodies):
    """Angular velocities of bodies through the world, in the base's frame, in rad/s. `bodies`: their names."""

    needs = ("cvel",)

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return context.base.to_frame(self.ang_vel(context))


class BodyAngularVelocityWorld(_OfBodies):
    """Angular velocities of bodies in the world frame, in rad/s. `bodies`: their names."""

    needs = ("cvel",)

    def __call__(self, context: Context) -> Float[Array, "b 3"]:
        return self.ang_vel(context)


class SiteLinearVelocity(_OfSites):
    """Linear velocities of sites through the world, in the base's frame, in m/s. `sites`: their names."""

    needs = ("cvel", "subtree_com", "site_xpos")

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return context.base.to_frame(self.lin_vel(context))


class SiteLinearVelocityWorld(_OfSites):
    """Linear velocities of sites in the world frame, in m/s. `sites`: their names."""

    needs = ("cvel", "subtree_com", "site_xpos")

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return self.lin_vel(context)


class SiteAngularVelocity(_OfSites):
    """Angular velocities of sites through the world, in the base's frame, in rad/s. `sites`: their names."""

    needs = ("cvel",)

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return context.base.to_frame(self.ang_vel(context))


class SiteAngularVelocityWorld(_OfSites):
    """Angular velocities of sites in the world frame, in rad/s. `sites`: their names."""

    needs = ("cvel",)

    def __call__(self, context: Context) -> Float[Array, "s 3"]:
        return self.ang_vel(context)


class _Acceleration(ChangeOfVelocity, AbstractObservation):
    """An acceleration, from the velocities of the last two control steps."""

    def __call__(self, context: Context) -> Float[Array, " n"]:
        return context.memory[1]


class BaseLinearAcceleration(_Acceleration):
    """Linear acceleration of the base in its own frame over the last control step, in m/s^2, without gravity."""

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return context.base.lin_vel_world

    def __call__(self, context: Context) -> Float[Array, "3"]:
        return rotate_inverse(context.memory[1], context.base.orientation)


class BaseLinearAccelerationWorld(_Acceleration):
    """Linear acceleration of the base in the world frame over the last control step, in m/s^2, without gravity."""

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return context.base.lin_vel_world


class BaseAngularAcceleration(_Acceleration):
    """Angular acceleration of the base in its own frame over the last control step, in rad/s^2."""

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return context.base.ang_vel_body


class BaseAngularAccelerationWorld(_Acceleration):
    """Angular acceleration of the base in the world frame over the last control step, in rad/s^2."""

    def velocity(self, context: Context) -> Float[Array, "3"]:
        return context.base.ang_vel_world


class JointAcceleration(_Acceleration):
    """Accelerations of joints over the last control step, in rad/s^2 (m/s^2 for slides). `joints`: default all."""

    joints: tuple[str, ...] | None = None

    def velocity(self, context: Context) -> Float[Array, " j"]:
        return context.physics.qvel[context.model.names.joint_qvel(self.joints)]
