"""Commands for positions of joints and of points of the robot."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.commands.base import AbstractDrawnCommand, Range
from ksim.mdp.term import Context
from ksim.physics.names import relative_to_base
from ksim.types import Metrics


class JointPoseCommand(AbstractDrawnCommand):
    """Positions of joints, in rad (m for slides). Drawn uniformly every `resample_s` seconds (a range).

    joints: names, default all; each must have limits. fraction: largest fraction of the way from the default
    pose to either limit: 0 for the default pose only, 1 for the whole range of the joint.
    """

    joints: tuple[str, ...] | None = None
    fraction: float = 0.5
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        check_range(self, "fraction", least=0.0, most=1.0)

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, " j"]:
        names = context.model.names
        limits_j2 = names.joint_range(self.joints)
        if not np.isfinite(limits_j2).all():
            every = self.joints or names.joints
            unlimited = [every[i] for i in np.flatnonzero(~np.isfinite(limits_j2).all(axis=1))]
            raise ConfigError(
                f"JointPoseCommand draws within the limits of joints, but {', '.join(unlimited)} has none. "
                "Name others in `joints`, or give it a range in the MJCF file."
            )
        rest_j = context.model.default_qpos[names.joint_qpos(self.joints)]
        low_j, high_j = (rest_j + self.fraction * (limit_j - rest_j) for limit_j in limits_j2.T)
        return jax.random.uniform(key, rest_j.shape, minval=low_j, maxval=high_j)

    def errors(self, context: Context, command: Float[Array, " j"]) -> Metrics:
        position_j = context.physics.qpos[context.model.names.joint_qpos(self.joints)]
        return {"joint_position_rad": jnp.mean(jnp.abs(position_j - command))}


class CartesianCommand(AbstractDrawnCommand):
    """Position of a body or a site relative to the base, in the base's frame, in m, such as for a reaching hand.

    For a robot without a free joint, its position in the world. Drawn uniformly from a box every `resample_s` seconds
    (a range). x, y, z: the box's ranges. body, site: the name of one of them.
    """

    x: Range
    y: Range
    z: Range
    body: str | None = None
    site: str | None = None
    resample_s: Range = (4.0, 8.0)

    def __check_init__(self) -> None:
        for field in ("x", "y", "z"):
            check_range(self, field)
        if (self.body is None) == (self.site is None):
            raise ConfigError(
                f"CartesianCommand has body={self.body!r} and site={self.site!r}. Give the name of one, not of both."
            )

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("xpos",) if self.site is None else ("site_xpos",)

    def draw(self, key: PRNGKeyArray, context: Context) -> Float[Array, "3"]:
        low_3, high_3 = jnp.array([self.x, self.y, self.z]).T
        return jax.random.uniform(key, (3,), minval=low_3, maxval=high_3)

    def ranges(self) -> dict[str, Range]:
        return {"x, m": self.x, "y, m": self.y, "z, m": self.z}

    def errors(self, context: Context, command: Float[Array, "3"]) -> Metrics:
        names = context.model.names
        if self.site is not None:
            position_3 = context.derived("site_xpos")[names.index("site", self.site)]
        else:
            position_3 = context.derived("xpos")[names.index("body", str(self.body))]
        return {"position_m": jnp.linalg.norm(relative_to_base(context.physics, names, position_3) - command)}
