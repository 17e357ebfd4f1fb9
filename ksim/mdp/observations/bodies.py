"""Observations of bodies, sites and the centre of mass.

Derived fields, and with them these observations, describe the state before the last physics substep.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import base_orientation, base_position, in_base_frame
from ksim.physics.rotations import multiply_quaternions, yaw_of


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
    clip: float = 1.0
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        if self.spacing <= 0 or min(self.size) < 0:
            raise ConfigError(
                f"HeightScan of {self.size} m needs a spacing ({self.spacing} m) above 0 and no negative size."
            )
        check_range(self, "clip", above=0.0)

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
