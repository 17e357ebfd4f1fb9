"""Rewards (used with negative scales) for contacts that should not be."""

import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Float

from ksim.checks import check_range
from ksim.mdp.contacts import add_contact_sensors, check_parts, contact_forces, hardest_contacts
from ksim.mdp.rewards.base import AbstractReward
from ksim.mdp.term import Context


class UndesiredContact(AbstractReward):
    """Number of parts that are pressed harder than `threshold`, in N, by the ground or by another part.

    bodies: names; each counts with all geoms of its own. geoms: names. Their sensors are added to the model.
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
    """Number of feet that run into something: pushed harder from the side than `ratio` times from below.

    A foot without a horizontal push above `threshold`, in N, does not count. geoms: names of the feet's geoms, of each
    of which the contact that presses hardest is judged; their sensors are added to the model. ratio: above the
    friction of the ground, or a foot that pushes off stumbles too.
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
