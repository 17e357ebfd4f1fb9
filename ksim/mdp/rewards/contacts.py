"""Rewards (used with negative scales) for undesired contacts."""

import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Float

from ksim.checks import check_range
from ksim.mdp.contacts import add_contact_sensors, check_parts, contact_forces, hardest_contacts
from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import Context


class UndesiredContact(AbstractReward):
    """Number of parts with a contact force above `threshold`, in N, from the ground or another part.

    bodies: names; a body counts with its own geoms. geoms: names. Contact sensors are added to the model.
    """

    bodies: tuple[str, ...] = ()
    geoms: tuple[str, ...] = ()
    threshold: float = 1.0
    scale: float = -1.0

    def __check_init__(self) -> None:
        check_parts(self)
        check_range(self, "threshold", least=0.0)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_contact_sensors(spec, self.bodies, self.geoms)

    def __call__(self, context: Context) -> Float[Array, ""]:
        return jnp.sum(contact_forces(context, self.bodies, self.geoms) > self.threshold).astype(jnp.float32)


class Stumble(AbstractReward):
    """Number of feet that hit an obstacle: horizontal force above `ratio` times the vertical force.

    Feet with a horizontal force up to `threshold`, in N, do not count. geoms: names of the feet's geoms; the strongest
    contact of each counts. Contact sensors are added to the model. ratio: choose it above the friction of the ground,
    or pushing off counts as stumbling.
    """

    geoms: tuple[str, ...]
    ratio: float = 4.0
    threshold: float = 1.0
    scale: float = -1.0

    def __check_init__(self) -> None:
        check_parts(self)
        check_range(self, "ratio", above=0.0)
        check_range(self, "threshold", least=0.0)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_contact_sensors(spec, geoms=self.geoms)

    def __call__(self, context: Context) -> Float[Array, ""]:
        force_g3 = hardest_contacts(context, self.geoms)
        sideways_g, vertical_g = jnp.linalg.norm(force_g3[:, :2], axis=1), jnp.abs(force_g3[:, 2])
        stumbles_g = (sideways_g > self.ratio * vertical_g) & (sideways_g > self.threshold)
        return jnp.sum(stumbles_g).astype(jnp.float32)
