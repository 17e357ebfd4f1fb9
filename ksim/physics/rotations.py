"""Rotations: quaternions are (w, x, y, z) with unit norm, as in MuJoCo."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def rotate(vector: Float[Array, "3"], quaternion: Float[Array, "4"]) -> Float[Array, "3"]:
    """A vector of the body frame in the world frame, for the body's orientation (w, x, y, z)."""
    w, xyz = quaternion[0], quaternion[1:]
    t = 2 * jnp.cross(xyz, vector)
    return vector + w * t + jnp.cross(xyz, t)


def rotate_inverse(vector: Float[Array, "3"], quaternion: Float[Array, "4"]) -> Float[Array, "3"]:
    """A vector of the world frame in the body frame, for the body's orientation (w, x, y, z)."""
    return rotate(vector, inverse_quaternion(quaternion))


def yaw_of(quaternion: Float[Array, "4"]) -> Float[Array, ""]:
    """Heading of a body about the vertical, in rad: 0 along the world's x axis."""
    w, x, y, z = quaternion
    return jnp.arctan2(2 * (w * z + x * y), 1 - 2 * (jnp.square(y) + jnp.square(z)))


def roll_pitch_of(quaternion: Float[Array, "4"]) -> Float[Array, "2"]:
    """Roll (to the right) and pitch (nose down) of a body, in rad. They do not depend on its heading."""
    x, y, z = rotate_inverse(jnp.array([0.0, 0.0, 1.0]), quaternion)
    return jnp.stack([jnp.arctan2(y, z), jnp.arctan2(-x, jnp.hypot(y, z))])


def wrap_angle(angle: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Angles, in rad, brought into [-pi, pi]."""
    return jnp.arctan2(jnp.sin(angle), jnp.cos(angle))


def multiply_quaternions(a: Float[Array, "4"], b: Float[Array, "4"]) -> Float[Array, "4"]:
    """The rotation b followed by a."""
    w, xyz = a[0] * b[0] - jnp.dot(a[1:], b[1:]), a[0] * b[1:] + b[0] * a[1:] + jnp.cross(a[1:], b[1:])
    return jnp.concatenate([w[None], xyz])


def inverse_quaternion(quaternion: Float[Array, "4"]) -> Float[Array, "4"]:
    """The inverse of a rotation."""
    return quaternion * jnp.array([1.0, -1.0, -1.0, -1.0])


def angle_between(a: Float[Array, "4"], b: Float[Array, "4"]) -> Float[Array, ""]:
    """Angle of the rotation from a to b, in rad, from 0 to pi."""
    w, x, y, z = multiply_quaternions(inverse_quaternion(a), b)
    return 2 * jnp.arctan2(jnp.sqrt(jnp.square(x) + jnp.square(y) + jnp.square(z)), jnp.abs(w))


def random_turn(key: PRNGKeyArray, max_angle: float) -> Float[Array, "4"]:
    """A rotation about a random axis by a uniform angle up to `max_angle`, in rad."""
    axis_key, angle_key = jax.random.split(key)
    axis_3 = jax.random.normal(axis_key, (3,))
    half_angle = jax.random.uniform(angle_key, maxval=max_angle) / 2
    xyz_3 = jnp.sin(half_angle) * axis_3 / jnp.linalg.norm(axis_3)
    return jnp.concatenate([jnp.cos(half_angle)[None], xyz_3])


def turn_by(vector: Float[Array, "*n 3"], yaw: Float[Array, ""]) -> Float[Array, "*n 3"]:
    """Vectors turned by `yaw`, in rad, about the vertical."""
    c, s = jnp.cos(yaw), jnp.sin(yaw)
    x, y = vector[..., 0], vector[..., 1]
    return jnp.stack([c * x - s * y, s * x + c * y, vector[..., 2]], axis=-1)


def heading_frame(quaternion: Float[Array, "4"], vector_world: Float[Array, "3"]) -> Float[Array, "3"]:
    """A world-frame vector in the frame that shares the body's heading but stays level."""
    yaw = yaw_of(quaternion)
    c, s = jnp.cos(yaw), jnp.sin(yaw)
    x, y, z = vector_world
    return jnp.stack([c * x + s * y, -s * x + c * y, z])
