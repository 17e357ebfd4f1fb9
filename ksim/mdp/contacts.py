"""Contacts of parts of the robot and their forces, from sensors, which every engine supports."""

import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.mdp.term import Context, Term
from ksim.physics.contacts import add_body_touch_sensor
from ksim.physics.names import find_in_spec

# Of the contact that presses hardest: its force in its own frame, its normal and its first tangent.
_FORCE, _NORMAL, _TANGENT = 1 << 1, 1 << 5, 1 << 6
_BY_LARGEST_FORCE = 2


def check_parts(term: Term) -> None:
    """Raises ConfigError unless a term with fields `bodies` and `geoms` names at least one."""
    if not (getattr(term, "bodies", ()) or getattr(term, "geoms", ())):
        raise ConfigError(f"{type(term).__name__} names neither bodies nor geoms. Name at least one.")


def add_contact_sensors(spec: mujoco.MjSpec, bodies: tuple[str, ...] = (), geoms: tuple[str, ...] = ()) -> None:
    """Adds to the model what `contact_forces` and `hardest_contacts` read, if missing.

    Raises:
        ConfigError: The model has no such body or geom, or it cannot touch anything.
    """
    for name in bodies:
        body = find_in_spec(spec, "body", name)
        _check_collides(spec, f"Body {name!r}", body.geoms)
        if spec.sensor(_body_sensor(name)) is None:
            add_body_touch_sensor(spec, _body_sensor(name), body)
    for name in geoms:
        _check_collides(spec, f"Geom {name!r}", [find_in_spec(spec, "geom", name)])
        if spec.sensor(_geom_sensor(name)) is None:
            spec.add_sensor(
                name=_geom_sensor(name),
                type=mujoco.mjtSensor.mjSENS_CONTACT,
                objtype=mujoco.mjtObj.mjOBJ_GEOM,
                objname=name,
                intprm=[_FORCE | _NORMAL | _TANGENT, _BY_LARGEST_FORCE, 1],
            )


def contact_forces(
    context: Context, bodies: tuple[str, ...] = (), geoms: tuple[str, ...] = ()
) -> Float[Array, " parts"]:
    """Contact force on each part, in N: bodies first, then geoms.

    For a body, the sum over its own geoms; for a geom, its strongest contact.
    """
    of_bodies = [context.sensor(_body_sensor(name))[0] for name in bodies]
    of_geoms = [context.sensor(_geom_sensor(name))[0] for name in geoms]
    return jnp.stack(of_bodies + of_geoms)


def hardest_contacts(context: Context, geoms: tuple[str, ...]) -> Float[Array, "parts 3"]:
    """The force of the strongest contact of each geom, in N in the world frame, up to its sign."""
    force_g3, normal_g3, tangent_g3 = jnp.split(
        jnp.stack([context.sensor(_geom_sensor(name)) for name in geoms]), 3, axis=1
    )
    axes_gc3 = jnp.stack([normal_g3, tangent_g3, jnp.cross(normal_g3, tangent_g3)], axis=1)
    return jnp.einsum("gc,gcx->gx", force_g3, axes_gc3)


def _check_collides(spec: mujoco.MjSpec, what: str, geoms: list[mujoco.MjsGeom]) -> None:
    paired = {name for pair in spec.pairs for name in (pair.geomname1, pair.geomname2)}
    if not any(geom.contype or geom.conaffinity or geom.name in paired for geom in geoms):
        raise ConfigError(
            f"{what} cannot touch anything: its contype and conaffinity are 0. Change them, or name another."
        )


def _body_sensor(body: str) -> str:
    return f"ksim_{body}_contact"


def _geom_sensor(geom: str) -> str:
    return f"ksim_{geom}_geom_contact"
