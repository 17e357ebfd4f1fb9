"""Observations of the velocities of bodies and sites.

Derived fields, and with them these observations, describe the state before the last physics substep.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.physics.names import in_base_frame


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
